"""What the runtime sends on a handler's stream, and how it reacts to whatever comes back."""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager

import anyio
import pytest

from durable_invocations import Context, Service, service_app
from durable_invocations.protocol import ids, kinds
from durable_invocations.protocol.awakeables import make_awakeable_id
from durable_invocations.protocol.decoding import Limits
from durable_invocations.protocol.failures import UNKNOWN
from durable_invocations.protocol.frames import Frame, encode, make_frame
from durable_invocations.protocol.pb import protocol_pb2 as pb
from durable_invocations.protocol.results import Value, make_completion
from durable_invocations.runtime.driving import attempts
from durable_invocations.runtime.retries import RetryPolicy
from durable_invocations.runtime.store.operations import CommitEntry, CompleteAwakeable, Resume
from durable_invocations.runtime.store.views import Status
from runtime_support.endpoints.asgi_servers import hypercorn_of, run, uvicorn_of
from runtime_support.endpoints.scripted_service import Scripted
from runtime_support.errors import assert_names
from runtime_support.runtimes.sqlite_runtime import AT_ONCE, running

BOTH = pytest.mark.parametrize("server", [uvicorn_of, hypercorn_of], ids=["http1", "http2"])
OK = Value(value=b"null")
ONCE = RetryPolicy(attempts=1)
SLOW_SECONDS = 30


@asynccontextmanager
async def driving(tmp_path, app, serve=hypercorn_of, **settings):
    with serve(app) as server:
        async with running(tmp_path, server.url, **settings) as driver:
            yield driver


def drive_to_end(
    tmp_path, app, serve=hypercorn_of, *, target="S/h", key="", argument=None, **settings
):
    """Drive one invocation: its result, its journal, and the invocation at the end."""

    async def drive():
        async with driving(tmp_path, app, serve, **settings) as driver:
            id_ = await driver.submit(target, argument, key=key)
            result = await driver.end(id_)
            return result, driver.journal(id_), driver.store.invocation(id_)

    return run(drive())


def drive_to_pause(tmp_path, script, serve=hypercorn_of, **settings):
    """Drive one invocation whose only attempt fails: its error, and the kinds in its journal."""

    async def drive():
        async with driving(tmp_path, Scripted(script), serve, policy=ONCE, **settings) as driver:
            id_ = await driver.submit("S/h")
            paused = await driver.until(id_, Status.PAUSED)
            return paused.error, [entry.frame.kind.name for entry in driver.journal(id_)]

    return run(drive())


def wait_in_thread(event):
    """Wait for an event of threading without holding up the event loop."""
    return asyncio.get_running_loop().run_in_executor(None, event.wait, SLOW_SECONDS)


@BOTH
def test_a_stream_begins_with_start_and_input_and_ends_with_output_and_end(tmp_path, server):
    async def script(stream, _):
        await stream.output(b'"done"')

    app = Scripted(script)
    result, journal, shown = drive_to_end(tmp_path, app, server, argument=7)
    start, (entry,) = app.streams[0].start, app.streams[0].entries
    assert (start.debug_id, start.id) == (shown.id, ids.parse_id(shown.id))
    assert (start.known_entries, start.key, start.partial_state) == (1, "", False)
    assert (start.retry_count_since_last_stored_entry, entry.message().value) == (0, b"7")
    assert app.streams[0].headers["content-type"] == "application/vnd.restate.invocation.v3"
    assert app.streams[0].path == "/invoke/S/h"
    assert result == Value(value=b'"done"')
    assert [entry.frame.kind for entry in journal] == [kinds.INPUT, kinds.OUTPUT]
    assert shown.attempts == 1


async def test_the_request_is_a_post_below_the_prefix_of_the_address(tmp_path):
    async def script(stream, _):
        await stream.output()

    app = Scripted(script)
    with hypercorn_of(app) as server:
        async with running(tmp_path, f"{server.url}/any/prefix/") as driver:
            assert await driver.end(await driver.submit("O/h", key="a/key")) == OK
    (stream,) = app.streams
    assert (stream.method, stream.path) == ("POST", "/any/prefix/invoke/O/h")


async def test_concurrent_invocations_share_a_connection(tmp_path):
    barrier = asyncio.Barrier(10)

    async def script(stream, _):
        await barrier.wait()
        await stream.output()

    app = Scripted(script)
    async with driving(tmp_path, app) as driver:
        ids_ = [await driver.submit("S/h") for _ in range(10)]
        assert {await driver.end(id_) for id_ in ids_} == {OK}
    assert len({stream.client for stream in app.streams}) == 1


@pytest.mark.parametrize("newest", [1, 2, 3, 9])
def test_the_version_is_the_newest_that_both_speak(tmp_path, newest):
    async def script(stream, number):
        if number > 1:
            await stream.output()

    app = Scripted(script, newest)
    drive_to_end(tmp_path, app)
    version = min(newest, 3)
    kind = f"application/vnd.restate.invocation.v{version}"
    assert {stream.headers["content-type"] for stream in app.streams} == {kind}
    # Hypercorn may break off the next attempt, too, before its Start has come.
    starts = [stream.start for stream in app.streams if stream.start is not None]
    counts = [start.retry_count_since_last_stored_entry for start in starts]
    assert (counts[0], counts[1] > 0) == (0, version > 1)


def test_an_entry_is_acknowledged_only_if_it_asks_for_it(tmp_path):
    acks = []

    async def script(stream, _):
        await stream.send(pb.RunEntryMessage(value=b"quiet"))
        await stream.send(pb.RunEntryMessage(value=b"1"), requires_ack=True)
        acks.append(await stream.next())
        await stream.output()

    drive_to_end(tmp_path, Scripted(script))
    assert acks == [make_frame(pb.EntryAckMessage(entry_index=2))]


async def test_a_completion_comes_on_the_open_stream(tmp_path):
    completions = []

    async def script(stream, _):
        await stream.send(pb.AwakeableEntryMessage())
        completions.append(await stream.next())
        await stream.output()

    async with driving(tmp_path, Scripted(script)) as driver:
        id_ = await driver.submit("S/h")
        name = make_awakeable_id(ids.parse_id(id_), 1)
        await driver.runtime.do(CompleteAwakeable(awakeable=name, result=Value(value=b"hi")))
        assert await driver.end(id_) == OK
    assert completions == [make_completion(1, Value(value=b"hi"))]


async def test_state_is_sent_eagerly_with_the_start(tmp_path):
    states = []

    async def script(stream, number):
        states.append({entry.key: entry.value for entry in stream.start.state_map})
        if number == 1:
            await stream.send(pb.SetStateEntryMessage(key=b"a", value=b"1"))
        await stream.output()

    async with driving(tmp_path, Scripted(script)) as driver:
        for key in ("k", "k", "other"):
            await driver.call("O/h", key=key)
    assert states == [{}, {b"a": b"1"}, {}]


async def test_a_large_state_is_sent_in_part_and_the_rest_on_demand(tmp_path):
    received = []
    large = b"x" * 70_000

    async def script(stream, number):
        if number == 1:
            values = {b"a": b"1", b"large": large}
            await stream.send(*(pb.SetStateEntryMessage(key=k, value=values[k]) for k in values))
        else:
            keys = [entry.key for entry in stream.start.state_map]
            await stream.send(pb.GetStateEntryMessage(key=b"large"))
            completion = (await stream.next()).message()
            received.append((stream.start.partial_state, keys, completion.value))
        await stream.output()

    async with driving(tmp_path, Scripted(script)) as driver:
        for _ in range(2):
            await driver.call("O/h", key="k")
    assert received == [(True, [b"a"], large)]


def test_a_replay_has_stored_entries_with_results_and_asks_for_no_ack(tmp_path):
    async def script(stream, number):
        if number == 1:
            await stream.send(pb.RunEntryMessage(value=b"1", name="one"), requires_ack=True)
            await stream.next()
            await stream.send(pb.GetStateEntryMessage(key=b"x"))
            assert (await stream.next()).code == kinds.COMPLETION.code
            return
        await stream.output()

    app = Scripted(script)
    drive_to_end(tmp_path, app, target="O/h", key="k")
    replay = app.streams[-1]
    assert replay.start.known_entries == 3
    assert [(entry.code, entry.requires_ack, entry.completed) for entry in replay.entries] == [
        (kinds.INPUT.code, False, False),
        (kinds.RUN.code, False, False),
        (kinds.GET_STATE.code, False, True),
    ]
    assert replay.entries[1].message().value == b"1"


async def test_a_suspended_invocation_continues_when_one_of_its_entries_is_complete(tmp_path):
    async def script(stream, number):
        if number == 1:
            sleep = pb.SleepEntryMessage(wake_up_time=2**42)
            await stream.send(pb.AwakeableEntryMessage(), sleep)
            await stream.send(pb.SuspensionMessage(entry_indexes=[1, 2]))
            return
        await stream.output()

    app = Scripted(script)
    async with driving(tmp_path, app) as driver:
        id_ = await driver.submit("S/h")
        suspended = await driver.until(id_, Status.SUSPENDED)
        assert suspended.waits == (1, 2)
        name = make_awakeable_id(ids.parse_id(id_), 1)
        await driver.runtime.do(CompleteAwakeable(awakeable=name, result=Value(value=b"hi")))
        assert await driver.end(id_) == OK
    assert [entry.completed for entry in app.streams[-1].entries] == [False, True, False]


@BOTH
def test_a_suspension_on_the_ack_of_a_run_continues_at_once(tmp_path, server):
    async def script(stream, _):
        if len(stream.entries) == 1:
            await stream.send(pb.RunEntryMessage(value=b"1"), requires_ack=True)
            await stream.send(pb.SuspensionMessage(entry_indexes=[1]))
        else:
            await stream.output()

    result, journal, _ = drive_to_end(tmp_path, Scripted(script), server)
    assert (result, len(journal)) == (OK, 3)


# What the handler must not send.

BREACHES = {
    "no output": (encode(make_frame(pb.EndMessage())), 571, ["Output"]),
    "an unsent index": (
        encode(make_frame(pb.SuspensionMessage(entry_indexes=[5]))), 571, ["entry 5"],
    ),
    "a start": (encode(make_frame(pb.StartMessage())), 571, [kinds.START]),
    "unknown type": (b"\x0f\xff\x00\x00\x00\x00\x00\x00", 571, ["0x0FFF"]),
    "malformed": (encode(Frame(code=kinds.RUN.code, body=b"\xff\xff")), 571, [kinds.RUN]),
    "huge": (b"\x0c\x05\x00\x00\xff\xff\xff\xff", 413, [kinds.RUN, "4294967295 bytes"]),
    "half a message": (b"\x0c\x05\x00\x00\x00\x00\x00\x10abc", 571, ["11 bytes"]),
    "text": (b"<html>hello</html>", 571, ["0x3C68"]),
}  # fmt: skip


@BOTH
@pytest.mark.parametrize("case", BREACHES)
def test_a_breach_of_the_protocol_fails_the_attempt(tmp_path, server, case):
    data, code, values = BREACHES[case]

    async def script(stream, _):
        await stream.raw(data)

    error, journal = drive_to_pause(tmp_path, script, server)
    assert (error.code, journal) == (code, ["Input"])
    assert_names(error.message, *values)


@pytest.mark.parametrize(
    ("limits", "values"),
    [
        (Limits(journal_entries=3), ["4 entries", 3]),
        # The Input has six bytes, each Run three.
        (Limits(journal_bytes=12), ["15 bytes", 12]),
    ],
    ids=["entries", "bytes"],
)
async def test_the_limits_of_a_journal_hold_for_all_its_attempts(tmp_path, limits, values):
    async def script(stream, number):
        runs = [pb.RunEntryMessage(value=b"1")] * (2 if number == 1 else 1)
        await stream.send(*runs, requires_ack=True)
        await stream.send(pb.SuspensionMessage(entry_indexes=[2]))

    async with driving(tmp_path, Scripted(script), policy=ONCE, limits=limits) as driver:
        paused = await driver.until(await driver.submit("S/h"), Status.PAUSED)
        journal = [entry.frame.kind.name for entry in driver.journal(paused.id)]
    assert (paused.error.code, journal) == (413, ["Input", "Run", "Run"])
    assert_names(paused.error.message, *values)


def test_entries_before_a_breach_are_kept(tmp_path):
    async def script(stream, _):
        await stream.send(pb.RunEntryMessage(value=b"1"), requires_ack=True)
        await stream.next()
        await stream.send(pb.EndMessage())

    _, journal = drive_to_pause(tmp_path, script)
    assert journal == ["Input", "Run"]


NOBODY = {"service_name": "Nobody", "handler_name": "h"}


@pytest.mark.parametrize(
    ("first", "refused", "later"),
    [
        (
            pb.RunEntryMessage(value=b"1"),
            pb.CallEntryMessage(**NOBODY),
            [pb.RunEntryMessage(value=b"2"), pb.OutputEntryMessage(value=b""), pb.EndMessage()],
        ),
        (
            pb.AwakeableEntryMessage(),
            pb.OneWayCallEntryMessage(**NOBODY),
            [pb.SuspensionMessage(entry_indexes=[1])],
        ),
    ],
    ids=["then an output", "then a suspension"],
)
def test_an_entry_that_the_store_refuses_ends_the_attempt(tmp_path, first, refused, later):
    async def script(stream, _):
        await stream.send(first, refused, *later)

    error, journal = drive_to_pause(tmp_path, script)
    kind = make_frame(refused).kind
    assert (error.code, error.index, error.kind) == (404, 2, kind.code)
    assert_names(error.message, "Entry 2", kind, "'Nobody'")
    assert journal == ["Input", make_frame(first).kind.name]


LASTS = {
    "End": [pb.OutputEntryMessage(value=b""), pb.EndMessage()],
    "Suspension": [pb.AwakeableEntryMessage(), pb.SuspensionMessage(entry_indexes=[1])],
    "Error": [pb.ErrorMessage(code=500, message="no")],
    "refused by the store": [pb.CallEntryMessage(**NOBODY)],
    "no entry": [pb.StartMessage()],
}


@pytest.mark.parametrize("last", LASTS)
async def test_a_stream_ends_after_its_last_message_and_breaks_off_at_an_invalid_one(
    tmp_path, monkeypatch, last
):
    """At once, and not because the stream stays open after its end."""
    monkeypatch.setattr(attempts, "LINGER_SECONDS", 60.0)
    ends, over = [], threading.Event()

    async def script(stream, _):
        await stream.send(*LASTS[last])
        with anyio.move_on_after(5):
            ends.append((await stream.next(), stream.broken))
        over.set()

    async with driving(tmp_path, Scripted(script), policy=ONCE) as driver:
        await driver.submit("S/h")
        await wait_in_thread(over)
    assert ends == [(None, last in {"refused by the store", "no entry"})]


V1 = "application/vnd.restate.invocation.v1"


@pytest.mark.parametrize(
    ("status", "kind", "values"),
    [
        (404, None, [404, "'because'", "kill"]),
        (415, None, [415]),
        (500, None, [500, "'because'"]),
        (200, "text/html", ["'text/html'", V1.replace("v1", "v3")]),
        (200, V1, [f"'{V1}'", V1.replace("v1", "v3")]),
    ],
)
def test_a_response_that_is_no_stream_fails_the_attempt(tmp_path, status, kind, values):
    async def script(stream, _):
        await stream.begin(status, kind)
        await stream.raw(b"because\n")

    error, _ = drive_to_pause(tmp_path, script)
    assert_names(error.message, "/invoke/S/h", *values)


@BOTH
def test_a_stream_that_ends_without_a_last_message_is_tried_again(tmp_path, server):
    async def script(stream, number):
        if number < 3:
            await stream.raw(b"")
            return
        await stream.output()

    result, _, shown = drive_to_end(tmp_path, Scripted(script), server)
    assert (result, shown.attempts) == (OK, 3)
    assert (shown.error.code, shown.error.message) == (UNKNOWN.code, UNKNOWN.message)


async def test_a_stream_without_a_last_message_disturbs_no_other_on_its_connection(tmp_path):
    other_began, may_end = threading.Event(), threading.Event()

    async def script(stream, number):
        if stream.path.endswith("/other"):
            other_began.set()
            await wait_in_thread(may_end)
        elif number < 3:
            await stream.raw(b"")
            return
        await stream.output()

    app = Scripted(script)
    async with driving(tmp_path, app) as driver:
        other = await driver.submit("S/other")
        await wait_in_thread(other_began)
        one = await driver.submit("S/h")
        await driver.end(one)
        may_end.set()
        await driver.end(other)
        one, other = driver.store.invocation(one), driver.store.invocation(other)
    assert (one.attempts, other.attempts, other.error) == (3, 1, None)
    assert len({stream.client for stream in app.streams}) == 1


# Errors, and when they are tried again.


def test_an_error_is_kept_as_it_was_sent(tmp_path):
    async def script(stream, _):
        await stream.send(
            pb.ErrorMessage(
                code=599, message="no luck", description="told", related_entry_index=3,
                related_entry_name="three", related_entry_type=kinds.RUN.code,
            )
        )  # fmt: skip

    error, _ = drive_to_pause(tmp_path, script)
    assert (error.code, error.message, error.description) == (599, "no luck", "told")
    assert (error.index, error.name, error.kind) == (3, "three", kinds.RUN.code)


async def test_an_exhausted_policy_pauses_until_a_person_resumes(tmp_path, caplog):
    async def script(stream, number):
        if number < 6:
            await stream.send(pb.ErrorMessage(code=500, message=f"failure {number}"))
        else:
            await stream.output()

    async with driving(tmp_path, Scripted(script), policy=AT_ONCE) as driver:
        id_ = await driver.submit("S/h")
        paused = await driver.until(id_, Status.PAUSED)
        await driver.runtime.do(Resume(id=id_))
        result = await driver.end(id_)
    assert (paused.attempts, paused.error.message) == (5, "failure 5")
    assert result == OK
    first, last = (message for message in caplog.messages if paused.id in message)
    assert_names(first, paused.id, "S/h", "failure 1")
    assert_names(last, paused.id, "S/h", "5 attempts", "failure 5")


def test_a_stored_entry_gives_all_attempts_again(tmp_path):
    """Six attempts fail, at most two in a row before an entry is stored."""

    async def script(stream, number):
        if number % 2 == 0 and number < 7:
            await stream.send(pb.RunEntryMessage(value=b"1"), requires_ack=True)
            await stream.next()
        if number < 7:
            await stream.send(pb.ErrorMessage(code=500, message="again"))
            return
        assert len(stream.entries) == 4
        await stream.output()

    app = Scripted(script)
    few = RetryPolicy(initial=0.001, factor=1, cap=0.001, attempts=3)
    result, _, shown = drive_to_end(tmp_path, app, policy=few)
    assert (result, shown.attempts) == (OK, 7)
    counts = [stream.start.retry_count_since_last_stored_entry for stream in app.streams]
    assert max(counts) <= 2


async def test_the_errors_own_delay_overrides_the_policy(tmp_path):
    async def script(stream, number):
        if number == 1:
            await stream.send(pb.ErrorMessage(code=500, message="x", next_retry_delay=3_600_000))
        else:
            await stream.output()

    async with driving(tmp_path, Scripted(script)) as driver:
        id_ = await driver.submit("S/h")
        waiting = await driver.until(id_, Status.BACKING_OFF)
        wait = waiting.next_at - waiting.changed
        await driver.runtime.do(Resume(id=id_))
        result = await driver.end(id_)
    assert 3_590_000 < wait <= 3_600_000
    assert result == OK


def test_a_terminal_failure_is_not_tried_again(tmp_path):
    async def script(stream, _):
        failure = pb.Failure(code=418, message="no coffee")
        await stream.send(pb.OutputEntryMessage(failure=failure), pb.EndMessage())

    result, _, shown = drive_to_end(tmp_path, Scripted(script))
    assert (result.code, result.message, shown.attempts) == (418, "no coffee", 1)


async def test_an_entry_that_the_database_refuses_fails_the_attempt_and_holds_up_no_other(tmp_path):
    """It would be the same again, so the runtime does not drop the invocation."""

    async def script(stream, _):
        (entry,) = stream.entries
        if entry.message().value == b'"poison"':
            await stream.send(pb.RunEntryMessage(name="poison", value=b"1"), requires_ack=True)
            await stream.next()
        await stream.output()

    async with driving(tmp_path, Scripted(script)) as driver:
        run_ = driver.store.run

        def refuse(operations):
            for operation in operations:
                if isinstance(operation, CommitEntry) and b"poison" in operation.frame.body:
                    raise ValueError("no text has that\nand more")
            return run_(operations)

        driver.store.run = refuse
        poisoned, other = [await driver.submit("S/h", name) for name in ("poison", "other")]
        paused = await driver.until(poisoned, Status.PAUSED)
        assert await driver.end(other) == OK
    error = paused.error
    assert (error.code, error.index, error.kind) == (500, 1, kinds.RUN.code)
    assert_names(error.message, "Entry 1", kinds.RUN, "no text has that")
    assert "more" not in error.message
    assert (paused.attempts, paused.owner) == (5, "")


@BOTH
async def test_a_stream_that_continues_after_its_last_message_is_soon_broken_off(tmp_path, server):
    async def script(stream, number):
        await stream.output()
        while number == 1:
            await stream.send(pb.EndMessage())
            await asyncio.sleep(0.01)

    async with driving(tmp_path, Scripted(script), server, most=1) as driver:
        first, second = await driver.submit("S/h"), await driver.submit("S/h")
        assert (await driver.end(first), await driver.end(second)) == (OK, OK)


def test_an_error_is_logged_as_one_line_and_kept_within_bounds(tmp_path, caplog):
    async def script(stream, _):
        text = f"\x1b[31mred\nWARNING forged \u202e {'x' * 30_000}"
        await stream.send(pb.ErrorMessage(code=500, message=text, description=text))

    error, _ = drive_to_pause(tmp_path, script)
    assert len(error.message) == len(error.description) == 10_000
    (logged,) = [message for message in caplog.messages if "paused" in message]
    assert logged.isprintable()
    assert "\\x1b[31mred\\nWARNING forged \\u202e xxx" in logged
    assert len(logged) < 3_000


@BOTH
def test_an_attempt_fails_whose_message_comes_byte_by_byte_without_end(tmp_path, server):
    async def script(stream, number):
        if number > 1:
            await stream.output()
            return
        await stream.raw(encode(Frame(code=kinds.RUN.code, body=bytes(100_000)))[:8])
        with anyio.fail_after(SLOW_SECONDS):
            while app.attempts[stream.path] == 1:
                await stream.raw(b"\0")
                await asyncio.sleep(0.005)

    app = Scripted(script)
    settings = {"inactivity": 0.05, "abort": 0.05}
    result, _, shown = drive_to_end(tmp_path, app, server, **settings)
    assert (result, shown.attempts) == (OK, 2)
    assert_names(shown.error.message, "http://127.0.0.1", "message")


@BOTH
def test_a_long_message_may_take_longer_than_silence(tmp_path, server):
    text = b'"%s"' % (b"x" * 1_000_000)
    output = make_frame(pb.OutputEntryMessage(value=text))
    data = encode(output) + encode(make_frame(pb.EndMessage()))

    async def script(stream, _):
        for start in range(0, len(data), 100_000):
            await stream.raw(data[start : start + 100_000])
            await asyncio.sleep(0.05)

    settings = {"inactivity": 0.1, "abort": 0.1}
    result, _, shown = drive_to_end(tmp_path, Scripted(script), server, **settings)
    assert (result, shown.attempts) == (Value(value=text), 1)


async def test_a_deployment_whose_handlers_hang_holds_up_no_other(tmp_path, quick_service):
    may_end = threading.Event()

    async def script(stream, _):
        await wait_in_thread(may_end)
        await stream.output()

    async with driving(tmp_path, Scripted(script), uvicorn_of, most=4) as driver:
        await driver.runtime.register(quick_service)
        hanging = [await driver.submit("S/h") for _ in range(8)]
        answer = await driver.call("Quick/echo", 7)
        may_end.set()
        assert (answer, [await driver.end(id_) for id_ in hanging]) == (7, [OK] * 8)


@pytest.fixture
def quick_service():
    quick = Service("Quick")

    @quick.handler
    async def echo(_: Context, number: int) -> int:
        return number

    with uvicorn_of(service_app(quick)) as server:
        yield server.url
