"""Streams in full duplex, and invalid requests, against the app in process."""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import asynccontextmanager

import pytest

from durable_invocations import Context, Service, service_app
from durable_invocations.protocol import kinds
from durable_invocations.protocol.failures import Failure
from durable_invocations.protocol.frames import encode, make_frame
from durable_invocations.protocol.pb import protocol_pb2 as pb
from durable_invocations.serving.app import ServiceEndpoint
from durable_invocations.serving.stream import Options
from runtime_support.endpoints.asgi_stream import (
    completion,
    make_scope,
    names,
    open_request,
    request,
)
from runtime_support.errors import assert_names
from runtime_support.journal_frames import ack

NEWEST_FIRST = ", ".join(
    f"application/vnd.restate.endpointmanifest.v{version}+json" for version in (2, 1)
)
INPUT = make_frame(pb.InputEntryMessage(value=b"1"))
ended = []


@pytest.fixture(autouse=True)
def _fresh():
    ended.clear()


def start(known=1):
    return make_frame(pb.StartMessage(id=b"i" * 16, debug_id="inv_1i", known_entries=known))


service = Service("S")


@service.handler
async def steps(ctx: Context, count: int) -> list:
    """A run, then two calls awaited in the order of their making, then a sleep."""
    try:
        first = await ctx.run("first", lambda: 1)
        one, two = ctx.call("T", "one"), ctx.call("T", "two")
        results = [first, await one, await two]
        await ctx.sleep(1)
        return results
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


def open_duplex(handler, app=APP):
    return open_request(app, f"/invoke/S/{handler}", http="2")


@asynccontextmanager
async def begin(handler, app=APP):
    """A stream in full duplex, whose replay is the input alone."""
    async with open_duplex(handler, app) as stream:
        stream.send(start(), INPUT)
        yield stream


async def receive_calls(stream):
    """Receive the run and the two calls of `steps`."""
    assert names([await stream.receive()]) == ["Run"]
    stream.send(ack(1))
    assert names([await stream.receive(), await stream.receive()]) == ["Call", "Call"]


async def test_entries_and_completions_flow_at_the_same_time():
    async with begin("steps") as stream:
        await receive_calls(stream)
        stream.send(completion(3, b'"two"'))
        stream.send(completion(2, b'"one"'))
        assert names([await stream.receive()]) == ["Sleep"]
        stream.send(completion(4))
        output, end = await stream.receive(), await stream.receive()
        assert output.message().value == b'[1,"one","two"]'
        assert names([end]) == ["End"]
        assert not stream.ended
        stream.send(more=False)
        assert await stream.receive() is None
        assert (stream.status, stream.ended) == (200, True)


async def test_a_handler_waits_for_the_ack_of_its_run():
    async with begin("steps") as stream:
        await stream.receive()
        with pytest.raises(asyncio.TimeoutError):
            await stream.receive(seconds=0.05)
        stream.send(ack(1))
        assert names([await stream.receive()]) == ["Call"]


async def test_a_handler_suspends_when_the_runtime_ends_its_side():
    async with begin("steps") as stream:
        await receive_calls(stream)
        stream.send(more=False)
        assert (await stream.receive()).message().entry_indexes == [2]
        assert await stream.receive() is None
    assert ended == [1]


async def test_completions_may_come_before_the_handler_replays_their_entries():
    calls = [
        make_frame(pb.CallEntryMessage(service_name="T", handler_name=name))
        for name in ("one", "two")
    ]

    async with open_duplex("steps") as stream:
        run = make_frame(pb.RunEntryMessage(name="first", value=b"1"))
        results = completion(3, b"3"), completion(2, b"2"), completion(3, b"9")
        stream.send(start(4), INPUT, run, *calls, *results)
        assert names([await stream.receive()]) == ["Sleep"]
        stream.send(completion(4), more=False)
        output, end = await stream.receive_all()
        assert output.message().value == b"[1,2,3]"
        assert names([end]) == ["End"]


@pytest.mark.parametrize("first", [1, 2])
async def test_the_first_completion_that_comes_is_chosen(first):
    async with begin("picks") as stream:
        await stream.receive()
        await stream.receive()
        stream.send(completion(first, b"1"), completion(3 - first, b"1"))
        choice = await stream.receive()
        assert (choice.code, choice.requires_ack) == (0xFC02, True)
        stream.send(ack(3), more=False)
        output, _ = await stream.receive_all()
        assert output.message().value == (b'"one"' if first == 1 else b'"two"')


async def test_a_failure_reaches_the_handler():
    async with begin("steps") as stream:
        await receive_calls(stream)
        stream.send(completion(2, Failure(code=409, message="canceled")), more=False)
        output, end = await stream.receive_all()
        assert output.message().failure == pb.Failure(code=409, message="canceled")
        assert names([end]) == ["End"]


@pytest.mark.parametrize(
    ("frame", "values"),
    [
        (completion(9), ["entry 9", "empty"]),
        (completion(1), ["entry 1", "empty"]),
        (ack(9), ["entry 9", "only 2"]),
        (INPUT, [kinds.INPUT, "replay"]),
        (make_frame(pb.EndMessage()), [kinds.END, "replay"]),
    ],
)
async def test_a_breach_by_the_runtime_ends_the_handler_with_an_error(frame, values):
    async with begin("steps") as stream:
        await stream.receive()
        stream.send(frame)
        error = (await stream.receive()).message()
        assert error.code == 571
        assert_names(error.message, *values)
        stream.send(more=False)
        assert await stream.receive() is None
    assert ended == [1]


@pytest.mark.parametrize("handler", ["steps", "works"])
async def test_nothing_is_left_when_the_runtime_hangs_up(handler):
    async with begin(handler) as stream:
        await asyncio.sleep(0)
        stream.hang_up()
        await asyncio.wait_for(stream.task, 5)
        assert not stream.ended


async def test_nothing_is_left_when_the_runtime_hangs_up_before_the_replay():
    async with open_duplex("steps") as stream:
        stream.send(start(3), INPUT)
        stream.hang_up()
        await asyncio.wait_for(stream.task, 5)
        assert stream.status is None


async def test_a_handler_ends_with_a_connection_whose_request_has_ended():
    async with open_request(APP, "/invoke/S/works") as stream:
        stream.send(start(), INPUT, more=False)
        await asyncio.wait_for(stream.answering.wait(), 5)
        stream.hang_up()
        await asyncio.wait_for(stream.task, 5)


async def test_a_function_that_blocks_is_left_behind_when_the_runtime_hangs_up():
    async with begin("blocks") as stream:
        await asyncio.sleep(0.05)
        stream.hang_up()
        await asyncio.wait_for(stream.task, 5)
        released.set()


async def test_a_server_that_stops_ends_the_handler():
    async with begin("steps") as stream:
        await stream.receive()
        stream.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stream.task
        stream.task = asyncio.create_task(asyncio.sleep(0))
    assert ended == [1]


async def test_the_endpoint_does_not_wait_for_a_runtime_that_never_ends_its_side():
    app = ServiceEndpoint({"S": service}, Options(drain=0.05))

    async with open_request(app, "/invoke/S/steps", http="2") as stream:
        stream.send(start(9), make_frame(pb.EndMessage()))
        await stream.receive_all()
        assert (stream.status, stream.ended) == (200, True)


async def test_a_handler_that_lingers_is_named_in_the_log(caplog):
    other, entered = Service("S"), asyncio.Event()

    @other.handler
    async def lingers(ctx: Context) -> None:
        entered.set()
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.05)

    app = ServiceEndpoint({"S": other}, Options(grace=0.01))

    async with begin("lingers", app) as stream:
        await asyncio.wait_for(entered.wait(), 5)
        stream.hang_up()
        await asyncio.wait_for(stream.task, 5)
    assert_names(caplog.messages[-1], "S.lingers")


async def test_a_handler_that_has_stopped_waiting_is_not_suspended():
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

    async with begin("gives_up", service_app(other)) as stream:
        await asyncio.wait_for(gave_up.wait(), 5)
        assert names([await stream.receive()]) == ["Sleep"]
        stream.send(more=False)
        with pytest.raises(asyncio.TimeoutError):
            await stream.receive(seconds=0.03)
        goes_on.set()
        assert names(await stream.receive_all()) == ["Output", "End"]


@pytest.mark.parametrize("at", ["http.response.start", "http.response.body"])
async def test_an_error_while_sending_ends_the_handler(at):
    """So a server may show that the runtime has disconnected."""
    before = asyncio.all_tasks()
    requests = asyncio.Queue()
    body = encode(start()) + encode(INPUT)
    requests.put_nowait({"type": "http.request", "body": body, "more_body": True})

    async def send(message):
        if message["type"] == at:
            raise OSError("disconnected")

    await asyncio.wait_for(APP(make_scope("/invoke/S/steps", http="2"), requests.get, send), 5)
    assert asyncio.all_tasks() == before
    assert ended == ([1] if at == "http.response.body" else [])


async def test_the_entries_of_a_handler_are_sent_while_it_works():
    other = Service("S")

    @other.handler
    async def tells(ctx: Context) -> None:
        ctx.send("T", "h")
        await asyncio.sleep(60)

    async with open_request(service_app(other), "/invoke/S/tells") as stream:
        stream.send(start(), INPUT, more=False)
        assert names([await stream.receive()]) == ["OneWayCall"]


async def test_nothing_is_answered_over_http_1_before_the_request_has_ended():
    async with open_request(APP, "/invoke/S/steps") as stream:
        stream.send(start(), INPUT)
        with pytest.raises(asyncio.TimeoutError):
            await stream.receive(seconds=0.05)
        assert not stream.answering.is_set()
        stream.send(more=False)
        assert names(await stream.receive_all()) == ["Run", "Suspension"]


@pytest.mark.parametrize("size", [1, 7, 64])
async def test_any_split_of_the_bytes_is_read(size):
    data = encode(start()) + encode(INPUT)

    async with open_request(APP, "/invoke/S/steps") as stream:
        for at in range(0, len(data), size):
            stream.send(data=data[at : at + size])
        stream.send(more=False)
        assert names(await stream.receive_all()) == ["Run", "Suspension"]


@pytest.mark.parametrize("http", ["1.1", "2"])
async def test_a_request_that_ends_within_a_message_is_a_breach(http):
    async with open_request(APP, "/invoke/S/steps", http=http) as stream:
        stream.send(start(), INPUT)
        stream.send(data=encode(ack(1))[:-1], more=False)
        error = (await stream.receive_all())[-1].message()
    assert error.code == 571
    assert_names(error.message, "9 bytes")


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("prefix", ["", "/orders/v1", "/invoke"])
async def test_a_handler_is_invoked_below_any_prefix_in_the_requested_version(prefix, version):
    body = encode(start()) + encode(INPUT)
    path = f"{prefix}/invoke/S/steps"
    status, headers, _ = await request(APP, path, body, version=version)
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
async def test_another_path_is_not_found(path):
    status, headers, body = await request(APP, path, b"x")
    assert status == 404
    assert path in body.decode()
    assert "x-restate-server" in headers


async def test_a_server_may_leave_out_the_path_as_it_was_sent():
    async def bare(scope, *ends):
        await APP({**scope, "raw_path": None}, *ends)

    for path, expected in (("/invoke/S/steps", 200), ("/invoke/S/none", 404)):
        status, *_ = await request(bare, path, encode(start()) + encode(INPUT))
        assert status == expected


@pytest.mark.parametrize(
    "kind",
    [
        *("", "application/json", "application/vnd.restate.invocation.v0"),
        *("application/vnd.restate.invocation.v4", "application/vnd.restate.invocation.v3+json"),
    ],
)
async def test_another_content_type_is_refused(kind):
    status, _, body = await request(APP, "/invoke/S/steps", headers={"content-type": kind})
    assert status == 415
    assert b"application/vnd.restate.invocation.v3" in body


@pytest.mark.parametrize(
    ("method", "path", "allowed"), [("GET", "/invoke/S/steps", "POST"), ("PUT", "/discover", "GET")]
)
async def test_another_method_is_refused(method, path, allowed):
    status, headers, _ = await request(APP, path, method=method)
    assert (status, headers["allow"]) == (405, allowed)


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
async def test_the_manifest_is_negotiated(path, accept, version, http, mode):
    headers = {} if accept is None else {"accept": accept}
    status, headers, body = await request(APP, path, method="GET", http=http, headers=headers)
    assert status == 200
    kind = f"application/vnd.restate.endpointmanifest.v{version}+json"
    assert headers["content-type"] == kind
    manifest = json.loads(body)
    assert manifest["protocolMode"] == mode
    assert [described["name"] for described in manifest["services"]] == ["S"]


async def test_a_manifest_of_an_unknown_version_is_refused():
    headers = {"accept": "application/vnd.restate.endpointmanifest.v9+json"}
    status, _, body = await request(APP, "/discover", method="GET", headers=headers)
    assert status == 406
    assert b"endpointmanifest.v2+json" in body


@pytest.mark.parametrize(
    "headers", [{"origin": "http://evil.example"}, {"host": "evil.example"}], ids=str
)
async def test_foreign_pages_and_rebound_names_are_refused(headers):
    for path, method in (("/invoke/S/steps", "POST"), ("/discover", "GET")):
        status, *_ = await request(APP, path, method=method, headers=headers)
        assert status == 403


async def test_an_app_may_allow_other_hosts_and_origins():
    app = service_app(service, hosts=["orders.internal"], origins=["https://ops.example"])
    for headers in ({"host": "orders.internal"}, {"origin": "https://ops.example"}):
        status, *_ = await request(app, "/discover", method="GET", headers=headers)
        assert status == 200
