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

from bench.report import Report
from iscp_dagster import Endpoint
from iscp_dagster.events.ids import IdScheme
from iscp_dagster.events.timestamps import SourceTimestamp
from iscp_dagster.joblog.sql.engine import open_engine
from iscp_dagster.model.clock import utc_now
from iscp_dagster.webhooks.outbox import Outbox
from iscp_dagster.webhooks.pending import PendingEvent
from iscp_dagster.webhooks.sending.signing import headers
from iscp_dagster.webhooks.service import SenderService, beside
from sql_transactions.engine import transaction

SECRET = "whsec_" + base64.b64encode(b"x" * 32).decode()
RECEIVER = """
import asyncio, time

ANSWER = b"HTTP/1.1 204 No Content\\r\\n\\r\\n"

class Receiver(asyncio.Protocol):
    held = b""

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.held += data
        while True:
            head, found, rest = self.held.partition(b"\\r\\n\\r\\n")
            if not found:
                return
            length = int(head.lower().partition(b"content-length:")[2].split(b"\\r\\n")[0])
            if len(rest) < length:
                return
            self.held = rest[length:]
            print(time.time(), flush=True) if TOLD else None
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


def measure(folder: Path, report: Report, events: int) -> None:
    """Deliver `events` of as many keys, one a request and in batches; then some one at a time."""
    rates = []
    for concurrency in ONE_BY_ONE:
        taken = _delivered(folder, f"one-{concurrency}", events, concurrency=concurrency)
        rates.append(events / taken)
        said = f"{rates[-1]:,.0f} events/s  target: >= 300"
        report.fact(f"webhooks: concurrency {concurrency}", said)
    taken = _delivered(folder, "batches", 10 * events, batch=BATCH)
    rate = 10 * events / taken
    report.fact(f"webhooks: batches of {BATCH}", f"{rate:,.0f} events/s  target: >= 3,000")
    _share(report, max(rates), rate)
    _latency(folder, report)
    _pending(folder, report)


def event(number: int, *, keys: int) -> PendingEvent:
    key = str(number % keys)
    at = SourceTimestamp.of_micros(1_700_000_000_000_000 + number, version=number)
    id_ = IdScheme().event_id("bench", key, at)
    now = utc_now()
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


class Setting:
    """An outbox in SQLite, and a receiver in a process of its own."""

    def __init__(self, folder: Path, name: str, *, told: bool = False) -> None:
        self.url = f"sqlite:///{folder / name}.db"
        self.outbox = Outbox(open_engine(self.url))
        self.outbox.ensure()
        code = RECEIVER.replace("TOLD", str(told))
        self.receiver = subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
        )
        assert self.receiver.stdout is not None
        self.told = self.receiver.stdout
        self.port = int(self.told.readline())

    def put(self, numbers: range, *, keys: int) -> None:
        with transaction(self.outbox.engine, writes=True) as connection:
            bounds = {"bench": 10 * WAITING}
            self.outbox.put(connection, [event(n, keys=keys) for n in numbers], bounds=bounds)

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
        found = self.outbox.look(["bench"])
        return not found or found["bench"][1] is not None

    def close(self) -> None:
        self.receiver.terminate()
        self.receiver.wait()


def _delivered(folder: Path, name: str, events: int, **options: int) -> float:
    setting = Setting(folder, name)
    setting.put(range(events), keys=events)

    async def scene() -> float:
        begun = time.perf_counter()
        async with beside(lambda: setting.service(**options)):
            while setting.waiting():  # noqa: ASYNC110  (what a process does sets no event)
                await asyncio.sleep(0.05)
            return time.perf_counter() - begun

    try:
        return asyncio.run(scene())
    finally:
        setting.close()


def _share(report: Report, one_by_one: float, in_batches: float) -> None:
    """How much of the time goes into ids and signatures, at the rates that were reached."""
    one = event(1, keys=1)
    batch = b'{"data": [%s]}' % b", ".join([one.body] * BATCH)
    id_ = _seconds(lambda: IdScheme().event_id("bench", "1", one.source_timestamp))
    signature = _seconds(lambda: headers([b"x" * 32], one.event_id, 1_700_000_000, one.body))
    of_batch = _seconds(lambda: headers([b"x" * 32], one.event_id, 1_700_000_000, batch)) / BATCH
    report.fact("webhooks: an id, a signature", f"{1e6 * id_:.1f} us, {1e6 * signature:.1f} us")
    shares = (id_ + signature) * one_by_one, (id_ + of_batch) * in_batches
    said = f"{shares[0]:.1%} one by one, {shares[1]:.1%} in batches  target: < 5 %"
    report.fact("webhooks: their share of the time", said)


def _seconds(call: Callable[[], object], count: int = 20_000) -> float:
    begun = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - begun) / count


def _latency(folder: Path, report: Report) -> None:
    setting = Setting(folder, "latency", told=True)

    async def scene() -> list[float]:
        waits = []
        async with beside(setting.service):
            for number in range(PROBES):
                await asyncio.sleep(0.08)
                await asyncio.to_thread(setting.put, range(number, number + 1), keys=PROBES)
                committed = time.time()
                waits.append(float(await asyncio.to_thread(setting.told.readline)) - committed)
        return waits

    try:
        waits = asyncio.run(scene())
    finally:
        setting.close()
    p99 = quantiles(waits, n=100)[98]
    said = f"p50 {1e3 * median(waits):.0f} ms, p99 {1e3 * p99:.0f} ms"
    report.fact("webhooks: from commit to receiver", said)


def _pending(folder: Path, report: Report) -> None:
    """Each statement of a sender while many events wait, all failing, or all of one key."""
    for name, keys in (("keys of their own", WAITING), ("one key", 1)):
        setting = Setting(folder, f"waiting-{keys}")
        try:
            _statements(setting, report, name, keys)
        finally:
            setting.close()


def _statements(setting: Setting, report: Report, name: str, keys: int) -> None:
    outbox, size = setting.outbox, 1_000
    begun = time.perf_counter()
    for first in range(0, WAITING, size):
        setting.put(range(first, first + size), keys=keys)
    put = (time.perf_counter() - begun) / WAITING
    outbox.hold(["bench"], "bench", 60)
    batch_id = IdScheme().batch_id
    calls = {
        "put 1": lambda: setting.put(range(WAITING, WAITING + 1), keys=keys),
        "look": lambda: outbox.look(["bench"]),
        "claim": lambda: outbox.claim("bench", room=100, busy=()),
        "batch": lambda: outbox.claim("bench", room=1, busy=(), size=BATCH, batch_id=batch_id),
        "pause, resume": lambda: (outbox.pause("bench"), outbox.resume("bench")),
        "counts": outbox.counts,
    }
    told = [f"put {1e6 * put:.0f} us/event"]
    for what, call in calls.items():
        begun = time.perf_counter()
        call()
        told.append(f"{what} {1e3 * (time.perf_counter() - begun):.1f} ms")
    report.fact(f"webhooks: {WAITING:,} events of {name}", ", ".join(told))
