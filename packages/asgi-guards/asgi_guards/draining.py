"""Reads what a client goes on sending after its answer: else it may lose the answer.

A server that closes a connection on which it has not read everything resets it, and the client's
system may drop what has come, since the client itself writes on (RFC 9112, 9.6).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio
from starlette.datastructures import Headers

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

MOST_DRAINED = 64 * 1024 * 1024
"""Bytes that are read after an answer."""
SECONDS = 10.0
"""For which they are waited for."""


@dataclass(frozen=True)
class Draining:
    """The ASGI middleware: ends an answer once the request has been read, within bounds."""

    app: ASGIApp
    most: int = MOST_DRAINED
    seconds: float = SECONDS

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Who expects a 100 sends no body after another answer.
        if scope["type"] != "http" or "expect" in Headers(scope=scope):
            await self.app(scope, receive, send)
            return
        read = False

        async def received() -> Message:
            nonlocal read
            message = await receive()
            read = not (message["type"] == "http.request" and message.get("more_body", False))
            return message

        async def sent(message: Message) -> None:
            ends = message["type"] == "http.response.body" and not message.get("more_body", False)
            if not ends or read:
                await send(message)
                return
            await send({**message, "more_body": True})
            with anyio.move_on_after(self.seconds):
                left = self.most
                while not read and left > 0:
                    left -= len((await received()).get("body", b""))
            await send({"type": "http.response.body", "body": b"", "more_body": False})

        await self.app(scope, received, sent)
