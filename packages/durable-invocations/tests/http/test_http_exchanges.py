"""Exchanges over HTTP/1.1 and HTTP/2 with real servers."""

import asyncio
from contextlib import ExitStack

import pytest
from asgiservers import hypercorn_of, run, uvicorn_of

from durable_invocations.runtime.http.client import HTTP_1, HTTP_2, HttpClient
from durable_invocations.runtime.http.exchange import (
    Address,
    DeploymentUnreachableError,
    NotHttp2Error,
    Request,
)
from durable_invocations.runtime.http.http1 import Http1


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


async def exchanged(client, url, version, body, path="/invoke/A/b"):
    exchange = await client.open(Address.parsed(url), Request(method="POST", path=path), version)
    try:
        await exchange.send(body, end=True)
        head = await exchange.head()
        return head, await whole(exchange)
    finally:
        await exchange.close()


async def whole(exchange):
    found = bytearray()
    while part := await exchange.receive():
        found += part
    return bytes(found)


def with_client(work):
    async def inside():
        client = HttpClient()
        try:
            return await work(client)
        finally:
            await client.close()

    return run(inside())


@BOTH
def test_a_request_reaches_its_path_and_the_answer_comes_back(servers, version):
    head, body = with_client(
        lambda client: exchanged(client, f"{servers[version]}/pre/", version, b"hello")
    )
    assert (head.status, head.headers["content-type"]) == (200, "text/x")
    assert head.headers["x-path"] == "/pre/invoke/A/b"
    assert body == b"hello"


@BOTH
@pytest.mark.parametrize("size", [0, 1, 70_000, 5_000_000])
def test_bodies_beyond_every_window_arrive_whole(servers, version, size):
    body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    _, found = with_client(lambda client: exchanged_slowly(client, servers[version], version, body))
    assert found == body


async def exchanged_slowly(client, url, version, body):
    """Over HTTP/2 what comes is read while more is sent."""
    if version == HTTP_1:
        return await exchanged(client, url, version, body, "/x")
    exchange = await client.open(Address.parsed(url), Request(method="POST", path="/x"), version)
    sending = asyncio.ensure_future(exchange.send(body, end=True))
    head = await exchange.head()
    found = await whole(exchange)
    await sending
    await exchange.close()
    return head, found


def test_both_bodies_flow_at_once_over_http_2(servers):
    async def talk(client):
        exchange = await client.open(
            Address.parsed(servers[HTTP_2]), Request(method="POST", path="/x"), HTTP_2
        )
        heard = []
        for said in (b"one", b"two", b"three"):
            await exchange.send(said)
            heard.append(await exchange.receive())
        await exchange.send(b"", end=True)
        heard.append(await exchange.receive())
        await exchange.close()
        return heard

    assert with_client(talk) == [b"one", b"two", b"three", b""]


@BOTH
def test_many_exchanges_run_side_by_side(servers, version):
    async def many(client):
        bodies = [str(number).encode() * 50 for number in range(250)]
        every = (exchanged(client, servers[version], version, body) for body in bodies)
        return bodies == [found for _, found in await asyncio.gather(*every)]

    assert with_client(many)


def test_http_2_shares_connections_and_opens_more_when_one_is_full():
    seen = set()

    async def app(scope, receive, send):
        seen.add(scope["client"])
        await mirror(scope, receive, send)

    async def work(client):
        url = Address.parsed(served.url)
        opened = [
            await client.open(url, Request(method="POST", path="/x"), HTTP_2) for _ in range(25)
        ]
        for each in opened:
            await each.send(b"here")
            assert await each.receive() == b"here"
        for each in opened:
            await each.close()
        await exchanged(client, served.url, HTTP_2, b"again")

    with hypercorn_of(app, h2_max_concurrent_streams=10) as served:
        with_client(work)
    assert len(seen) == 3


def test_http_1_uses_a_connection_again():
    seen = []

    async def app(scope, receive, send):
        seen.append(scope["client"])
        await mirror(scope, receive, send)

    async def work(client):
        for _ in range(3):
            await exchanged(client, served.url, HTTP_1, b"x")

    with uvicorn_of(app) as served:
        with_client(work)
    assert len(seen) == 3
    assert len(set(seen)) == 1


def test_http_1_closes_connections_that_idle():
    async def inside():
        pool = Http1(idle_seconds=0.02)
        client = HttpClient()
        client._http1 = pool
        await exchanged(client, served.url, HTTP_1, b"x")
        (kept,) = (each for idle in pool._idle.values() for each in idle)
        await kept.writer.wait_closed()
        held = dict(pool._idle)
        await client.close()
        return held

    with uvicorn_of(mirror) as served:
        assert run(inside()) == {}


def test_http_1_does_not_fail_for_a_kept_connection_that_the_server_closed():
    async def work(client):
        await exchanged(client, url, HTTP_1, b"x")
        before.stop()
        with uvicorn_of(mirror, port=int(url.rsplit(":", 1)[1])) as after:
            del after
        return True

    with uvicorn_of(mirror) as before:
        url = before.url
        assert with_client(work)


@BOTH
def test_a_status_other_than_200_is_told(servers, version):
    head, body = with_client(
        lambda client: exchanged(client, servers[version], version, b"", "/none")
    )
    assert (head.status, body) == (404, b"")


def test_an_answer_that_ends_in_the_middle_is_an_error(servers):
    with pytest.raises(DeploymentUnreachableError):
        with_client(lambda client: exchanged(client, servers[HTTP_1], HTTP_1, b"abc", "/cut"))


def test_no_server_is_told_with_the_address():
    with pytest.raises(DeploymentUnreachableError, match=r"http://127\.0\.0\.1:1 takes no conn"):
        with_client(lambda client: exchanged(client, "http://127.0.0.1:1", HTTP_1, b""))


def test_a_server_of_http_1_alone_is_recognized(servers):
    with pytest.raises(NotHttp2Error):
        with_client(lambda client: exchanged(client, servers[HTTP_1], HTTP_2, b""))


@BOTH
def test_a_closed_exchange_says_so(servers, version):
    async def work(client):
        exchange = await client.open(
            Address.parsed(servers[version]), Request(method="POST", path="/x"), version
        )
        await exchange.send(b"x")
        await exchange.close()
        await exchange.close()
        with pytest.raises(DeploymentUnreachableError, match="was closed"):
            await exchange.head()
        return True

    assert with_client(work)


@BOTH
def test_who_waits_for_an_aborted_exchange_gets_the_reason(servers, version):
    async def work(client):
        exchange = await client.open(
            Address.parsed(servers[version]), Request(method="POST", path="/late"), version
        )
        await exchange.send(b"x")
        waiting = [asyncio.ensure_future(exchange.head())]
        await asyncio.sleep(0)
        exchange.abort(DeploymentUnreachableError("enough"))
        with pytest.raises(DeploymentUnreachableError, match="enough"):
            await waiting[0]
        with pytest.raises(DeploymentUnreachableError, match="enough"):
            await exchange.receive()
        await exchange.close()
        return await exchanged(client, servers[version], version, b"others go on")

    assert with_client(work)[1] == b"others go on"
