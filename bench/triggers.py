"""From a commit to the receiver of its event, on a stack with all its services."""

from __future__ import annotations

import base64
import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from statistics import median, quantiles

from bench.deployed import Followed, await_, deployed
from bench.report import Report
from iscp_dagster.model.states import Event

NANOS = 1e9
SECRET = "whsec_" + base64.b64encode(b"bench of the triggers, 32 bytes!").decode()
VARIABLE = "BENCH_HOOK_SECRET"
DECLARED = """
from iscp_dagster import Endpoint, Mirror, SourceTable, Trigger

hook = Endpoint(
    "hook", url="http://127.0.0.1:{port}/", secrets=["{variable}"], concurrency=64,
    allow=["127.0.0.0/8"], pending=1_000_000,
)
one = SourceTable("bench.one", key="id", tenant="tenant", indexes=[Mirror()])
alert = Trigger("alert", on=one, match="amount > 500", unmatch="amount < 400", to=[hook])
"""
CREATED = (
    "CREATE TABLE delta.`{path}` (tenant STRING, id BIGINT, amount BIGINT) USING delta PARTITIONED "
    "BY (tenant) TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true', "
    "'delta.enableInCommitTimestamps' = 'true')"
)
LONGEST_PAUSE = 6.0
MANY = 10_000


@dataclass
class Receiver:
    """An HTTP server that accepts every event; `at` says when it got each id, by row."""

    at: dict[int, float] = field(default_factory=dict)
    behind: dict[int, float] = field(default_factory=dict)
    """Seconds from the commit's own timestamp to the receipt."""
    requests: int = 0

    def take(self, body: bytes) -> None:
        now, event = time.time(), json.loads(body)
        row = int(event["data"]["id"])
        self.requests += 1
        self.at.setdefault(row, now)
        self.behind.setdefault(row, now - int(event["source_timestamp"]) / NANOS)


@contextmanager
def receiving() -> Iterator[tuple[Receiver, int]]:
    """Run a receiver on loopback; gives it and its port."""
    found = Receiver()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            found.take(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield found, server.server_port
    finally:
        server.shutdown()


def measure(folder: Path, report: Report, commits: int) -> None:
    os.environ[VARIABLE] = SECRET
    with receiving() as (receiver, port):
        declared = DECLARED.format(port=port, variable=VARIABLE)
        with deployed(folder, ["one"], declared=declared) as tables:
            table = tables["one"]
            table.sql(CREATED.format(path=table.path))
            insert(table, 0, 1, amount=1)
            table.await_in_step(2)
            one_by_one(table, report, receiver, commits)
            all_at_once(table, report, receiver)


def insert(table: Followed, first: int, rows: int, *, amount: int) -> None:
    table.sql(
        f"INSERT INTO delta.`{table.path}` SELECT 'a', id, {amount} "
        f"FROM range({first}, {first + rows}, 1, 1)"
    )


def one_by_one(table: Followed, report: Report, receiver: Receiver, commits: int) -> None:
    """Commit one matching row at random moments of an idle stack."""
    moments, committed, searchable = Random(7), list[float](), list[float]()
    for number in range(1_000, 1_000 + commits):
        time.sleep(moments.uniform(1, LONGEST_PAUSE))
        insert(table, number, 1, amount=600)
        committed.append(table.latest().timestamp())
        table.await_served(number)
        searchable.append(time.time() - committed[-1])
        await_(lambda number=number: number in receiver.at, f"event of row {number}")
    behind = [receiver.behind[number] for number in range(1_000, 1_000 + commits)]
    for what, seconds in (("receiver", behind), ("searchable", searchable)):
        cuts = quantiles(seconds, n=20, method="inclusive")
        said = f"{cuts[9]:.2f} s, {cuts[18]:.2f} s, {max(seconds):.2f} s"
        report.fact(f"commit -> {what}: p50, p95, worst", said)
    queued = looked(table)
    looks = [min(at for at in queued if at >= moment) - moment for moment in committed]
    over = median(one - other for one, other in zip(behind, looks, strict=True))
    report.fact("  commit -> a look has queued its iteration, p50", f"{median(looks):.2f} s")
    report.fact("  commit -> receiver over its look, p50", f"{over:.2f} s  target: <= 1 s")


def looked(table: Followed) -> list[float]:
    """When looks queued iterations of the trigger."""
    history = table.deployment.log.history(most=100_000)
    queued = [each for each in history if each.event is Event.ENQUEUE]
    return [each.at.timestamp() for each in queued if each.name.job == "alert"]


def all_at_once(table: Followed, report: Report, receiver: Receiver) -> None:
    """Commit many matching rows at once."""
    first = 1_000_000
    insert(table, first, MANY, amount=700)
    committed = table.latest().timestamp()
    table.await_in_step(2)
    recorded = ended(table).timestamp() - committed
    await_(lambda: sum(row >= first for row in list(receiver.at)) == MANY, f"{MANY} events")
    last = max(at for row, at in receiver.at.items() if row >= first) - committed
    report.fact(f"{MANY:,} events: commit -> all recorded", f"{recorded:.2f} s")
    report.fact(f"{MANY:,} events: commit -> all received", f"{last:.2f} s, {MANY / last:,.0f}/s")


def ended(table: Followed) -> datetime:
    """When the trigger's latest iteration ended."""
    (job,) = [each for each in table.deployment.log.jobs() if each.name.job == "alert"]
    assert job.status.end_at is not None
    return job.status.end_at
