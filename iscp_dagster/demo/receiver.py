"""A local webhook receiver: verifies each request, and keeps each event once."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from idempotent_receiver import Deduplicator, MemoryStore
from iscp_dagster.model.errors import SetupError

HOST = "127.0.0.1"
Events = Sequence[dict[str, Any]]


class Receiver:
    """Listens while its `with` block lasts; raises SetupError if the port is taken.

    `events` are the verified events, each once, in the order in which they came.
    """

    def __init__(self, port: int, secret: str) -> None:
        self.events: list[dict[str, Any]] = []
        self.refused = 0
        """Requests whose signature was wrong."""
        self._webhook = Webhook(secret)
        self._deduplicator = Deduplicator(MemoryStore())
        self._arrived = threading.Condition()
        try:
            self._server = ThreadingHTTPServer((HOST, port), _make_handler(self.receive))
        except OSError as error:
            raise SetupError(
                f"port {port} of this machine, where the demo receives events, is taken "
                f"({error.strerror}); set ISCP_DEMO_PORT to a free one"
            ) from error
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self._server.server_port}/"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def receive(self, headers: dict[str, str], body: bytes) -> int:
        """Take one request; returns the status to answer."""
        try:
            self._webhook.verify(body, headers)
        except WebhookVerificationError:
            self.refused += 1
            return 401
        with self._deduplicator.claim(headers["webhook-id"]) as claim, self._arrived:
            if not claim.duplicate:
                self.events.append(json.loads(body))
                self._arrived.notify_all()
        return 204

    def wait(self, enough: Callable[[Events], bool], seconds: float) -> bool:
        """Wait up to `seconds` until enough events came; returns whether they did."""
        with self._arrived:
            return self._arrived.wait_for(lambda: enough(self.events), seconds)

    def settle(self, quiet: float, seconds: float) -> None:
        """Wait until no event came for `quiet` seconds, at most `seconds`."""
        deadline = time.monotonic() + seconds
        with self._arrived:
            while time.monotonic() < deadline and self._arrived.wait(quiet):
                pass


def _make_handler(receive: Callable[[dict[str, str], bytes], int]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            self.send_response(receive(headers, body))
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base's name
            """Log nothing: the demo prints the events."""

    return Handler
