"""An HTTP proxy before ClickHouse that fails or holds inserts."""

from __future__ import annotations

import http.client
import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Lock, Thread
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

FAULTS = (
    "refused",  # the connection is closed, nothing was forwarded
    "error before",  # 500, nothing was forwarded
    "error after",  # 500, and ClickHouse has applied the insert
    "closed after",  # no answer, and ClickHouse has applied the insert
    "cut after",  # half an answer, and ClickHouse has applied the insert
    "unconfirmed",  # fewer rows are confirmed than were sent, and ClickHouse has applied the insert
    "silent",  # no answer in time, and ClickHouse has applied the insert
)
HELD = "held"
LATE = "late"
"""The connection is closed and the insert forwarded at `land`, as if the network had held it."""
TWICE = "twice"
"""Applied, but not answered until another insert comes under the same token."""
OUT_OF_MEMORY = "Code: 241. DB::Exception: Memory limit exceeded. (MEMORY_LIMIT_EXCEEDED)"


class FaultyClickHouse(ThreadingHTTPServer):
    """Forwards to `url`; takes one fault of `coming` for each insert, where None is no fault.

    `coming_to` has the faults of inserts into tables whose name contains a text.
    """

    daemon_threads = True

    def __init__(self, url: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.credentials, _, self.to = urlsplit(url).netloc.rpartition("@")
        self.coming: list[str | None] = []
        self.injected: list[str] = []
        self.over = Event()
        self.coming_to: dict[str, list[str | None]] = {}
        self.held: set[str] = set()
        self._flows = Event()
        self._flows.set()
        self._taking = Lock()
        self.tokens: Counter[str] = Counter()
        """The number of inserts that came under each token."""
        self.late_statements: list[str] = []
        """Statements other than inserts that contain one of these texts come late."""
        self._late: list[Callable[[], tuple[int, dict[str, str], bytes]]] = []
        self.profile: dict[str, str] = {}
        """Settings of the user's profile, which a query's own settings override."""
        self.settings: dict[str, dict[str, str]] = {}
        """Settings of the last insert into each table."""
        self.altered: dict[str, dict[str, str]] = {}
        """Settings of the last ALTER of each table."""
        self.waits = Event()
        """Set once an insert waits for another with its token."""

    @property
    def url(self) -> str:
        user = f"{self.credentials}@" if self.credentials else ""
        return f"http://{user}127.0.0.1:{self.server_address[1]}"

    def land(self) -> list[str]:
        """Forward the late statements in order; return ClickHouse's answers."""
        late, self._late = self._late, []
        return [text.decode(errors="replace") for _, _, text in (send() for send in late)]

    def take_fault(self, query: str) -> str | None:
        if any(text in query for text in self.late_statements):
            return LATE
        if not query.lstrip().upper().startswith("INSERT"):
            return None
        if not self._flows.is_set():
            return HELD
        for_table = [coming for table, coming in self.coming_to.items() if table in query]
        with self._taking:
            coming = next(iter(for_table), self.coming)
            fault = coming.pop(0) if coming else None
            self.injected += [fault] if fault else []
        return fault

    def hold(self) -> None:
        """From here on apply inserts but answer none, until `release`."""
        self.held.clear()
        self._flows.clear()

    def release(self) -> None:
        """Close the connections of held inserts, and answer later ones."""
        self._flows.set()

    def wait_for_release(self, query: str) -> Iterator[None]:
        """Yield once a second until the release; add the insert's table to `held`."""
        self.held.add(query.split()[2])
        while not self._flows.wait(1):
            yield

    def wait_for_second(self, token: str) -> Iterator[None]:
        """Yield once a second until another insert comes under this token."""
        self.waits.set()
        while self.tokens[token] < 2 and not self.over.wait(1):
            yield


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FaultyClickHouse

    def do_POST(self) -> None:
        try:
            self._post()
        except (OSError, http.client.HTTPException):
            # ClickHouse or the client is gone.
            self.close_connection = True

    def _post(self) -> None:
        body = self._read_body()
        parameters = parse_qs(urlsplit(self.path).query)
        query = parameters.get("query", [""])[0] or body[:200].decode(errors="replace")
        (token,) = parameters.get("insert_deduplication_token", [""])
        self.server.tokens[token] += bool(token)
        words = [*query.split(maxsplit=3), "", "", ""]
        by_statement = {"INSERT": self.server.settings, "ALTER": self.server.altered}
        if (settings := by_statement.get(words[0].upper())) is not None:
            table = words[2].replace("`", "")
            settings[table] = {name: values[0] for name, values in parameters.items()}
        fault = self.server.take_fault(query)
        if fault == "refused":
            self.close_connection = True
            return
        if fault == LATE:
            self.server._late.append(partial(self._forward, body))
            self.close_connection = True
            return
        if fault == "error before":
            self._answer(500, {"X-ClickHouse-Exception-Code": "241"}, OUT_OF_MEMORY.encode())
            return
        answer = self._forward(body)
        if fault == HELD:
            self._keep_asking(self.server.wait_for_release(query))
            self.close_connection = True
            return
        if fault == TWICE:
            self._keep_asking(self.server.wait_for_second(token))
        self._answer_after(fault, *answer)

    def _keep_asking(self, waiting: Iterator[None]) -> None:
        """Keep the client from giving up."""
        for _ in waiting:
            self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def do_GET(self) -> None:
        self._answer(*self._forward(b""))

    def _answer_after(
        self, fault: str | None, status: int, headers: dict[str, str], text: bytes
    ) -> None:
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
            self._answer(status, headers, text)

    def _read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _forward(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        dropped = {"host", "transfer-encoding", "content-length", "connection"}
        headers = {k: v for k, v in self.headers.items() if k.lower() not in dropped}
        with closing(http.client.HTTPConnection(self.server.to, timeout=60)) as onward:
            onward.request(self.command, self._add_profile(), body, headers)
            answer = onward.getresponse()
            text = answer.read()
            kept = {k.lower(): v for k, v in answer.getheaders() if k.lower() not in dropped}
            return answer.status, kept, text

    def _add_profile(self) -> str:
        """Return the path and query, with the profile's settings that the query lacks."""
        parts = urlsplit(self.path)
        query = self.server.profile | dict(parse_qsl(parts.query, keep_blank_values=True))
        return f"{parts.path}?{urlencode(query)}"

    def _answer(self, status: int, headers: dict[str, str], text: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def faulty(url: str) -> Iterator[FaultyClickHouse]:
    """Run the server until the end of the block."""
    with FaultyClickHouse(url) as server:
        Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield server
        server.over.set()
        server.release()
        server.shutdown()
