"""Sends outputs: one copy for all who take the same one, at the pace of each of them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from weakref import WeakValueDictionary

import anyio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

PIECE_BYTES = 64 * 1024
"""The server takes so much of an output at a time, and more once the client has read that."""
STILL_SECONDS = 60.0
"""For which a client may take no piece."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Held:
    """An output, for as long as somebody is sent it."""

    content: bytes


class Sending:
    """Keeps what is being sent, by invocation. Belongs to one event loop."""

    def __init__(self, seconds: float = STILL_SECONDS) -> None:
        self._seconds = seconds
        self._held = WeakValueDictionary[str, Held]()
        self._turns = WeakValueDictionary[str, asyncio.Lock]()

    def turn(self, id_: str) -> asyncio.Lock:
        """What is held while the output is read, by one request at a time."""
        return self._turns.setdefault(id_, asyncio.Lock())

    def response(self, id_: str, content: bytes, headers: Mapping[str, str]) -> Response:
        """The answer with an invocation's output, which never changes."""
        if len(content) <= PIECE_BYTES:
            return Response(content, 200, headers)
        held = self._held.get(id_)
        if held is None or len(held.content) != len(content):
            self._held[id_] = held = Held(content=content)
        return InPieces(held, headers, self._seconds)


class InPieces(Response):
    """An output whose next piece is sent once the client has taken the last but one.

    A client that takes none for so many seconds gets no more, and its connection is closed.
    """

    def __init__(self, held: Held, headers: Mapping[str, str], seconds: float) -> None:
        size = {"Content-Length": str(len(held.content))}
        super().__init__(None, 200, {**headers, **size})
        self.held, self._seconds = held, seconds

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        """See the class."""
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        content = self.held.content
        for begin in range(0, len(content), PIECE_BYTES):
            end = begin + PIECE_BYTES
            with anyio.move_on_after(self._seconds) as waited:
                await send(_piece(content[begin:end], end < len(content)))
            if waited.cancelled_caught:
                return


def _piece(body: bytes, more: bool) -> dict[str, object]:  # noqa: FBT001 - an ASGI message's field
    return {"type": "http.response.body", "body": body, "more_body": more}
