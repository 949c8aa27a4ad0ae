"""What the runtime of invocations takes, on SQLite: its service endpoint is another process."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

import sqlalchemy as sa

from bench.report import Report
from durable_invocations.protocol import ids
from durable_invocations.protocol.results import Value
from durable_invocations.runtime.http.http1 import IDLE_SECONDS
from durable_invocations.runtime.runtime import Runtime
from durable_invocations.runtime.settings import Settings
from durable_invocations.runtime.sql.store import SqlStore
from durable_invocations.runtime.store.operations import Submit
from durable_invocations.runtime.store.outcomes import Submitted
from durable_invocations.runtime.store.views import Status
from durable_invocations.runtime.timers import SteadyClock
from iscp_dagster.joblog.sql.engine import open_engine

SERVICE = """
from durable_invocations import Context, Service, service_app

service = Service("Bench")

@service.handler
async def nothing(ctx: Context) -> None:
    pass

@service.handler
async def steps(ctx: Context, count: int) -> int:
    total = 0
    for number in range(count):
        total += await ctx.run("step", number.__int__)
    return total

@service.handler
async def naps(ctx: Context, seconds: float) -> None:
    await ctx.sleep(seconds)

app = service_app(service)
"""
HYPERCORN, UVICORN = "hypercorn", "uvicorn"
CONCURRENCY = 32
STEPS = 3
INVOCATIONS = 2_000
CALLS = 300
SUSPENDED = 10_000
TIMERS = 500
SPREAD = 5.0
PATIENCE = 300
MIB = 1 << 20


def measure(report: Report, rounds: int) -> None:
    """Rates, waits, timers and memory."""
    for server, how in ((HYPERCORN, "HTTP/2"), (UVICORN, "HTTP/1.1")):
        found = [asyncio.run(_driven(server)) for _ in range(rounds)]
        rate = median(each.rate for each in found)
        said = f"{rate:,.0f} invocations/s  target: >= 100"
        report.fact(f"runtime: {STEPS} Run entries, concurrency {CONCURRENCY}, {how}", said)
        p50, p99 = (1e3 * each for each in _points(found[-1].waits))
        said = f"p50 {p50:.1f} ms  target: <= 20 ms (p99 {p99:.1f})"
        report.fact(f"runtime: one call, {how}", said)
    late, grown, tasks, connections = asyncio.run(_suspended())
    said = f"p50 {late[0]:.0f} ms, worst {late[1]:.0f} ms  target: <= 250 ms"
    report.fact(f"runtime: {TIMERS} timers beside {SUSPENDED:,} that wait", said)
    said = f"{grown:.1f} MiB  target: < 50 MB ({tasks} more tasks, {connections} connections)"
    report.fact(f"runtime: {SUSPENDED:,} suspended invocations hold", said)


@dataclass(frozen=True, kw_only=True)
class Found:
    """What one round found."""

    rate: float
    waits: list[float]


async def _driven(server: str) -> Found:
    async with _running(server) as runtime:
        await _all(runtime, "steps", b"%d" % STEPS, 5 * CONCURRENCY)
        begun = time.perf_counter()
        await _all(runtime, "steps", b"%d" % STEPS, INVOCATIONS)
        rate = INVOCATIONS / (time.perf_counter() - begun)
        return Found(rate=rate, waits=[await _timed(runtime) for _ in range(CALLS)])


async def _all(runtime: Runtime, handler: str, argument: bytes, count: int) -> None:
    """Invoke so often, with the concurrency of the target, and wait for every output."""
    left = iter(range(count))

    async def one() -> None:
        for _ in left:
            result = await runtime.ended(await _submit(runtime, handler, argument))
            assert isinstance(result, Value), result

    await asyncio.gather(*(one() for _ in range(CONCURRENCY)))


async def _timed(runtime: Runtime) -> float:
    begun = time.perf_counter()
    await runtime.ended(await _submit(runtime, "nothing", b""))
    return time.perf_counter() - begun


async def _submit(runtime: Runtime, handler: str, argument: bytes) -> str:
    id_ = ids.shown(ids.new_id())
    asked = Submit(id=id_, service="Bench", handler=handler, argument=argument)
    made = await runtime.do(asked)
    assert isinstance(made, Submitted), made
    return id_


async def _suspended() -> tuple[tuple[float, float], float, int, int]:
    """How late timers are, then what suspended invocations hold: MiB, tasks and connections."""
    async with _running(UVICORN) as runtime:
        await _all(runtime, "nothing", b"", 5 * CONCURRENCY)
        before, tasks = _memory(), len(asyncio.all_tasks())
        sent = [_submit(runtime, "naps", b"86400") for _ in range(SUSPENDED)]
        await asyncio.gather(*sent)
        del sent
        for _ in range(PATIENCE):
            if runtime.store.counts().get(Status.SUSPENDED, 0) == SUSPENDED:
                break
            await asyncio.sleep(1)
        await asyncio.sleep(IDLE_SECONDS + 1)  # Idle connections end meanwhile.
        grown, more = _memory() - before, len(asyncio.all_tasks()) - tasks
        import psutil

        connections = len(psutil.Process().net_connections("tcp"))
        return await _late(runtime), grown, more, connections


async def _late(runtime: Runtime) -> tuple[float, float]:
    """The median and the greatest lateness of timers, in milliseconds."""
    sent = []
    for number in range(TIMERS):
        seconds = 1 + SPREAD * number / TIMERS
        sent.append(await _submit(runtime, "naps", b"%f" % seconds))
    await asyncio.gather(*(runtime.ended(each) for each in sent))
    late = []
    for each in sent:
        entry = runtime.store.journal(each)[1]
        assert entry.completed_at is not None
        late.append(float(entry.completed_at - entry.frame.message().wake_up_time))
    return median(late), max(late)


def _memory() -> float:
    import psutil

    gc.collect()
    return float(psutil.Process().memory_info().rss) / MIB


@asynccontextmanager
async def _running(server: str) -> AsyncIterator[Runtime]:
    """A runtime on a new database on disk, and a service endpoint in a process of its own."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("ISCP_BENCH_DIR", ".")) as folder:
        clock = SteadyClock()
        store = SqlStore(_engine(folder), clock=clock.utc)
        store.ensure()
        with _served(server, Path(folder)) as address:
            async with Runtime(store, Settings(), clock=clock) as runtime:
                await runtime.register(address)
                yield runtime
        store.engine.dispose()


@contextmanager
def _served(server: str, folder: Path) -> Iterator[str]:
    (folder / "benchservice.py").write_text(SERVICE, encoding="utf-8")
    command = [sys.executable, "-m", server, "benchservice:app"]
    bound = (
        ["--workers", "0", "--bind", "127.0.0.1:0"]
        if server == HYPERCORN
        else ["--port", "0", "--no-access-log"]
    )
    with subprocess.Popen(
        [*command, *bound, "--log-level", "info"],
        cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
    ) as process:  # fmt: skip
        assert process.stderr is not None
        line = next(each for each in process.stderr if "unning on http" in each)
        address = line.partition("http://")[2].split()[0]
        try:
            yield f"http://{address}"
        finally:
            process.terminate()


def _engine(folder: str) -> sa.Engine:
    return open_engine(f"sqlite:///{Path(folder).resolve()}/log.db", kept=True)


def _points(waits: list[float]) -> tuple[float, float]:
    return median(waits), quantiles(waits, n=100)[98]
