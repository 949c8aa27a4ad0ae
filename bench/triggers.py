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

from bench.deployed import StackTable, await_, deploy_stack
from bench.report import BenchReport
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
class EventReceiver:
    """An HTTP server that accepts every event; `at` is when it got each row's event."""

    received_at: dict[int, float] = field(default_factory=dict)
    delays: dict[int, float] = field(default_factory=dict)
    """Seconds from the commit's own timestamp to the receipt."""
    requests: int = 0

    def take(self, body: bytes) -> None:
        now, event = time.time(), json.loads(body)
        row = int(event["data"]["id"])
        self.requests += 1
        self.received_at.setdefault(row, now)
        self.delays.setdefault(row, now - int(event["source_timestamp"]) / NANOS)


@contextmanager
def run_receiver() -> Iterator[tuple[EventReceiver, int]]:
    """Run a receiver on loopback; yields it and its port."""
    receiver = EventReceiver()

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


def measure(folder: Path, report: BenchReport, commits: int) -> None:
    os.environ[VARIABLE] = SECRET
    with run_receiver() as (receiver, port):
        declared = DECLARED.format(port=port, variable=VARIABLE)
        with deploy_stack(folder, ["one"], declared=declared) as tables:
            table = tables["one"]
            table.run_sql(CREATED.format(path=table.path))
            insert(table, 0, 1, amount=1)
            table.await_in_step(2)
            measure_single_events(table, report, receiver, commits)
            measure_burst(table, report, receiver)


def insert(table: StackTable, first: int, rows: int, *, amount: int) -> None:
    table.run_sql(
        f"INSERT INTO delta.`{table.path}` SELECT 'a', id, {amount} "
        f"FROM range({first}, {first + rows}, 1, 1)"
    )


def measure_single_events(
    table: StackTable, report: BenchReport, receiver: EventReceiver, commits: int
) -> None:
    """Commit one matching row at random moments of an idle stack."""
    moments, commit_times, search_delays = Random(7), list[float](), list[float]()
    for number in range(1_000, 1_000 + commits):
        time.sleep(moments.uniform(1, LONGEST_PAUSE))
        insert(table, number, 1, amount=600)
        commit_times.append(table.get_latest_time().timestamp())
        table.await_served(number)
        search_delays.append(time.time() - commit_times[-1])
        await_(lambda number=number: number in receiver.received_at, f"event of row {number}")
    receive_delays = [receiver.delays[number] for number in range(1_000, 1_000 + commits)]
    for label, seconds in (("receiver", receive_delays), ("searchable", search_delays)):
        cuts = quantiles(seconds, n=20, method="inclusive")
        summary = f"{cuts[9]:.2f} s, {cuts[18]:.2f} s, {max(seconds):.2f} s"
        report.add_fact(f"commit -> {label}: p50, p95, worst", summary)
    queue_times = list_look_times(table)
    looks = [min(at for at in queue_times if at >= moment) - moment for moment in commit_times]
    extra_seconds = median(
        receive_delay - look_delay
        for receive_delay, look_delay in zip(receive_delays, looks, strict=True)
    )
    report.add_fact("  commit -> a look has queued its iteration, p50", f"{median(looks):.2f} s")
    report.add_fact(
        "  commit -> receiver over its look, p50", f"{extra_seconds:.2f} s  target: <= 1 s"
    )


def list_look_times(table: StackTable) -> list[float]:
    """When looks queued iterations of the trigger."""
    history = table.deployment.log.read_history(most=100_000)
    entries = [entry for entry in history if entry.event is Event.ENQUEUE]
    return [entry.at.timestamp() for entry in entries if entry.name.job == "alert"]


def measure_burst(table: StackTable, report: BenchReport, receiver: EventReceiver) -> None:
    """Commit many matching rows at once."""
    first = 1_000_000
    insert(table, first, MANY, amount=700)
    commit_time = table.get_latest_time().timestamp()
    table.await_in_step(2)
    record_seconds = get_end_time(table).timestamp() - commit_time
    await_(
        lambda: sum(row >= first for row in list(receiver.received_at)) == MANY, f"{MANY} events"
    )
    receive_seconds = (
        max(at for row, at in receiver.received_at.items() if row >= first) - commit_time
    )
    report.add_fact(f"{MANY:,} events: commit -> all recorded", f"{record_seconds:.2f} s")
    report.add_fact(
        f"{MANY:,} events: commit -> all received",
        f"{receive_seconds:.2f} s, {MANY / receive_seconds:,.0f}/s",
    )


def get_end_time(table: StackTable) -> datetime:
    """When the trigger's latest iteration ended."""
    (job,) = [job for job in table.deployment.log.list_jobs() if job.name.job == "alert"]
    assert job.status.end_at is not None
    return job.status.end_at
