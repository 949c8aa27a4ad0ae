"""An HTTP server that answers as a test tells it to."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.server.heard.append(self.headers.get("Authorization"))
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        time.sleep(self.server.seconds)
        status, headers, text = self.server.told
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        with suppress(OSError):
            self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class Answering(ThreadingHTTPServer):
    """Answers with `told` (status, headers, text) after `seconds`."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.told: tuple[int, dict[str, str], bytes] = (200, {}, b"1\n")
        self.heard: list[str | None] = []
        self.seconds = 0.0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@contextmanager
def answering_server() -> Iterator[Answering]:
    with Answering() as server:
        # Its shutdown waits for the next poll.
        Thread(target=server.serve_forever, args=(0.02,)).start()
        try:
            yield server
        finally:
            server.shutdown()
