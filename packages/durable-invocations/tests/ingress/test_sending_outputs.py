"""Large outputs that many clients read at the same time, slowly or never."""

from __future__ import annotations

import asyncio

import anyio
import pytest

from asgi_guards.sending import PIECE_BYTES, SharedOutputs

SECONDS = 20.0
LARGE = bytes(range(256)) * 1_024
"""Four pieces."""


def receive(response, most=1_000):
    """The messages of a response to a client that stalls after so many."""
    messages = []

    async def send(message):
        if len(messages) == most:
            await asyncio.Event().wait()
        messages.append(message)

    async def respond():
        with anyio.fail_after(SECONDS):
            await response({"type": "http"}, None, send)

    asyncio.run(respond())
    return messages


def test_an_output_is_sent_in_pieces_at_the_pace_of_its_reader():
    start, *pieces = receive(SharedOutputs().make_response("inv_1", LARGE, {"X-Own": "a"}))
    assert dict(start["headers"]) == {b"x-own": b"a", b"content-length": b"%d" % len(LARGE)}
    assert [len(piece["body"]) for piece in pieces] == [PIECE_BYTES] * 4
    assert [piece["more_body"] for piece in pieces] == [True, True, True, False]
    assert b"".join(piece["body"] for piece in pieces) == LARGE


@pytest.mark.parametrize("most", [2, 4])
def test_a_client_that_stalls_too_long_gets_no_more(most):
    messages = receive(SharedOutputs(0.05).make_response("inv_1", LARGE, {}), most)
    assert len(messages) == most
    assert messages[-1]["more_body"], "the server then closes the connection"


def test_all_readers_of_one_output_share_one_copy():
    sending = SharedOutputs()
    first, second = (sending.make_response("inv_1", bytes(bytearray(LARGE)), {}) for _ in range(2))
    assert first.output is second.output
    assert first.status_code == second.status_code == 200
    other = sending.make_response("inv_2", bytes(bytearray(LARGE)), {})
    assert other.output is not first.output
    del first
    assert sending.make_response("inv_1", LARGE, {}).output is second.output


def test_an_output_without_readers_is_not_kept():
    sending = SharedOutputs()
    first = sending.make_response("inv_1", bytes(bytearray(LARGE)), {})
    del first
    assert sending.make_response("inv_1", LARGE, {}).output.content is LARGE
