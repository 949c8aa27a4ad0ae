"""A receiver of webhooks in a separate process, which often fails and may be killed.

    python receiver_server.py PORT DATABASE

ISCP_WEBHOOK_SECRET is its secret. It verifies each request with the `standardwebhooks` package and
handles each event once, in one transaction with the deduplicator's. DATABASE is SQLite.
"""

from __future__ import annotations

import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import sqlalchemy as sa
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from idempotent_receiver import BeingHandledError, Deduplicator, SqlStore

LEASE_SECONDS = 1.0
"""A killed receiver's claims run out soon."""
HANG_SECONDS = 1.5
"""Longer than the endpoint's timeout."""
TABLES = """
CREATE TABLE IF NOT EXISTS arrivals (
  number INTEGER PRIMARY KEY AUTOINCREMENT, event_id TEXT, body TEXT, process INTEGER);
CREATE TABLE IF NOT EXISTS refused (why TEXT);
CREATE TABLE IF NOT EXISTS answers (number INTEGER, duplicate INTEGER, status INTEGER);
CREATE TABLE IF NOT EXISTS handled (
  number INTEGER PRIMARY KEY AUTOINCREMENT, event_id TEXT, body TEXT);
"""


def fault(number: int) -> str:
    """Return what goes wrong with the request of that number."""
    if number % 9 == 3:
        return "fails before"
    if number % 11 == 5:
        return "busy"
    if number % 13 == 7:
        return "fails after"
    return "hangs after" if number % 41 == 20 else ""


class Receiver:
    """Handles requests; its state is in the database alone."""

    def __init__(self, database: str, secret: str) -> None:
        self.engine = sa.create_engine(f"sqlite:///{database}", connect_args={"timeout": 30})
        with self.engine.begin() as connection:
            connection.exec_driver_sql("PRAGMA journal_mode = WAL")
            for statement in filter(str.strip, TABLES.split(";")):
                connection.exec_driver_sql(statement)
        self.webhook = Webhook(secret)
        store = SqlStore(self.engine)
        store.ensure()
        self.dedup = Deduplicator(store, lease=LEASE_SECONDS, wait=LEASE_SECONDS / 2)

    def received(self, headers: dict[str, str], body: bytes) -> tuple[int, str]:
        """Return the status, and what goes wrong."""
        try:
            event = self.webhook.verify(body, headers)
        except WebhookVerificationError as error:
            self._write("INSERT INTO refused VALUES (?)", str(error))
            return 400, ""
        text, id_ = body.decode(), headers["webhook-id"]
        assert event["event_id"] == id_
        arrived = "INSERT INTO arrivals (event_id, body, process) VALUES (?, ?, ?)"
        number = self._write(arrived, id_, text, os.getpid())
        wrong = fault(number)
        if wrong in {"fails before", "busy"}:
            return (500 if wrong == "fails before" else 429), wrong
        status, duplicate = self._handle(id_, text)
        status = 500 if wrong == "fails after" else status
        self._write("INSERT INTO answers VALUES (?, ?, ?)", number, duplicate, status)
        return status, wrong

    def _handle(self, id_: str, text: str) -> tuple[int, bool]:
        try:
            with self.dedup.claim(id_) as claim, self.engine.begin() as connection:
                if not claim.duplicate:
                    handled = "INSERT INTO handled (event_id, body) VALUES (?, ?)"
                    connection.exec_driver_sql(handled, (id_, text))
                    claim.complete(connection=connection)
        except BeingHandledError:
            return 503, False
        return 204, claim.duplicate

    def _write(self, statement: str, *values: object) -> int:
        with self.engine.begin() as connection:
            return connection.exec_driver_sql(statement, values).lastrowid


def handler_of(receiver: Receiver) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            status, wrong = receiver.received(headers, body)
            if wrong == "hangs after":
                time.sleep(HANG_SECONDS)
            self.send_response(status)
            if wrong == "busy":
                self.send_header("retry-after", "1")
            if status != 204:
                self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            """Keep quiet."""

    return Handler


def main() -> None:
    port, database = int(sys.argv[1]), sys.argv[2]
    handler = handler_of(Receiver(database, os.environ["ISCP_WEBHOOK_SECRET"]))
    with ThreadingHTTPServer(("127.0.0.1", port), handler) as server:
        server.daemon_threads = True
        server.serve_forever()


if __name__ == "__main__":
    main()
