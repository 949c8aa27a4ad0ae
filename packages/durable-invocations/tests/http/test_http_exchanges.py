"""Exchanges over HTTP/1.1 and HTTP/2 with real servers."""

import asyncio
import contextlib
from contextlib import ExitStack

import pytest

from durable_invocations.runtime.http.client import HTTP_1, HTTP_2, HttpClient
from durable_invocations.runtime.http.exchange import (
    Address,
    DeploymentUnreachableError,
    NotHttp2Error,
    Request,
)
from durable_invocations.runtime.http.http1 import Http1
from runtime_support.endpoints.asgi_servers import hypercorn_of, uvicorn_of
from runtime_support.endpoints.scripted_peers import closing, read_body
from runtime_support.errors import raises_naming


async def mirror(scope, receive, send):
    """Send back the body, at once where HTTP allows it."""
    kind = scope["path"].rsplit("/", 1)[-1]
    status = 404 if kind == "none" else 200
    if kind == "dies":
        raise RuntimeError("on purpose")
    if kind == "late":
        while (await receive()).get("more_body"):
            pass
    headers = [(b"content-type", b"text/x"), (b"x-path", scope["path"].encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    more = kind not in {"late", "none"}
    while more:
        event = await receive()
        if event["type"] == "http.disconnect":
            return
        more = event.get("more_body", False)
        await send({"type": "http.response.body", "body": event["body"], "more_body": True})
    if kind == "cut":
        raise RuntimeError("on purpose")
    await send({"type": "http.response.body", "body": b"", "more_body": False})


@pytest.fixture(scope="module")
def servers():
    with ExitStack() as stack:
        yield {
            HTTP_1: stack.enter_context(uvicorn_of(mirror)).url,
            HTTP_2: stack.enter_context(hypercorn_of(mirror)).url,
        }


BOTH = pytest.mark.parametrize("version", [HTTP_1, HTTP_2])


async def open_exchange(client, url, version, path="/x"):
    return await client.open(Address.parse(url), Request(method="POST", path=path), version)


async def post(client, url, version, body, path="/invoke/A/b"):
    """The head and the body of an answer; they are read while the request is sent."""
    async with closing(await open_exchange(client, url, version, path)) as exchange:
        sending = asyncio.ensure_future(exchange.send(body, end=True))
        if version == HTTP_1:
            await sending
        head = await exchange.read_head()
        received = await read_body(exchange)
        await sending
        return head, received


@BOTH
async def test_a_request_reaches_its_path_and_the_answer_comes_back(servers, version):
    async with closing(HttpClient()) as client:
        head, body = await post(client, f"{servers[version]}/pre/", version, b"hello")
    assert (head.status, head.headers["content-type"]) == (200, "text/x")
    assert head.headers["x-path"] == "/pre/invoke/A/b"
    assert body == b"hello"


@BOTH
@pytest.mark.parametrize("size", [0, 1, 70_000, 5_000_000])
async def test_bodies_beyond_every_window_arrive_complete(servers, version, size):
    body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    async with closing(HttpClient()) as client:
        _, received = await post(client, servers[version], version, body)
    assert received == body


async def test_both_bodies_flow_at_once_over_http_2(servers):
    async with closing(HttpClient()) as client:
        exchange = await open_exchange(client, servers[HTTP_2], HTTP_2)
        for part in (b"one", b"two", b"three"):
            await exchange.send(part)
            assert await exchange.receive() == part
        await exchange.send(b"", end=True)
        assert await exchange.receive() == b""


@BOTH
async def test_many_exchanges_run_side_by_side(servers, version):
    async with closing(HttpClient()) as client:
        bodies = [str(number).encode() * 50 for number in range(250)]
        posts = (post(client, servers[version], version, body) for body in bodies)
        assert bodies == [received for _, received in await asyncio.gather(*posts)]


class CountingMirror:
    """The mirror; it keeps the address of the client for each request."""

    def __init__(self):
        self.clients = []

    async def __call__(self, scope, receive, send):
        self.clients.append(scope["client"])
        await mirror(scope, receive, send)


async def test_http_2_shares_connections_and_opens_more_when_one_is_full():
    app = CountingMirror()
    with hypercorn_of(app, h2_max_concurrent_streams=10) as server:
        async with closing(HttpClient()) as client:
            exchanges = [await open_exchange(client, server.url, HTTP_2) for _ in range(25)]
            for exchange in exchanges:
                await exchange.send(b"here")
                assert await exchange.receive() == b"here"
            for exchange in exchanges:
                await exchange.close()
            await post(client, server.url, HTTP_2, b"again")
    assert len(set(app.clients)) == 3


async def test_http_1_uses_a_connection_again():
    app = CountingMirror()
    with uvicorn_of(app) as server:
        async with closing(HttpClient()) as client:
            for _ in range(3):
                await post(client, server.url, HTTP_1, b"x")
    assert (len(app.clients), len(set(app.clients))) == (3, 1)


async def test_http_1_closes_idle_connections():
    with uvicorn_of(mirror) as server:
        async with closing(HttpClient()) as client:
            pool = client._http1 = Http1(idle_seconds=0.02)
            await post(client, server.url, HTTP_1, b"x")
            (connection,) = (connection for idle in pool._idle.values() for connection in idle)
            await connection.writer.wait_closed()
            assert dict(pool._idle) == {}


async def test_http_1_does_not_fail_for_an_idle_connection_that_the_server_closed():
    with uvicorn_of(mirror) as server:
        async with closing(HttpClient()) as client:
            await post(client, server.url, HTTP_1, b"x")
            server.stop()
            with uvicorn_of(mirror, port=int(server.url.rsplit(":", 1)[1])):
                _, body = await post(client, server.url, HTTP_1, b"y")
    assert body == b"y"


async def test_http_1_repeats_no_request_that_it_sent_in_parts():
    heads = []

    async def serve(reader, writer):
        with contextlib.closing(writer):
            heads.append(await reader.readuntil(b"\r\n\r\n"))
            if len(heads) == 1:
                await reader.readexactly(1)
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
                heads.append(await reader.readuntil(b"\r\n\r\n"))

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with closing(HttpClient()) as client:
            await post(client, url, HTTP_1, b"x")
            async with closing(await open_exchange(client, url, HTTP_1)) as exchange:
                await exchange.send(b"a part")
                with raises_naming(DeploymentUnreachableError, url):
                    await exchange.read_head()
    assert len(heads) == 2


@BOTH
async def test_a_status_other_than_200_is_returned(servers, version):
    async with closing(HttpClient()) as client:
        head, body = await post(client, servers[version], version, b"", "/none")
    assert (head.status, body) == (404, b"")


async def test_an_answer_that_ends_in_the_middle_is_an_error(servers):
    async with closing(HttpClient()) as client:
        with raises_naming(DeploymentUnreachableError, servers[HTTP_1]):
            await post(client, servers[HTTP_1], HTTP_1, b"abc", "/cut")


async def test_an_address_without_a_server_is_unreachable():
    async with closing(HttpClient()) as client:
        with raises_naming(DeploymentUnreachableError, "http://127.0.0.1:1"):
            await post(client, "http://127.0.0.1:1", HTTP_1, b"")


async def test_a_server_of_http_1_alone_is_recognized(servers):
    async with closing(HttpClient()) as client:
        with pytest.raises(NotHttp2Error):
            await post(client, servers[HTTP_1], HTTP_2, b"")


@BOTH
async def test_a_closed_exchange_cannot_be_read(servers, version):
    async with closing(HttpClient()) as client:
        exchange = await open_exchange(client, servers[version], version)
        await exchange.send(b"x")
        await exchange.close()
        await exchange.close()
        with raises_naming(DeploymentUnreachableError, servers[version], "exchange"):
            await exchange.read_head()


@BOTH
async def test_calls_of_an_aborted_exchange_raise_the_reason(servers, version):
    async with closing(HttpClient()) as client:
        async with closing(
            await open_exchange(client, servers[version], version, "/late")
        ) as exchange:
            await exchange.send(b"x")
            waiting = asyncio.ensure_future(exchange.read_head())
            await asyncio.sleep(0)
            exchange.abort(DeploymentUnreachableError("enough"))
            for call in (waiting, exchange.receive()):
                with raises_naming(DeploymentUnreachableError, "enough"):
                    await call
        _, body = await post(client, servers[version], version, b"others go on")
    assert body == b"others go on"
