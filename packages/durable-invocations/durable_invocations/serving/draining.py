"""Answers that end after their request.

Hypercorn ends an HTTP/2 connection, with its other streams, when the answer to a request ends
before the request has been read to its end.
"""

from __future__ import annotations

import anyio
from starlette.responses import Response
from starlette.types import Receive, Send


async def send_answer(response: Response, receive: Receive, send: Send, seconds: float) -> None:
    """Send the answer to an unread request; the last piece once the request is read.

    After `seconds` the rest of the request is not awaited any longer.
    """
    start = {"status": response.status_code, "headers": response.raw_headers}
    await send({"type": "http.response.start", **start})
    await send({"type": "http.response.body", "body": bytes(response.body), "more_body": True})
    with anyio.move_on_after(seconds):
        await _drain_request(receive)
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _drain_request(receive: Receive) -> None:
    more = True
    while more:
        message = await receive()
        more = message["type"] == "http.request" and message.get("more_body", False)
