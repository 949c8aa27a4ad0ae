"""Reads what a client still sends after its answer: else it may lose the answer.

A server that closes a connection on which it has not read everything resets it, and the client's
system may drop what has come, as the client is still writing (RFC 9112, 9.6).
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
DRAIN_SECONDS = 10.0
"""How long to wait for them."""


@dataclass(frozen=True)
class DrainMiddleware:
    """The ASGI middleware: ends an answer once the request has been read, within bounds."""

    app: ASGIApp
    most: int = MOST_DRAINED
    seconds: float = DRAIN_SECONDS

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # A client that expects a 100 sends no body after another answer.
        if scope["type"] != "http" or "expect" in Headers(scope=scope):
            await self.app(scope, receive, send)
            return
        read = False

        async def receive_tracked() -> Message:
            nonlocal read
            message = await receive()
            read = not (message["type"] == "http.request" and message.get("more_body", False))
            return message

        async def send_after_drain(message: Message) -> None:
            is_end = message["type"] == "http.response.body" and not message.get("more_body", False)
            if not is_end or read:
                await send(message)
                return
            await send({**message, "more_body": True})
            with anyio.move_on_after(self.seconds):
                remaining = self.most
                while not read and remaining > 0:
                    remaining -= len((await receive_tracked()).get("body", b""))
            await send({"type": "http.response.body", "body": b"", "more_body": False})

        await self.app(scope, receive_tracked, send_after_drain)
