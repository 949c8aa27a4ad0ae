"""Events a second from the outbox to a receiver on loopback, and how long one takes."""

from __future__ import annotations

import asyncio
import base64
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles

from bench.report import BenchReport
from iscp_dagster import Endpoint
from iscp_dagster.events.ids import IdScheme
from iscp_dagster.events.timestamps import SourceTimestamp
from iscp_dagster.joblog.sql.engine import open_engine
from iscp_dagster.model.clock import get_utc_now
from iscp_dagster.webhooks.deliveries import PendingEvent
from iscp_dagster.webhooks.outbox import Outbox
from iscp_dagster.webhooks.sending.signing import build_headers
from iscp_dagster.webhooks.service import SenderService, run_service
from sql_transactions.engine import begin_transaction

SECRET = "whsec_" + base64.b64encode(b"x" * 32).decode()
RECEIVER = """
import asyncio, time

ANSWER = b"HTTP/1.1 204 No Content\\r\\n\\r\\n"

class Receiver(asyncio.Protocol):
    buffer = b""

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.buffer += data
        while True:
            head, separator, rest = self.buffer.partition(b"\\r\\n\\r\\n")
            if not separator:
                return
            length = int(head.lower().partition(b"content-length:")[2].split(b"\\r\\n")[0])
            if len(rest) < length:
                return
            self.buffer = rest[length:]
            print(time.time(), flush=True) if TIMED else None
            self.transport.write(ANSWER)

async def main():
    server = await asyncio.get_running_loop().create_server(Receiver, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()

asyncio.run(main())
"""
ONE_BY_ONE = (1, 8, 64)
BATCH = 100
PROBES = 60
WAITING = 100_000


def measure(folder: Path, report: BenchReport, events: int) -> None:
    """Deliver `events` of as many keys, one a request and in batches; then some one at a time."""
    rates = []
    for concurrency in ONE_BY_ONE:
        seconds = _measure_delivery(folder, f"one-{concurrency}", events, concurrency=concurrency)
        rates.append(events / seconds)
        summary = f"{rates[-1]:,.0f} events/s  target: >= 300"
        report.add_fact(f"webhooks: concurrency {concurrency}", summary)
    seconds = _measure_delivery(folder, "batches", 10 * events, batch=BATCH)
    rate = 10 * events / seconds
    report.add_fact(f"webhooks: batches of {BATCH}", f"{rate:,.0f} events/s  target: >= 3,000")
    _report_shares(report, max(rates), rate)
    _measure_latency(folder, report)
    _measure_pending(folder, report)


def make_event(number: int, *, keys: int) -> PendingEvent:
    key = str(number % keys)
    at = SourceTimestamp.from_micros(1_700_000_000_000_000 + number, version=number)
    id_ = IdScheme().make_event_id("bench", key, at)
    now = get_utc_now()
    body = f'{{"event_id":"{id_}","data":{{"id":{number},"name":"customer {"x" * 120}"}}}}'
    return PendingEvent(
        event_id=id_,
        trigger="bench",
        tenant="acme",
        key=key,
        event_type="MATCH",
        source_timestamp=at,
        recorded=now,
        body=body.encode(),
        endpoints=("bench",),
    )


class OutboxBench:
    """An outbox in SQLite, and a receiver in a process of its own."""

    def __init__(self, folder: Path, name: str, *, timed: bool = False) -> None:
        self.url = f"sqlite:///{folder / name}.db"
        self.outbox = Outbox(open_engine(self.url))
        self.outbox.ensure_log_tables()
        code = RECEIVER.replace("TIMED", str(timed))
        self.receiver = subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
        )
        assert self.receiver.stdout is not None
        self.output = self.receiver.stdout
        self.port = int(self.output.readline())

    def put(self, numbers: range, *, keys: int) -> None:
        with begin_transaction(self.outbox.engine, writes=True) as connection:
            bounds = {"bench": 10 * WAITING}
            self.outbox.record_events(
                connection, [make_event(n, keys=keys) for n in numbers], bounds=bounds
            )

    def service(self, **options: int) -> SenderService:
        endpoint = Endpoint(
            "bench",
            url=f"http://127.0.0.1:{self.port}/",
            secrets=["SECRET"],
            allow=["127.0.0.1/32"],
            **options,  # type: ignore[arg-type]
        )
        return SenderService({"SECRET": SECRET, "ISCP_LOG_URL": self.url}, [endpoint])

    def waiting(self) -> bool:
        endpoints = self.outbox.poll_endpoints(["bench"])
        return not endpoints or endpoints["bench"][1] is not None

    def close(self) -> None:
        self.receiver.terminate()
        self.receiver.wait()


def _measure_delivery(folder: Path, name: str, events: int, **options: int) -> float:
    setting = OutboxBench(folder, name)
    setting.put(range(events), keys=events)

    async def deliver_all() -> float:
        start = time.perf_counter()
        async with run_service(lambda: setting.service(**options)):
            while setting.waiting():  # noqa: ASYNC110  (what a process does sets no event)
                await asyncio.sleep(0.05)
            return time.perf_counter() - start

    try:
        return asyncio.run(deliver_all())
    finally:
        setting.close()


def _report_shares(report: BenchReport, one_by_one: float, in_batches: float) -> None:
    """How much of the time goes into ids and signatures, at the rates that were reached."""
    sample = make_event(1, keys=1)
    batch = b'{"data": [%s]}' % b", ".join([sample.body] * BATCH)
    id_ = _time_call(lambda: IdScheme().make_event_id("bench", "1", sample.source_timestamp))
    signature = _time_call(
        lambda: build_headers([b"x" * 32], sample.event_id, 1_700_000_000, sample.body)
    )
    of_batch = (
        _time_call(lambda: build_headers([b"x" * 32], sample.event_id, 1_700_000_000, batch))
        / BATCH
    )
    report.add_fact("webhooks: an id, a signature", f"{1e6 * id_:.1f} us, {1e6 * signature:.1f} us")
    shares = (id_ + signature) * one_by_one, (id_ + of_batch) * in_batches
    summary = f"{shares[0]:.1%} one by one, {shares[1]:.1%} in batches  target: < 5 %"
    report.add_fact("webhooks: their share of the time", summary)


def _time_call(call: Callable[[], object], count: int = 20_000) -> float:
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


def _measure_latency(folder: Path, report: BenchReport) -> None:
    setting = OutboxBench(folder, "latency", timed=True)

    async def measure_waits() -> list[float]:
        waits = []
        async with run_service(setting.service):
            for number in range(PROBES):
                await asyncio.sleep(0.08)
                await asyncio.to_thread(setting.put, range(number, number + 1), keys=PROBES)
                commit_time = time.time()
                waits.append(float(await asyncio.to_thread(setting.output.readline)) - commit_time)
        return waits

    try:
        waits = asyncio.run(measure_waits())
    finally:
        setting.close()
    p99 = quantiles(waits, n=100)[98]
    summary = f"p50 {1e3 * median(waits):.0f} ms, p99 {1e3 * p99:.0f} ms"
    report.add_fact("webhooks: from commit to receiver", summary)


def _measure_pending(folder: Path, report: BenchReport) -> None:
    """Each statement of a sender while many events wait, all failing, or all of one key."""
    for name, keys in (("keys of their own", WAITING), ("one key", 1)):
        setting = OutboxBench(folder, f"waiting-{keys}")
        try:
            _measure_statements(setting, report, name, keys)
        finally:
            setting.close()


def _measure_statements(setting: OutboxBench, report: BenchReport, name: str, keys: int) -> None:
    outbox, size = setting.outbox, 1_000
    start = time.perf_counter()
    for first in range(0, WAITING, size):
        setting.put(range(first, first + size), keys=keys)
    put = (time.perf_counter() - start) / WAITING
    outbox.take_leases(["bench"], "bench", 60)
    batch_id = IdScheme().make_batch_id
    calls = {
        "put 1": lambda: setting.put(range(WAITING, WAITING + 1), keys=keys),
        "look": lambda: outbox.poll_endpoints(["bench"]),
        "claim": lambda: outbox.prepare_work("bench", room=100, busy=()),
        "batch": lambda: outbox.prepare_work(
            "bench", room=1, busy=(), size=BATCH, make_batch_id=batch_id
        ),
        "pause, resume": lambda: (outbox.pause("bench"), outbox.resume("bench")),
        "counts": outbox.count_deliveries,
    }
    figures = [f"put {1e6 * put:.0f} us/event"]
    for label, call in calls.items():
        start = time.perf_counter()
        call()
        figures.append(f"{label} {1e3 * (time.perf_counter() - start):.1f} ms")
    report.add_fact(f"webhooks: {WAITING:,} events of {name}", ", ".join(figures))
