"""Answers to requests that were not read, over a real connection."""

import socket

import httpx
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from asgi_guards.draining import DrainMiddleware
from asgi_guards.testing import run_server

LARGE = b"x" * (20 * 1024 * 1024)


def make_refusing_app(**bounds):
    """An app that answers every request without reading it."""

    async def refuse(_request):
        return PlainTextResponse("too large", 413, {"Connection": "close"})

    draining = Middleware(DrainMiddleware, **bounds)
    return Starlette(routes=[Route("/", refuse, methods=["GET", "POST"])], middleware=[draining])


def exchange(app, *pieces):
    """The answer to a client that sends these pieces, and then reads."""
    with (
        run_server(app) as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=30) as client,
    ):
        for piece in pieces:
            client.sendall(piece)
        answer = b""
        while part := client.recv(4096):
            answer += part
    return answer


@pytest.mark.parametrize("body", [LARGE, b"", b"x"])
def test_the_answer_comes_to_a_client_that_sends_everything_first(body):
    with run_server(make_refusing_app()) as server:
        for _ in range(10):
            answer = httpx.post(server.url, content=body)
            assert (answer.status_code, answer.text) == (413, "too large")
        assert httpx.get(server.url).status_code == 413


@pytest.mark.parametrize("bounds", [{"most": 1_000}, {"seconds": 0.05}])
def test_the_server_waits_for_the_request_within_bounds(bounds):
    head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9999999\r\n\r\n"
    assert exchange(make_refusing_app(**bounds), head, b"x" * 2_000).endswith(b"too large")


def test_a_client_that_expects_100_continue_is_answered_at_once():
    head = b"POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n"
    assert exchange(make_refusing_app(seconds=600), head).startswith(b"HTTP/1.1 413")
