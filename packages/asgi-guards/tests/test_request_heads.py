"""How much of a request's head a server takes."""

import socket
from contextlib import suppress

import pytest

from asgi_guards.connections import MOST_HEAD, make_uvicorn_options
from asgi_guards.testing import run_server

PIECE = b"y" * 16_384


async def size(scope, receive, send):
    """Answer with the size of the body."""
    count, more = 0, True
    while more:
        event = await receive()
        count, more = count + len(event.get("body", b"")), event.get("more_body", False)
    headers = [(b"content-type", b"text/plain")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"%d bytes" % count})


def exchange(served, *parts):
    """The answer to a request of these parts, which are sent as long as they are read."""
    with socket.create_connection(("127.0.0.1", served.port), 20) as connection:
        with suppress(OSError):
            for part in parts:
                connection.sendall(part)
        answer = b""
        with suppress(ConnectionResetError):
            while piece := connection.recv(65_536):
                answer += piece
        return answer


HEAD = b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "parts",
    [
        [HEAD, b"x: ", *[PIECE] * 1_000],
        [HEAD, b"x", *[PIECE] * 1_000],
        [HEAD, *[b"x%d: y\r\n" % each for each in range(20_000)], b"\r\n"],
        [b"GET /", *[PIECE] * 1_000],
        [CHUNKED, b"1;", *[PIECE] * 1_000],
        [CHUNKED, b"1\r\nx\r\n0\r\n", *[b"x%d: y\r\n" % each for each in range(20_000)], b"\r\n"],
    ],
    ids=["value", "name", "headers", "path", "extension", "trailers"],
)
def test_a_head_without_end_is_refused(parts):
    with run_server(size, **make_uvicorn_options()) as served:
        answer = exchange(served, *parts)
        assert b" 200 " not in answer
        assert b"1 bytes" in exchange(served, HEAD, b"Content-Length: 1\r\n\r\nx")


def test_a_head_within_the_bounds_and_any_body_are_accepted():
    large = b"x: " + b"y" * (MOST_HEAD - 1_000) + b"\r\n"
    body = b"%x\r\n" % len(PIECE) + PIECE + b"\r\n"
    with run_server(size, **make_uvicorn_options()) as served:
        answer = exchange(served, HEAD, large, b"Content-Length: 1000000\r\n\r\n", b"z" * 1_000_000)
        assert b"1000000 bytes" in answer
        answer = exchange(served, CHUNKED, *[body] * 100, b"0\r\n\r\n")
        assert b"1638400 bytes" in answer
