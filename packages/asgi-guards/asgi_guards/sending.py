"""Sends outputs: one copy for all clients of the same one, at each client's pace."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from weakref import WeakValueDictionary

import anyio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

PIECE_BYTES = 64 * 1024
"""The server takes this much of an output at a time, and more once the client has read it."""
STILL_SECONDS = 60.0
"""How long a client may take no piece."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SharedOutput:
    """An output, kept while it is sent to someone."""

    content: bytes


class SharedOutputs:
    """Keeps what is being sent, by invocation. Belongs to one event loop."""

    def __init__(self, seconds: float = STILL_SECONDS) -> None:
        self._seconds = seconds
        self._outputs = WeakValueDictionary[str, SharedOutput]()
        self._turns = WeakValueDictionary[str, asyncio.Lock]()

    def get_turn(self, id_: str) -> asyncio.Lock:
        """The lock under which one request at a time reads the output."""
        return self._turns.setdefault(id_, asyncio.Lock())

    def make_response(self, id_: str, content: bytes, headers: Mapping[str, str]) -> Response:
        """The answer with an invocation's output, which never changes."""
        if len(content) <= PIECE_BYTES:
            return Response(content, 200, headers)
        output = self._outputs.get(id_)
        if output is None or len(output.content) != len(content):
            self._outputs[id_] = output = SharedOutput(content=content)
        return PiecewiseResponse(output, headers, self._seconds)


class PiecewiseResponse(Response):
    """An output whose next piece is sent once the client has taken the last but one.

    A client that takes none for `seconds` gets no more, and its connection is closed.
    """

    def __init__(self, output: SharedOutput, headers: Mapping[str, str], seconds: float) -> None:
        size = {"Content-Length": str(len(output.content))}
        super().__init__(None, 200, {**headers, **size})
        self.output, self._seconds = output, seconds

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        """See the class."""
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        content = self.output.content
        for begin in range(0, len(content), PIECE_BYTES):
            end = begin + PIECE_BYTES
            with anyio.move_on_after(self._seconds) as cancel_scope:
                await send(_make_body_message(content[begin:end], end < len(content)))
            if cancel_scope.cancelled_caught:
                return


def _make_body_message(body: bytes, more_body: bool) -> dict[str, object]:  # noqa: FBT001 - an ASGI message's field
    return {"type": "http.response.body", "body": body, "more_body": more_body}
