"""Exchanges over HTTP/1.1 and HTTP/2 with real servers."""

import asyncio
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
from runtime_support.endpoints.scripted_peers import asking, whole


async def mirror(scope, receive, send):
    """Send back what comes, at once where HTTP allows it."""
    kind = scope["path"].rsplit("/", 1)[-1]
    status = 404 if kind == "none" else 200
    if kind == "dies":
        raise RuntimeError("on purpose")
    if kind == "late":
        await until_all(receive)
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


async def until_all(receive):
    while (await receive()).get("more_body"):
        pass


@pytest.fixture(scope="module")
def servers():
    with ExitStack() as stack:
        yield {
            HTTP_1: stack.enter_context(uvicorn_of(mirror)).url,
            HTTP_2: stack.enter_context(hypercorn_of(mirror)).url,
        }


BOTH = pytest.mark.parametrize("version", [HTTP_1, HTTP_2])


async def opened(client, url, version, path="/x"):
    return await client.open(Address.parse(url), Request(method="POST", path=path), version)


async def exchanged(client, url, version, body, path="/invoke/A/b"):
    exchange = await opened(client, url, version, path)
    try:
        await exchange.send(body, end=True)
        head = await exchange.read_head()
        return head, await whole(exchange)
    finally:
        await exchange.close()


@BOTH
async def test_a_request_reaches_its_path_and_the_answer_comes_back(servers, version):
    async with asking(HttpClient()) as client:
        head, body = await exchanged(client, f"{servers[version]}/pre/", version, b"hello")
    assert (head.status, head.headers["content-type"]) == (200, "text/x")
    assert head.headers["x-path"] == "/pre/invoke/A/b"
    assert body == b"hello"


@BOTH
@pytest.mark.parametrize("size", [0, 1, 70_000, 5_000_000])
async def test_bodies_beyond_every_window_arrive_whole(servers, version, size):
    body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    async with asking(HttpClient()) as client:
        _, found = await exchanged_slowly(client, servers[version], version, body)
    assert found == body


async def exchanged_slowly(client, url, version, body):
    """Over HTTP/2 what comes is read while more is sent."""
    if version == HTTP_1:
        return await exchanged(client, url, version, body, "/x")
    exchange = await opened(client, url, version)
    sending = asyncio.ensure_future(exchange.send(body, end=True))
    head = await exchange.read_head()
    found = await whole(exchange)
    await sending
    await exchange.close()
    return head, found


async def test_both_bodies_flow_at_once_over_http_2(servers):
    async with asking(HttpClient()) as client:
        exchange = await opened(client, servers[HTTP_2], HTTP_2)
        heard = []
        for said in (b"one", b"two", b"three"):
            await exchange.send(said)
            heard.append(await exchange.receive())
        await exchange.send(b"", end=True)
        heard.append(await exchange.receive())
        await exchange.close()
        assert heard == [b"one", b"two", b"three", b""]


@BOTH
async def test_many_exchanges_run_side_by_side(servers, version):
    async with asking(HttpClient()) as client:
        bodies = [str(number).encode() * 50 for number in range(250)]
        every = (exchanged(client, servers[version], version, body) for body in bodies)
        assert bodies == [found for _, found in await asyncio.gather(*every)]


async def test_http_2_shares_connections_and_opens_more_when_one_is_full():
    seen = set()

    async def app(scope, receive, send):
        seen.add(scope["client"])
        await mirror(scope, receive, send)

    with hypercorn_of(app, h2_max_concurrent_streams=10) as served:
        async with asking(HttpClient()) as client:
            every = [await opened(client, served.url, HTTP_2) for _ in range(25)]
            for each in every:
                await each.send(b"here")
                assert await each.receive() == b"here"
            for each in every:
                await each.close()
            await exchanged(client, served.url, HTTP_2, b"again")
    assert len(seen) == 3


async def test_http_1_uses_a_connection_again():
    seen = []

    async def app(scope, receive, send):
        seen.append(scope["client"])
        await mirror(scope, receive, send)

    with uvicorn_of(app) as served:
        async with asking(HttpClient()) as client:
            for _ in range(3):
                await exchanged(client, served.url, HTTP_1, b"x")
    assert len(seen) == 3
    assert len(set(seen)) == 1


async def test_http_1_closes_connections_that_idle():
    with uvicorn_of(mirror) as served:
        async with asking(HttpClient()) as client:
            pool = client._http1 = Http1(idle_seconds=0.02)
            await exchanged(client, served.url, HTTP_1, b"x")
            (kept,) = (each for idle in pool._idle.values() for each in idle)
            await kept.writer.wait_closed()
            assert dict(pool._idle) == {}


async def test_http_1_does_not_fail_for_a_kept_connection_that_the_server_closed():
    with uvicorn_of(mirror) as before:
        url = before.url
        async with asking(HttpClient()) as client:
            await exchanged(client, url, HTTP_1, b"x")
            before.stop()
            with uvicorn_of(mirror, port=int(url.rsplit(":", 1)[1])) as after:
                del after


@BOTH
async def test_a_status_other_than_200_is_told(servers, version):
    async with asking(HttpClient()) as client:
        head, body = await exchanged(client, servers[version], version, b"", "/none")
    assert (head.status, body) == (404, b"")


async def test_an_answer_that_ends_in_the_middle_is_an_error(servers):
    async with asking(HttpClient()) as client:
        with pytest.raises(DeploymentUnreachableError):
            await exchanged(client, servers[HTTP_1], HTTP_1, b"abc", "/cut")


async def test_no_server_is_told_with_the_address():
    async with asking(HttpClient()) as client:
        with pytest.raises(
            DeploymentUnreachableError, match=r"http://127\.0\.0\.1:1 accepts no conn"
        ):
            await exchanged(client, "http://127.0.0.1:1", HTTP_1, b"")


async def test_a_server_of_http_1_alone_is_recognized(servers):
    async with asking(HttpClient()) as client:
        with pytest.raises(NotHttp2Error):
            await exchanged(client, servers[HTTP_1], HTTP_2, b"")


@BOTH
async def test_a_closed_exchange_says_so(servers, version):
    async with asking(HttpClient()) as client:
        exchange = await opened(client, servers[version], version)
        await exchange.send(b"x")
        await exchange.close()
        await exchange.close()
        with pytest.raises(DeploymentUnreachableError, match="was closed"):
            await exchange.read_head()


@BOTH
async def test_who_waits_for_an_aborted_exchange_gets_the_reason(servers, version):
    async with asking(HttpClient()) as client:
        exchange = await opened(client, servers[version], version, "/late")
        await exchange.send(b"x")
        waiting = [asyncio.ensure_future(exchange.read_head())]
        await asyncio.sleep(0)
        exchange.abort(DeploymentUnreachableError("enough"))
        with pytest.raises(DeploymentUnreachableError, match="enough"):
            await waiting[0]
        with pytest.raises(DeploymentUnreachableError, match="enough"):
            await exchange.receive()
        await exchange.close()
        _, found = await exchanged(client, servers[version], version, b"others go on")
    assert found == b"others go on"
