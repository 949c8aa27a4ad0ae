"""An HTTP server before ClickHouse that fails inserts, before or after they are applied."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from urllib.parse import parse_qs, urlsplit

FAULTS = (
    "refused",  # the connection is closed, nothing was sent on
    "error before",  # 500, nothing was sent on
    "error after",  # 500, and ClickHouse has applied the insert
    "closed after",  # no answer, and ClickHouse has applied the insert
    "cut after",  # half an answer, likewise
    "unconfirmed",  # fewer rows are confirmed than were sent, likewise
    "silent",  # no answer in time, likewise
)
TOO_MANY_PARTS = "Code: 252. DB::Exception: Too many parts (300). (TOO_MANY_PARTS)"


class FaultyClickHouse(ThreadingHTTPServer):
    """Forwards to `url`; takes a fault of `coming` for each insert, None: none."""

    daemon_threads = True

    def __init__(self, url: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.to = urlsplit(url).netloc
        self.coming: list[str | None] = []
        self.injected: list[str] = []
        self.over = Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def fault(self, query: str) -> str | None:
        if not query.lstrip().upper().startswith("INSERT"):
            return None
        found = self.coming.pop(0) if self.coming else None
        self.injected += [found] if found else []
        return found


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FaultyClickHouse

    def do_POST(self) -> None:
        body = self._body()
        query = parse_qs(urlsplit(self.path).query).get("query", [""])[0]
        fault = self.server.fault(query or body[:200].decode(errors="replace"))
        if fault == "refused":
            self.close_connection = True
            return
        if fault == "error before":
            self._answer(500, {"X-ClickHouse-Exception-Code": "252"}, TOO_MANY_PARTS.encode())
            return
        self._after(fault, *self._forwarded(body))

    def do_GET(self) -> None:
        self._answer(*self._forwarded(b""))

    def _after(self, fault: str | None, status: int, headers: dict[str, str], said: bytes) -> None:
        if fault == "silent":
            self.server.over.wait(30)
        if fault in {"closed after", "silent"}:
            self.close_connection = True
        elif fault == "error after":
            self._answer(500, {"X-ClickHouse-Exception-Code": "210"}, b"Code: 210. NETWORK_ERROR")
        elif fault == "cut after":
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Le")
            self.close_connection = True
        else:
            if fault == "unconfirmed":
                summary = json.loads(headers["x-clickhouse-summary"]) | {"written_rows": "0"}
                headers["x-clickhouse-summary"] = json.dumps(summary)
            self._answer(status, headers, said)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _forwarded(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        dropped = {"host", "transfer-encoding", "content-length", "connection"}
        headers = {k: v for k, v in self.headers.items() if k.lower() not in dropped}
        onward = http.client.HTTPConnection(self.server.to, timeout=60)
        onward.request(self.command, self.path, body, headers)
        found = onward.getresponse()
        said = found.read()
        kept = {k.lower(): v for k, v in found.getheaders() if k.lower() not in dropped}
        onward.close()
        return found.status, kept, said

    def _answer(self, status: int, headers: dict[str, str], said: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def faulty(url: str) -> Iterator[FaultyClickHouse]:
    """The server, up; gone at the end."""
    with FaultyClickHouse(url) as server:
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        yield server
        server.over.set()
        server.shutdown()
