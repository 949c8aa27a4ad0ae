"""Makes ClickHouse's inserts wait until a test lets them through."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread

from iscp_dagster.local.stack.ports import find_free_port

NUMBERS = itertools.count()
PORT = find_free_port()
ADDRESS = f"127.0.0.1:{PORT}"
"""The only address that the tests' ClickHouse servers may query."""


class Gate(ThreadingHTTPServer):
    """Holds inserts; `met` is set once one waits."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", PORT), _Handler)
        self.met, self.opened = Event(), Event()

    def open(self) -> None:
        """Let all inserts through from now on."""
        self.opened.set()


class _Handler(BaseHTTPRequestHandler):
    server: Gate

    def do_GET(self) -> None:
        self.server.met.set()
        self.do_HEAD()
        # A number a second: ClickHouse gives up on a silent server.
        while not self.server.opened.wait(1):
            self.wfile.write(b"1\n")
            self.wfile.flush()

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@contextmanager
def insert_gate(ask: Callable[[str], object], table: str) -> Iterator[Gate]:
    """Put a gate before the table: a materialized view makes its inserts wait.

    `ask` executes a statement. The end opens the gate, waits for the inserts and removes the view.
    """
    name = f"{table}_gate{next(NUMBERS)}"
    with Gate() as gate:
        Thread(target=gate.serve_forever, args=(0.02,), daemon=True).start()
        ask(f"CREATE TABLE {name}_to (n Int64) ENGINE = Null")
        ask(
            f"CREATE MATERIALIZED VIEW {name} TO {name}_to AS SELECT answer.n AS n FROM {table} "
            f"CROSS JOIN (SELECT n FROM url('http://{ADDRESS}/', 'TSV', 'n Int64')) AS answer"
        )
        try:
            yield gate
        finally:
            gate.open()
            ask(f"DROP TABLE {name} SYNC")
            ask(f"DROP TABLE {name}_to SYNC")
            gate.shutdown()
