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
    """An HTTP server that accepts every event; `at` is when it got each row's event."""

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
    """Run a receiver on loopback; yields it and its port."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            receiver.take(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield receiver, server.server_port
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
    moments, commit_times, search_delays = Random(7), list[float](), list[float]()
    for number in range(1_000, 1_000 + commits):
        time.sleep(moments.uniform(1, LONGEST_PAUSE))
        insert(table, number, 1, amount=600)
        commit_times.append(table.latest().timestamp())
        table.await_served(number)
        search_delays.append(time.time() - commit_times[-1])
        await_(lambda number=number: number in receiver.at, f"event of row {number}")
    receive_delays = [receiver.behind[number] for number in range(1_000, 1_000 + commits)]
    for label, seconds in (("receiver", receive_delays), ("searchable", search_delays)):
        cuts = quantiles(seconds, n=20, method="inclusive")
        summary = f"{cuts[9]:.2f} s, {cuts[18]:.2f} s, {max(seconds):.2f} s"
        report.fact(f"commit -> {label}: p50, p95, worst", summary)
    queue_times = looked(table)
    looks = [min(at for at in queue_times if at >= moment) - moment for moment in commit_times]
    extra_seconds = median(
        receive_delay - look_delay
        for receive_delay, look_delay in zip(receive_delays, looks, strict=True)
    )
    report.fact("  commit -> a look has queued its iteration, p50", f"{median(looks):.2f} s")
    report.fact("  commit -> receiver over its look, p50", f"{extra_seconds:.2f} s  target: <= 1 s")


def looked(table: Followed) -> list[float]:
    """When looks queued iterations of the trigger."""
    history = table.deployment.log.history(most=100_000)
    entries = [entry for entry in history if entry.event is Event.ENQUEUE]
    return [entry.at.timestamp() for entry in entries if entry.name.job == "alert"]


def all_at_once(table: Followed, report: Report, receiver: Receiver) -> None:
    """Commit many matching rows at once."""
    first = 1_000_000
    insert(table, first, MANY, amount=700)
    commit_time = table.latest().timestamp()
    table.await_in_step(2)
    record_seconds = ended(table).timestamp() - commit_time
    await_(lambda: sum(row >= first for row in list(receiver.at)) == MANY, f"{MANY} events")
    receive_seconds = max(at for row, at in receiver.at.items() if row >= first) - commit_time
    report.fact(f"{MANY:,} events: commit -> all recorded", f"{record_seconds:.2f} s")
    report.fact(
        f"{MANY:,} events: commit -> all received",
        f"{receive_seconds:.2f} s, {MANY / receive_seconds:,.0f}/s",
    )


def ended(table: Followed) -> datetime:
    """When the trigger's latest iteration ended."""
    (job,) = [job for job in table.deployment.log.jobs() if job.name.job == "alert"]
    assert job.status.end_at is not None
    return job.status.end_at
