"""What the runtime sends, and what it makes of all that a handler's stream may be."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from contextlib import asynccontextmanager

import anyio
import pytest

from durable_invocations import Context, Service, service_app
from durable_invocations.protocol import ids, kinds
from durable_invocations.protocol.awakeables import make_awakeable_id
from durable_invocations.protocol.decoding import Limits
from durable_invocations.protocol.frames import Frame, encode, make_frame
from durable_invocations.protocol.pb import protocol_pb2 as pb
from durable_invocations.protocol.results import Value
from durable_invocations.runtime.driving import attempts
from durable_invocations.runtime.retries import RetryPolicy
from durable_invocations.runtime.store.operations import CommitEntry, CompleteAwakeable, Resume
from durable_invocations.runtime.store.views import Status
from runtime_support.endpoints.asgi_servers import hypercorn_of, run, uvicorn_of
from runtime_support.endpoints.scripted_service import Scripted
from runtime_support.runtimes.sqlite_runtime import AT_ONCE, running

BOTH = pytest.mark.parametrize("server", [uvicorn_of, hypercorn_of], ids=["http1", "http2"])
OK = Value(value=b"null")
SLOW_SECONDS = 30


@asynccontextmanager
async def driving(tmp_path, app, server=hypercorn_of, **settings):
    with server(app) as served:
        async with running(tmp_path, served.url, **settings) as driven:
            yield driven


def ended_by(
    tmp_path, app, server=hypercorn_of, *, target="S/h", key="", argument=None, **settings
):
    """The result of one invocation, its journal, and the invocation as it is shown."""

    async def inside():
        async with driving(tmp_path, app, server, **settings) as driven:
            id_ = await driven.submit(target, argument, key=key)
            result = await driven.end(id_)
            return result, driven.journal(id_), driven.store.invocation(id_)

    return run(inside())


def paused_by(tmp_path, script, server=hypercorn_of, **settings):
    """The error of an invocation whose one attempt fails."""

    async def inside():
        once = RetryPolicy(attempts=1)
        async with driving(tmp_path, Scripted(script), server, policy=once, **settings) as driven:
            id_ = await driven.submit("S/h")
            found = await driven.until(id_, Status.PAUSED)
            return found.error, [each.frame.kind.name for each in driven.journal(id_)]

    return run(inside())


@BOTH
def test_a_stream_begins_with_start_and_input_and_ends_with_output_and_end(tmp_path, server):
    seen = []

    async def script(stream, _):
        seen.append((stream.start, stream.entries))
        await stream.output(b'"done"')

    app = Scripted(script)
    result, journal, shown = ended_by(tmp_path, app, server, argument=7)
    (start, (entry,)) = seen[0]
    assert (start.debug_id, start.id) == (shown.id, ids.parse_id(shown.id))
    assert (start.known_entries, start.key, start.partial_state) == (1, "", False)
    assert (start.retry_count_since_last_stored_entry, entry.message().value) == (0, b"7")
    assert app.streams[0].headers["content-type"] == "application/vnd.restate.invocation.v3"
    assert app.streams[0].path == "/invoke/S/h"
    assert result == Value(value=b'"done"')
    assert [each.frame.kind for each in journal] == [kinds.INPUT, kinds.OUTPUT]
    assert shown.attempts == 1


async def test_the_request_is_a_post_behind_the_addresss_prefix(tmp_path):
    seen = []

    async def script(stream, _):
        seen.append((stream.method, stream.path))
        await stream.output()

    with hypercorn_of(Scripted(script)) as served:
        async with running(tmp_path, f"{served.url}/any/prefix/") as driven:
            assert await driven.end(await driven.submit("O/h", key="a/key")) == OK
    assert seen == [("POST", "/any/prefix/invoke/O/h")]


async def test_invocations_at_the_same_time_have_a_stream_each(tmp_path):
    open_streams, most, clients, all_open = Counter(), [], set(), asyncio.Event()

    async def script(stream, _):
        open_streams["now"] += 1
        clients.add(stream.client)
        most.append(open_streams["now"])
        if max(most) == 10:
            all_open.set()
        await all_open.wait()
        await stream.output()
        open_streams["now"] -= 1

    async with driving(tmp_path, Scripted(script)) as driven:
        every = [await driven.submit("S/h") for _ in range(10)]
        assert {await driven.end(each) for each in every} == {OK}
    assert max(most) == 10
    assert len(clients) == 1


@pytest.mark.parametrize("newest", [1, 2, 3, 9])
def test_the_version_is_the_newest_that_both_speak(tmp_path, newest):
    starts = []

    async def script(stream, number):
        starts.append(stream.start)
        if number == 1:
            return
        await stream.output()

    app = Scripted(script, newest)
    ended_by(tmp_path, app)
    version = min(newest, 3)
    kind = f"application/vnd.restate.invocation.v{version}"
    assert {each.headers["content-type"] for each in app.streams} == {kind}
    counts = [each.retry_count_since_last_stored_entry for each in starts]
    # Hypercorn may break off the next attempt, too, before the script sees it.
    assert (counts[0], counts[1] > 0) == (0, version > 1)


def test_an_entry_is_stored_before_its_ack_and_acked_only_if_it_asks(tmp_path):
    seen = []

    async def script(stream, _):
        await stream.send(pb.RunEntryMessage(value=b"quiet"))
        await stream.send(pb.RunEntryMessage(value=b"1"), requires_ack=True)
        ack = await stream.next()
        seen.extend((ack.code, ack.message().entry_index))
        await stream.output()

    ended_by(tmp_path, Scripted(script))
    assert seen == [kinds.ENTRY_ACK.code, 2]


async def test_a_completion_comes_on_the_open_stream(tmp_path):
    seen = []

    async def script(stream, _):
        await stream.send(pb.AwakeableEntryMessage())
        told = await stream.next()
        seen.append((told.code, told.message().entry_index, told.message().value))
        await stream.output()

    async with driving(tmp_path, Scripted(script)) as driven:
        id_ = await driven.submit("S/h")
        name = make_awakeable_id(ids.parse_id(id_), 1)
        await driven.runtime.do(CompleteAwakeable(awakeable=name, result=Value(value=b"hi")))
        assert await driven.end(id_) == OK
    assert seen == [(kinds.COMPLETION.code, 1, b"hi")]


async def test_state_is_sent_eagerly_with_the_start(tmp_path):
    seen = []

    async def script(stream, number):
        seen.append({each.key: each.value for each in stream.start.state_map})
        if number == 1:
            await stream.send(pb.SetStateEntryMessage(key=b"a", value=b"1"))
        await stream.output()

    async with driving(tmp_path, Scripted(script)) as driven:
        for key in ("k", "k", "other"):
            await driven.call("O/h", key=key)
    assert seen == [{}, {b"a": b"1"}, {}]


async def test_a_state_that_is_too_large_is_sent_in_part_and_the_rest_told_on_demand(tmp_path):
    seen = []
    large = b"x" * 70_000

    async def script(stream, number):
        if number == 1:
            values = {b"a": b"1", b"large": large}
            await stream.send(*(pb.SetStateEntryMessage(key=k, value=values[k]) for k in values))
        else:
            seen.append((stream.start.partial_state, [each.key for each in stream.start.state_map]))
            await stream.send(pb.GetStateEntryMessage(key=b"large"))
            seen.append((await stream.next()).message().value)
        await stream.output()

    async with driving(tmp_path, Scripted(script)) as driven:
        for _ in range(2):
            await driven.call("O/h", key="k")
    assert seen == [(True, [b"a"]), large]


def test_a_replay_has_stored_entries_with_results_and_asks_for_no_ack(tmp_path):
    seen = []

    async def script(stream, number):
        if number == 1:
            await stream.send(pb.RunEntryMessage(value=b"1", name="one"), requires_ack=True)
            await stream.next()
            await stream.send(pb.GetStateEntryMessage(key=b"x"))
            assert (await stream.next()).code == kinds.COMPLETION.code
            return
        seen.append(stream.start.known_entries)
        seen.extend((each.code, each.requires_ack, each.completed) for each in stream.entries)
        seen.append(stream.entries[1].message().value)
        await stream.output()

    ended_by(tmp_path, Scripted(script), target="O/h", key="k")
    assert seen == [
        3, (kinds.INPUT.code, False, False), (kinds.RUN.code, False, False),
        (kinds.GET_STATE.code, False, True), b"1",
    ]  # fmt: skip


async def test_a_suspended_invocation_holds_no_stream_and_goes_on_when_one_entry_is_complete(
    tmp_path,
):
    seen = []

    async def script(stream, number):
        if number == 1:
            sleep = pb.SleepEntryMessage(wake_up_time=2**42)
            await stream.send(pb.AwakeableEntryMessage(), sleep)
            await stream.send(pb.SuspensionMessage(entry_indexes=[1, 2]))
            return
        seen.extend(each.completed for each in stream.entries)
        await stream.output()

    async with driving(tmp_path, Scripted(script)) as driven:
        id_ = await driven.submit("S/h")
        found = await driven.until(id_, Status.SUSPENDED)
        assert found.waits == (1, 2)
        name = make_awakeable_id(ids.parse_id(id_), 1)
        await driven.runtime.do(CompleteAwakeable(awakeable=name, result=Value(value=b"hi")))
        assert await driven.end(id_) == OK
    assert seen == [False, True, False]


@BOTH
def test_a_run_that_waits_for_its_ack_may_suspend_and_goes_on_at_once(tmp_path, server):
    async def script(stream, _):
        if len(stream.entries) == 1:
            await stream.send(pb.RunEntryMessage(value=b"1"), requires_ack=True)
            await stream.send(pb.SuspensionMessage(entry_indexes=[1]))
        else:
            await stream.output()

    result, journal, _ = ended_by(tmp_path, Scripted(script), server)
    assert (result, len(journal)) == (OK, 3)


# What the handler must not send.


VIOLATIONS = {
    "no output": ([pb.EndMessage()], "ended without an Output"),
    "nothing waited for": ([pb.SuspensionMessage()], "names no entry"),
    "an unsent index": ([pb.SuspensionMessage(entry_indexes=[5])], "names entry 5"),
    "the input": ([pb.SuspensionMessage(entry_indexes=[0])], "names entry 0"),
    "a run without ack": (
        [pb.RunEntryMessage(value=b""), pb.SuspensionMessage(entry_indexes=[1])],
        "names entry 1",
    ),
    "a start": ([pb.StartMessage()], "Start"),
    "a completion": ([pb.CompletionMessage(entry_index=1)], "Completion"),
    "an entry after the output": (
        [pb.OutputEntryMessage(value=b""), pb.RunEntryMessage(value=b"")],
        "comes after the Output",
    ),
}


@pytest.mark.parametrize("case", VIOLATIONS)
def test_a_breach_of_the_protocol_fails_the_attempt(tmp_path, case):
    messages, told = VIOLATIONS[case]

    async def script(stream, _):
        await stream.send(*messages)

    error, _ = paused_by(tmp_path, script)
    assert error.code == 571
    assert told in error.message


RUBBISH = {
    "unknown type": (b"\x0f\xff\x00\x00\x00\x00\x00\x00", "0x0FFF"),
    "wrong flags": (b"\x0c\x05\x00\x01\x00\x00\x00\x00", "flags 0x0001"),
    "malformed": (encode(Frame(code=kinds.RUN.code, body=b"\xff\xff")), "cannot be parsed"),
    "huge": (b"\x0c\x05\x00\x00\xff\xff\xff\xff", "4294967295 bytes"),
    "half a message": (b"\x0c\x05\x00\x00\x00\x00\x00\x10abc", "ends within a message"),
    "half a header": (b"\x0c\x05", "ends within a message"),
    "text": (b"<html>hello</html>", "0x3C68"),
}


@BOTH
@pytest.mark.parametrize("case", RUBBISH)
def test_rubbish_fails_the_attempt_with_what_came(tmp_path, server, case):
    data, told = RUBBISH[case]

    async def script(stream, _):
        await stream.raw(data)

    error, journal = paused_by(tmp_path, script, server)
    assert told in error.message
    assert journal == ["Input"]


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        (Limits(journal_entries=3), "The journal has 4 entries, and 3 are allowed"),
        # The Input has six bytes, each Run three.
        (Limits(journal_bytes=12), "The journal has 15 bytes, and 12 are allowed"),
    ],
    ids=["entries", "bytes"],
)
async def test_a_journal_is_limited_over_all_its_attempts(tmp_path, limits, told):
    async def script(stream, number):
        runs = [pb.RunEntryMessage(value=b"1")] * (2 if number == 1 else 1)
        await stream.send(*runs, requires_ack=True)
        await stream.send(pb.SuspensionMessage(entry_indexes=[2]))

    once = RetryPolicy(attempts=1)
    async with driving(tmp_path, Scripted(script), policy=once, limits=limits) as driven:
        found = await driven.until(await driven.submit("S/h"), Status.PAUSED)
        error = found.error
        journal = [each.frame.kind.name for each in driven.journal(found.id)]
    assert (error.code, journal) == (413, ["Input", "Run", "Run"])
    assert told in error.message


def test_entries_before_a_breach_are_kept(tmp_path):
    async def script(stream, _):
        await stream.send(pb.RunEntryMessage(value=b"1"), requires_ack=True)
        await stream.next()
        await stream.send(pb.EndMessage())

    _, journal = paused_by(tmp_path, script)
    assert journal == ["Input", "Run"]


def test_an_entry_that_the_runtime_refuses_ends_the_attempt_and_later_ones_are_not_stored(tmp_path):
    async def script(stream, _):
        await stream.send(
            pb.RunEntryMessage(value=b"1"),
            pb.CallEntryMessage(service_name="Nobody", handler_name="h"),
            pb.RunEntryMessage(value=b"2"),
            pb.OutputEntryMessage(value=b""),
            pb.EndMessage(),
        )

    error, journal = paused_by(tmp_path, script)
    assert (error.code, error.index, error.kind) == (404, 2, kinds.CALL.code)
    assert "Entry 2, Call" in error.message
    assert journal == ["Input", "Run"]


@pytest.mark.parametrize(
    "sent",
    [pb.CallEntryMessage(service_name="Nobody", handler_name="h"), pb.StartMessage()],
    ids=["refused by the store", "no entry"],
)
async def test_a_stream_is_broken_off_at_what_is_invalid(tmp_path, monkeypatch, sent):
    """And not because it stays open after its end."""
    monkeypatch.setattr(attempts, "LINGER_SECONDS", 60.0)
    seen, over = [], threading.Event()

    async def script(stream, _):
        await stream.send(sent)
        with anyio.move_on_after(5):
            seen.append((await stream.next(), stream.broken))
        over.set()

    once = RetryPolicy(attempts=1)
    async with driving(tmp_path, Scripted(script), policy=once) as driven:
        found = await driven.until(await driven.submit("S/h"), Status.PAUSED)
        await asyncio.to_thread(over.wait, 10)
        assert found.attempts == 1
    assert seen == [(None, True)]


@pytest.mark.parametrize("last", ["End", "Suspension", "Error"])
async def test_the_runtime_ends_its_side_after_the_last_message(tmp_path, monkeypatch, last):
    """At once, and not because the stream stays open after its end."""
    monkeypatch.setattr(attempts, "LINGER_SECONDS", 60.0)
    messages = {
        "End": [pb.OutputEntryMessage(value=b""), pb.EndMessage()],
        "Suspension": [pb.AwakeableEntryMessage(), pb.SuspensionMessage(entry_indexes=[1])],
        "Error": [pb.ErrorMessage(code=500, message="no")],
    }
    seen, over = [], threading.Event()

    async def script(stream, _):
        await stream.send(*messages[last])
        with anyio.move_on_after(5):
            seen.append((await stream.next(), stream.broken))
        over.set()

    async with driving(tmp_path, Scripted(script), policy=RetryPolicy(attempts=1)) as driven:
        await driven.submit("S/h")
        await asyncio.to_thread(over.wait, 10)
    assert seen == [(None, False)]


def test_a_suspension_behind_a_refused_entry_is_no_suspension(tmp_path):
    async def script(stream, _):
        await stream.send(
            pb.AwakeableEntryMessage(),
            pb.OneWayCallEntryMessage(service_name="Nobody", handler_name="h"),
            pb.SuspensionMessage(entry_indexes=[1]),
        )

    error, journal = paused_by(tmp_path, script)
    assert (error.code, error.index) == (404, 2)
    assert journal == ["Input", "Awakeable"]


@pytest.mark.parametrize(
    ("status", "kind", "told"),
    [
        (404, None, "with status 404: 'because'. Serve the handler there again, or kill the in"),
        (415, None, "with status 415"),
        (500, None, "with status 500: 'because'."),
        (200, "text/html", "content type 'text/html'"),
        (200, "application/vnd.restate.invocation.v1", "and not application"),
    ],
)
def test_a_response_that_is_no_stream_fails_the_attempt(tmp_path, status, kind, told):
    async def script(stream, _):
        await stream.begin(status, kind)
        await stream.raw(b"because\n")

    error, _ = paused_by(tmp_path, script)
    assert told in error.message


@BOTH
def test_a_stream_that_ends_without_a_last_message_is_tried_again(tmp_path, server):
    async def script(stream, number):
        if number < 3:
            await stream.raw(b"")
            return
        await stream.output()

    result, _, shown = ended_by(tmp_path, Scripted(script), server)
    assert (result, shown.attempts) == (OK, 3)
    assert shown.error.message == (
        "The stream ended without a last message; the reason is unknown."
    )


async def test_a_stream_that_ends_without_a_last_message_disturbs_no_other_on_its_connection(
    tmp_path,
):
    async def script(stream, number):
        if stream.path.endswith("/other"):
            begun.set()
            await passed(ended)
        elif number < 3:
            await stream.raw(b"")
            return
        await stream.output()

    async def passed(event):
        await asyncio.get_running_loop().run_in_executor(None, event.wait, SLOW_SECONDS)

    app, begun, ended = Scripted(script), threading.Event(), threading.Event()
    async with driving(tmp_path, app) as driven:
        other = await driven.submit("S/other")
        await passed(begun)
        one = await driven.submit("S/h")
        await driven.end(one)
        ended.set()
        await driven.end(other)
        one = driven.store.invocation(one)
        other = driven.store.invocation(other)
    assert (one.attempts, other.attempts, other.error) == (3, 1, None)
    assert len({each.client for each in app.streams}) == 1


# Errors, and when they are tried again.


def test_an_error_is_kept_as_it_was_sent(tmp_path):
    async def script(stream, _):
        await stream.send(
            pb.ErrorMessage(
                code=599, message="no luck", description="told", related_entry_index=3,
                related_entry_name="three", related_entry_type=kinds.RUN.code,
            )
        )  # fmt: skip

    error, _ = paused_by(tmp_path, script)
    assert (error.code, error.message, error.description) == (599, "no luck", "told")
    assert (error.index, error.name, error.kind) == (3, "three", kinds.RUN.code)


async def test_an_exhausted_policy_pauses_until_a_person_resumes(tmp_path, caplog):
    async def script(stream, number):
        if number < 6:
            await stream.send(pb.ErrorMessage(code=500, message=f"failure {number}"))
        else:
            await stream.output()

    async with driving(tmp_path, Scripted(script), policy=AT_ONCE) as driven:
        id_ = await driven.submit("S/h")
        paused = await driven.until(id_, Status.PAUSED)
        await driven.runtime.do(Resume(id=id_))
        result = await driven.end(id_)
    assert (paused.attempts, paused.error.message) == (5, "failure 5")
    assert result == OK
    first, last = (each for each in caplog.messages if paused.id in each)
    assert first == f"{paused.id} (S/h): an attempt failed and is retried: failure 1"
    assert last.startswith(f"{paused.id} (S/h) is paused after 5 attempts, until it is resumed")
    assert last.endswith(": failure 5")


def test_progress_gives_all_attempts_again(tmp_path):
    """Six attempts fail, two in a row at most before an entry is stored."""
    counts = []

    async def script(stream, number):
        counts.append(stream.start.retry_count_since_last_stored_entry)
        if number % 2 == 0 and number < 7:
            await stream.send(pb.RunEntryMessage(value=b"1"), requires_ack=True)
            await stream.next()
        if number < 7:
            await stream.send(pb.ErrorMessage(code=500, message="again"))
            return
        assert len(stream.entries) == 4
        await stream.output()

    few = RetryPolicy(initial=0.001, factor=1, cap=0.001, attempts=3)
    result, _, shown = ended_by(tmp_path, Scripted(script), policy=few)
    assert (result, shown.attempts) == (OK, 7)
    assert max(counts) <= 2


async def test_the_errors_own_delay_overrides_the_policy(tmp_path):
    async def script(stream, number):
        if number == 1:
            await stream.send(pb.ErrorMessage(code=500, message="x", next_retry_delay=3_600_000))
        else:
            await stream.output()

    async with driving(tmp_path, Scripted(script)) as driven:
        id_ = await driven.submit("S/h")
        found = await driven.until(id_, Status.BACKING_OFF)
        wait = found.next_at - found.changed
        await driven.runtime.do(Resume(id=id_))
        result = await driven.end(id_)
    assert 3_590_000 < wait <= 3_600_000
    assert result == OK


def test_a_terminal_failure_is_not_tried_again(tmp_path):
    async def script(stream, _):
        failure = pb.Failure(code=418, message="no coffee")
        await stream.send(pb.OutputEntryMessage(failure=failure), pb.EndMessage())

    result, _, shown = ended_by(tmp_path, Scripted(script))
    assert (result.code, result.message, shown.attempts) == (418, "no coffee", 1)


async def test_what_the_database_refuses_fails_the_attempt_and_holds_up_no_other(tmp_path):
    """It would be the same again, so the invocation is not left to a runtime that dropped it."""

    async def script(stream, _):
        (given,) = stream.entries
        if given.message().value == b'"poison"':
            await stream.send(pb.RunEntryMessage(name="poison", value=b"1"), requires_ack=True)
            await stream.next()
        await stream.output()

    async with driving(tmp_path, Scripted(script)) as driven:
        run_ = driven.store.run

        def refusing(operations):
            for each in operations:
                if isinstance(each, CommitEntry) and b"poison" in each.frame.body:
                    raise ValueError("no text has that\nand more")
            return run_(operations)

        driven.store.run = refusing
        poisoned, other = [await driven.submit("S/h", each) for each in ("poison", "other")]
        found = await driven.until(poisoned, Status.PAUSED)
        other = await driven.end(other)
    assert other == OK
    assert found.error.message == (
        "Entry 1, Run (0x0C05), is refused: the database refuses it: no text has that"
    )
    assert (found.attempts, found.owner) == (5, "")


@BOTH
async def test_a_stream_that_goes_on_after_its_last_message_is_soon_broken_off(tmp_path, server):
    async def script(stream, number):
        await stream.output()
        while number == 1:
            await stream.send(pb.EndMessage())
            await asyncio.sleep(0.01)

    async with driving(tmp_path, Scripted(script), server, most=1) as driven:
        first, second = await driven.submit("S/h"), await driven.submit("S/h")
        assert (await driven.end(first), await driven.end(second)) == (OK, OK)


def test_an_error_is_logged_as_one_line_and_kept_within_bounds(tmp_path, caplog):
    async def script(stream, _):
        text = f"\x1b[31mred\nWARNING forged \u202e {'x' * 30_000}"
        await stream.send(pb.ErrorMessage(code=500, message=text, description=text))

    error, _ = paused_by(tmp_path, script)
    assert len(error.message) == len(error.description) == 10_000
    (logged,) = [each.getMessage() for each in caplog.records if "paused" in each.getMessage()]
    assert logged.isprintable()
    assert "\\x1b[31mred\\nWARNING forged \\u202e xxx" in logged
    assert len(logged) < 3_000


@BOTH
def test_a_message_that_comes_byte_by_byte_without_end_has_failed(tmp_path, server):
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
    result, _, shown = ended_by(tmp_path, app, server, **settings)
    assert (result, shown.attempts) == (OK, 2)
    assert "sent no message for" in shown.error.message


@BOTH
def test_a_long_message_may_take_longer_than_silence(tmp_path, server):
    text = b'"%s"' % (b"x" * 1_000_000)
    whole = encode(make_frame(pb.OutputEntryMessage(value=text))) + encode(
        make_frame(pb.EndMessage())
    )

    async def script(stream, _):
        for start in range(0, len(whole), 100_000):
            await stream.raw(whole[start : start + 100_000])
            await asyncio.sleep(0.05)

    settings = {"inactivity": 0.1, "abort": 0.1}
    result, _, shown = ended_by(tmp_path, Scripted(script), server, **settings)
    assert (result, shown.attempts) == (Value(value=text), 1)


async def test_a_deployment_whose_handlers_hang_holds_up_no_other(tmp_path, quick_service):
    let_go = threading.Event()

    async def script(stream, _):
        await asyncio.get_running_loop().run_in_executor(None, let_go.wait, SLOW_SECONDS)
        await stream.output()

    async with driving(tmp_path, Scripted(script), uvicorn_of, most=4) as driven:
        await driven.runtime.register(quick_service)
        hanging = [await driven.submit("S/h") for _ in range(8)]
        answer = await driven.call("Quick/echo", 7)
        let_go.set()
        result = answer, [await driven.end(each) for each in hanging]
    assert result == (7, [OK] * 8)


@pytest.fixture
def quick_service():
    quick = Service("Quick")

    @quick.handler
    async def echo(_: Context, number: int) -> int:
        return number

    with uvicorn_of(service_app(quick)) as served:
        yield served.url
