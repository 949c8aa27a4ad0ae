"""Large outputs that many take at the same time, slowly or never."""

from __future__ import annotations

import asyncio

import anyio
import pytest

from asgi_guards.sending import PIECE_BYTES, OutputSender

SECONDS = 20.0
LARGE = bytes(range(256)) * 1_024
"""Four pieces."""


class Taker:
    """A client that takes so many messages, and then nothing more."""

    def __init__(self, most: int = 1_000) -> None:
        self.most, self.taken = most, []

    async def send(self, message):
        if len(self.taken) == self.most:
            await asyncio.Event().wait()
        self.taken.append(message)

    def answered(self, response):
        async def take():
            with anyio.fail_after(SECONDS):
                await response({"type": "http"}, None, self.send)

        asyncio.run(take())
        return self.taken


def test_an_output_is_sent_in_pieces_at_the_pace_of_who_takes_it():
    start, *pieces = Taker().answered(OutputSender().make_response("inv_1", LARGE, {"X-Own": "a"}))
    assert dict(start["headers"]) == {b"x-own": b"a", b"content-length": b"%d" % len(LARGE)}
    assert [len(each["body"]) for each in pieces] == [PIECE_BYTES] * 4
    assert [each["more_body"] for each in pieces] == [True, True, True, False]
    assert b"".join(each["body"] for each in pieces) == LARGE


@pytest.mark.parametrize("most", [2, 4])
def test_who_takes_nothing_for_too_long_gets_no_more(most):
    taken = Taker(most).answered(OutputSender(0.05).make_response("inv_1", LARGE, {}))
    assert len(taken) == most
    assert taken[-1]["more_body"], "the server then closes the connection"


def test_all_who_take_one_output_share_one_copy():
    sending = OutputSender()
    first, second = (sending.make_response("inv_1", bytes(bytearray(LARGE)), {}) for _ in range(2))
    assert first.output is second.output
    other = sending.make_response("inv_2", bytes(bytearray(LARGE)), {})
    assert other.output is not first.output
    del first
    assert sending.make_response("inv_1", LARGE, {}).output is second.output


def test_nothing_is_kept_of_an_output_that_nobody_takes_any_more():
    sending = OutputSender()
    first = sending.make_response("inv_1", bytes(bytearray(LARGE)), {})
    del first
    assert sending.make_response("inv_1", LARGE, {}).output.content is LARGE
