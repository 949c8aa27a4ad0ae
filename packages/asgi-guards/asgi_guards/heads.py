"""Bounds the heads of requests: uvicorn's fast parser would keep any number of headers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

MOST_HEAD = 64 * 1024
"""Bytes of a request's line and headers, unless a server has other bounds."""


def bounded(most: int = MOST_HEAD) -> type[asyncio.Protocol] | str:
    """What `uvicorn.Config(http=…)` takes: a parser with bounds, whichever is installed.

    `most` is what `h11_max_incomplete_event_size` has, too.
    """
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
    except ImportError:
        return "h11"

    class Bounded(HttpToolsProtocol):
        """Answers 400 to a head, a trailer or a chunk's extension beyond bounds, and closes."""

        _head = 0
        """Bytes of the request's headers."""
        _unheard = 0
        """Bytes in which the parser found nothing whole."""

        def data_received(self, data: bytes) -> None:
            self._unheard += len(data)
            super().data_received(data)
            if self._unheard > most and not self.transport.is_closing():
                self.send_400_response("The request's head is too large.")

        def on_message_begin(self) -> None:
            self._head = self._unheard = 0
            super().on_message_begin()

        def on_header(self, name: bytes, value: bytes) -> None:
            self._unheard = 0
            self._head += len(name) + len(value)
            if self._head > most:
                raise ValueError("the head is too large")
            super().on_header(name, value)

        def on_headers_complete(self) -> None:
            self._unheard = 0
            super().on_headers_complete()

        def on_body(self, body: bytes) -> None:
            self._unheard = 0
            super().on_body(body)

        def on_message_complete(self) -> None:
            self._unheard = 0
            super().on_message_complete()

    return Bounded
