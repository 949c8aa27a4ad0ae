"""Streams in full duplex, and requests that are none, against the app in process."""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import asynccontextmanager

import pytest

from durable_invocations import Context, Service, service_app
from durable_invocations.protocol.failures import Failure
from durable_invocations.protocol.frames import encode, make_frame
from durable_invocations.protocol.pb import protocol_pb2 as pb
from durable_invocations.serving.app import ServiceEndpoint
from durable_invocations.serving.stream import Options
from runtime_support.endpoints.asgi_stream import ack, asked, line, names, scope_of, told

NEWEST_FIRST = ", ".join(
    f"application/vnd.restate.endpointmanifest.v{version}+json" for version in (2, 1)
)
INPUT = make_frame(pb.InputEntryMessage(value=b"1"))
ended = []


def start(known=1):
    return make_frame(pb.StartMessage(id=b"i" * 16, debug_id="inv_1i", known_entries=known))


service = Service("S")


@service.handler
async def steps(ctx: Context, count: int) -> list:
    """A run, then two calls awaited in the order of their making, then a sleep."""
    try:
        first = await ctx.run("first", lambda: 1)
        one, two = ctx.call("T", "one"), ctx.call("T", "two")
        got = [first, await one, await two]
        await ctx.sleep(1)
        return got
    finally:
        ended.append(count)


@service.handler
async def works(ctx: Context) -> None:
    await asyncio.sleep(60)


@service.handler
async def blocks(ctx: Context) -> None:
    await ctx.run("block", released.wait, 10)


@service.handler
async def picks(ctx: Context) -> str:
    return (await ctx.select(one=ctx.call("T", "one"), two=ctx.call("T", "two")))[0]


released = threading.Event()
APP = service_app(service)


def in_duplex(handler):
    return line(APP, f"/invoke/S/{handler}", http="2")


@asynccontextmanager
async def underway(handler, app=APP):
    """A stream in full duplex, whose replay is the input alone."""
    async with line(app, f"/invoke/S/{handler}", http="2") as made:
        made.say(start(), INPUT)
        yield made


async def test_entries_go_out_and_completions_come_meanwhile():
    async with underway("steps") as made:
        assert (await made.hear()).message().name == "first"
        made.say(ack(1))
        assert names([await made.hear(), await made.hear()]) == ["Call", "Call"]
        made.say(told(3, b'"two"'))
        made.say(told(2, b'"one"'))
        assert names([await made.hear()]) == ["Sleep"]
        made.say(told(4))
        output, end = await made.hear(), await made.hear()
        assert output.message().value == b'[1,"one","two"]'
        assert names([end]) == ["End"]
        assert not made.ended
        made.say(more=False)
        assert await made.hear() is None
        assert made.ended
        assert made.status == 200


async def test_a_handler_waits_for_the_ack_of_its_run():
    async with underway("steps") as made:
        await made.hear()
        with pytest.raises(asyncio.TimeoutError):
            await made.hear(seconds=0.05)
        made.say(ack(1))
        assert names([await made.hear()]) == ["Call"]


async def test_it_suspends_when_the_runtime_says_no_more():
    ended.clear()
    async with underway("steps") as made:
        await made.hear()
        made.say(ack(1))
        await made.hear()
        await made.hear()
        made.say(more=False)
        assert (await made.hear()).message().entry_indexes == [2]
        assert await made.hear() is None
    assert ended == [1]


async def test_completions_may_come_before_the_handler_replays_their_entries():
    calls = [
        make_frame(pb.CallEntryMessage(service_name="T", handler_name=name))
        for name in ("one", "two")
    ]

    async with in_duplex("steps") as made:
        run = make_frame(pb.RunEntryMessage(name="first", value=b"1"))
        made.say(start(4), INPUT, run, *calls, told(3, b"3"), told(2, b"2"), told(3, b"9"))
        assert names([await made.hear()]) == ["Sleep"]
        made.say(told(4), more=False)
        output, end = await made.rest()
        assert output.message().value == b"[1,2,3]"
        assert names([end]) == ["End"]


@pytest.mark.parametrize("first", [1, 2])
async def test_the_first_completion_that_comes_is_chosen(first):
    async with underway("picks") as made:
        await made.hear()
        await made.hear()
        made.say(told(first, b"1"), told(3 - first, b"1"))
        choice = await made.hear()
        assert (choice.code, choice.requires_ack) == (0xFC02, True)
        made.say(ack(3), more=False)
        output, _ = await made.rest()
        assert output.message().value == (b'"one"' if first == 1 else b'"two"')


async def test_a_failure_reaches_the_handler():
    async with underway("steps") as made:
        await made.hear()
        made.say(ack(1))
        await made.hear()
        await made.hear()
        made.say(told(2, Failure(code=409, message="canceled")), more=False)
        output, end = await made.rest()
        assert output.message().failure == pb.Failure(code=409, message="canceled")
        assert names([end]) == ["End"]


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (told(9), "completed entry 9"),
        (told(1), "completed entry 1"),
        (ack(9), "acknowledged entry 9"),
        (INPUT, "sent Input (0x0400) after the replay"),
        (make_frame(pb.EndMessage()), "sent End (0x0005) after the replay"),
    ],
)
async def test_a_runtime_that_breaks_the_protocol_is_told_and_the_handler_ends(said, why):
    ended.clear()
    async with underway("steps") as made:
        await made.hear()
        made.say(said)
        error = (await made.hear()).message()
        assert error.code == 571
        assert why in error.message
        made.say(more=False)
        assert await made.hear() is None
    assert ended == [1]


@pytest.mark.parametrize("handler", ["steps", "works"])
async def test_nothing_is_left_when_the_runtime_hangs_up(handler):
    async with underway(handler) as made:
        await asyncio.sleep(0)
        made.hang_up()
        await asyncio.wait_for(made.task, 5)
        assert not made.ended


async def test_nothing_is_left_when_it_hangs_up_before_the_replay():
    async with in_duplex("steps") as made:
        made.say(start(3), INPUT)
        made.hang_up()
        await asyncio.wait_for(made.task, 5)
        assert made.status is None


async def test_a_request_that_is_read_whole_is_watched_still():
    async with line(APP, "/invoke/S/works") as made:
        made.say(start(), INPUT, more=False)
        await asyncio.wait_for(made.begun.wait(), 5)
        made.hang_up()
        await asyncio.wait_for(made.task, 5)


async def test_a_function_that_blocks_is_left_behind_when_the_runtime_hangs_up():
    async with underway("blocks") as made:
        await asyncio.sleep(0.05)
        made.hang_up()
        await asyncio.wait_for(made.task, 5)
        released.set()


async def test_a_server_that_stops_ends_the_handler():
    ended.clear()
    async with underway("steps") as made:
        await made.hear()
        made.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await made.task
        made.task = asyncio.create_task(asyncio.sleep(0))
    assert ended == [1]


async def test_a_runtime_that_never_says_it_is_done_is_not_waited_for():
    app = ServiceEndpoint({"S": service}, Options(drain=0.05))

    async with line(app, "/invoke/S/steps", http="2") as made:
        made.say(start(9), make_frame(pb.EndMessage()))
        await made.rest()
        assert (made.status, made.ended) == (200, True)


async def test_a_handler_that_will_not_end_is_named_in_the_log(caplog):
    other, begun = Service("S"), asyncio.Event()

    @other.handler
    async def lingers(ctx: Context) -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.05)

    app = ServiceEndpoint({"S": other}, Options(grace=0.01))

    async with underway("lingers", app) as made:
        await asyncio.wait_for(begun.wait(), 5)
        made.hang_up()
        await asyncio.wait_for(made.task, 5)
    assert "(S.lingers) is still running after it was canceled" in caplog.text


async def test_a_handler_that_waits_no_longer_is_not_suspended():
    other, gave_up, goes_on = Service("S"), asyncio.Event(), asyncio.Event()

    @other.handler
    async def gives_up(ctx: Context) -> str:
        asyncio.get_running_loop().call_later(0.01, asyncio.current_task().cancel)
        try:
            await ctx.sleep(60)
        except asyncio.CancelledError:
            gave_up.set()
            await goes_on.wait()
        return "gave up"

    async with underway("gives_up", service_app(other)) as made:
        await asyncio.wait_for(gave_up.wait(), 5)
        assert names([await made.hear()]) == ["Sleep"]
        made.say(more=False)
        with pytest.raises(asyncio.TimeoutError):
            await made.hear(seconds=0.03)
        goes_on.set()
        assert names(await made.rest()) == ["Output", "End"]


@pytest.mark.parametrize("at", ["http.response.start", "http.response.body"])
async def test_a_server_may_say_by_an_error_that_the_runtime_is_gone(at):
    ended.clear()
    before = asyncio.all_tasks()
    said = asyncio.Queue()
    body = encode(start()) + encode(INPUT)
    said.put_nowait({"type": "http.request", "body": body, "more_body": True})

    async def send(message):
        if message["type"] == at:
            raise OSError("gone")

    await asyncio.wait_for(APP(scope_of("/invoke/S/steps", http="2"), said.get, send), 5)
    assert asyncio.all_tasks() == before
    assert ended == ([1] if at == "http.response.body" else [])


async def test_what_a_handler_did_is_sent_while_it_works():
    other = Service("S")

    @other.handler
    async def tells(ctx: Context) -> None:
        ctx.send("T", "h")
        await asyncio.sleep(60)

    async with line(service_app(other), "/invoke/S/tells") as made:
        made.say(start(), INPUT, more=False)
        assert names([await made.hear()]) == ["OneWayCall"]


async def test_nothing_is_answered_over_http_1_before_the_request_has_ended():
    async with line(APP, "/invoke/S/steps") as made:
        made.say(start(), INPUT)
        with pytest.raises(asyncio.TimeoutError):
            await made.hear(seconds=0.05)
        begun = made.begun.is_set()
        made.say(more=False)
        assert (begun, names(await made.rest())) == (False, ["Run", "Suspension"])


@pytest.mark.parametrize("size", [1, 7, 64])
async def test_any_split_of_the_bytes_is_read(size):
    data = b"".join(encode(each) for each in (start(), INPUT))

    async with line(APP, "/invoke/S/steps") as made:
        for at in range(0, len(data), size):
            made.say(data=data[at : at + size])
        made.say(more=False)
        assert names(await made.rest()) == ["Run", "Suspension"]


@pytest.mark.parametrize("http", ["1.1", "2"])
async def test_a_request_that_ends_within_a_message_is_a_breach(http):
    async with line(APP, "/invoke/S/steps", http=http) as made:
        made.say(start(), INPUT)
        made.say(data=encode(ack(1))[:-1], more=False)
        error = (await made.rest())[-1].message()
    assert (error.code, "within a message" in error.message) == (571, True)


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("prefix", ["", "/orders/v1", "/invoke"])
def test_a_handler_is_invoked_under_any_prefix_in_the_version_that_is_asked_for(prefix, version):
    body = encode(start()) + encode(INPUT)
    path = f"{prefix}/invoke/S/steps"
    status, headers, _ = asyncio.run(asked(APP, path, body, version=version))
    assert status == 200
    assert headers["content-type"] == f"application/vnd.restate.invocation.v{version}"
    assert headers["x-restate-server"].startswith("durable-invocations/")


@pytest.mark.parametrize(
    "path",
    [
        *("/", "/S/steps", "/invoke/S", "/invoke/S/", "/invoke/S/none", "/invoke/T/steps"),
        *("/invoke/S/steps/more", "/invoked/S/steps", "/discover/S", "/invoke/S%2Fsteps"),
        *("/invoke%2FS/steps", "/invoke/S/discover", "/invoke/T/discovery", "/discover"),
    ],
)
def test_another_path_is_not_found(path):
    status, headers, body = asyncio.run(asked(APP, path, b"x"))
    assert status == 404
    assert path in body.decode()
    assert "x-restate-server" in headers


async def test_a_server_may_leave_out_the_path_as_it_was_sent():
    async def bare(scope, *ends):
        await APP({**scope, "raw_path": None}, *ends)

    paths = ("/invoke/S/steps", "/invoke/S/none")
    found = [(await asked(bare, path, encode(start()) + encode(INPUT)))[0] for path in paths]
    assert found == [200, 404]


@pytest.mark.parametrize(
    "kind",
    [
        *("", "application/json", "application/vnd.restate.invocation.v0"),
        *("application/vnd.restate.invocation.v4", "application/vnd.restate.invocation.v3+json"),
    ],
)
def test_another_content_type_is_refused(kind):
    headers = {"content-type": kind}
    status, _, body = asyncio.run(asked(APP, "/invoke/S/steps", headers=headers))
    assert status == 415
    assert b"application/vnd.restate.invocation.v3" in body


@pytest.mark.parametrize(("method", "path"), [("GET", "/invoke/S/steps"), ("PUT", "/discover")])
def test_another_method_is_refused(method, path):
    status, headers, _ = asyncio.run(asked(APP, path, method=method))
    assert status == 405
    assert headers["allow"] in {"GET", "POST"}


@pytest.mark.parametrize("path", ["/discover", "/discovery", "/orders/discover"])
@pytest.mark.parametrize(
    ("accept", "version"),
    [
        (None, 1),
        ("*/*", 1),
        ("application/vnd.restate.endpointmanifest.v1+json", 1),
        (NEWEST_FIRST, 2),
    ],
)
@pytest.mark.parametrize(("http", "mode"), [("1.1", "REQUEST_RESPONSE"), ("2", "BIDI_STREAM")])
def test_the_manifest_is_negotiated(path, accept, version, http, mode):
    headers = {} if accept is None else {"accept": accept}
    status, answered, body = asyncio.run(asked(APP, path, method="GET", http=http, headers=headers))
    assert status == 200
    kind = f"application/vnd.restate.endpointmanifest.v{version}+json"
    assert answered["content-type"] == kind
    told_of = json.loads(body)
    assert told_of["protocolMode"] == mode
    assert [each["name"] for each in told_of["services"]] == ["S"]


def test_a_manifest_that_cannot_be_told_is_refused():
    headers = {"accept": "application/vnd.restate.endpointmanifest.v9+json"}
    status, _, body = asyncio.run(asked(APP, "/discover", method="GET", headers=headers))
    assert status == 406
    assert b"endpointmanifest.v2+json" in body


@pytest.mark.parametrize(
    "headers", [{"origin": "http://evil.example"}, {"host": "evil.example"}], ids=str
)
def test_foreign_pages_and_rebound_names_are_refused(headers):
    for path, method in (("/invoke/S/steps", "POST"), ("/discover", "GET")):
        assert asyncio.run(asked(APP, path, method=method, headers=headers))[0] == 403


def test_a_deployment_behind_another_name_says_so():
    app = service_app(service, hosts=["orders.internal"], origins=["https://ops.example"])
    for headers in ({"host": "orders.internal"}, {"origin": "https://ops.example"}):
        assert asyncio.run(asked(app, "/discover", method="GET", headers=headers))[0] == 200
