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

from bench.report import BenchReport
from durable_invocations.protocol import ids
from durable_invocations.protocol.results import Value
from durable_invocations.runtime.http.http1 import IDLE_SECONDS
from durable_invocations.runtime.runtime import Runtime
from durable_invocations.runtime.settings import RuntimeSettings
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


def measure(report: BenchReport, rounds: int) -> None:
    """Rates, waits, timers and memory."""
    for server, protocol in ((HYPERCORN, "HTTP/2"), (UVICORN, "HTTP/1.1")):
        results = [asyncio.run(_measure_server(server)) for _ in range(rounds)]
        rate = median(result.rate for result in results)
        summary = f"{rate:,.0f} invocations/s  target: >= 100"
        report.add_fact(
            f"runtime: {STEPS} Run entries, concurrency {CONCURRENCY}, {protocol}", summary
        )
        p50, p99 = (1e3 * seconds for seconds in _compute_percentiles(results[-1].waits))
        summary = f"p50 {p50:.1f} ms  target: <= 20 ms (p99 {p99:.1f})"
        report.add_fact(f"runtime: one call, {protocol}", summary)
    lateness, growth, tasks, connections = asyncio.run(_measure_suspended())
    summary = f"p50 {lateness[0]:.0f} ms, worst {lateness[1]:.0f} ms  target: <= 250 ms"
    report.add_fact(f"runtime: {TIMERS} timers beside {SUSPENDED:,} that wait", summary)
    summary = f"{growth:.1f} MiB  target: < 50 MB ({tasks} more tasks, {connections} connections)"
    report.add_fact(f"runtime: {SUSPENDED:,} suspended invocations hold", summary)


@dataclass(frozen=True, kw_only=True)
class RoundResult:
    """What one round found."""

    rate: float
    waits: list[float]


async def _measure_server(server: str) -> RoundResult:
    async with _run_runtime(server) as runtime:
        await _invoke_all(runtime, "steps", b"%d" % STEPS, 5 * CONCURRENCY)
        start = time.perf_counter()
        await _invoke_all(runtime, "steps", b"%d" % STEPS, INVOCATIONS)
        rate = INVOCATIONS / (time.perf_counter() - start)
        return RoundResult(rate=rate, waits=[await _time_call(runtime) for _ in range(CALLS)])


async def _invoke_all(runtime: Runtime, handler: str, argument: bytes, count: int) -> None:
    """Invoke so often, with the concurrency of the target, and wait for every output."""
    remaining = iter(range(count))

    async def invoke_share() -> None:
        for _ in remaining:
            result = await runtime.wait_for_result(await _submit(runtime, handler, argument))
            assert isinstance(result, Value), result

    await asyncio.gather(*(invoke_share() for _ in range(CONCURRENCY)))


async def _time_call(runtime: Runtime) -> float:
    start = time.perf_counter()
    await runtime.wait_for_result(await _submit(runtime, "nothing", b""))
    return time.perf_counter() - start


async def _submit(runtime: Runtime, handler: str, argument: bytes) -> str:
    id_ = ids.format_id(ids.make_id())
    submit = Submit(id=id_, service="Bench", handler=handler, argument=argument)
    outcome = await runtime.do(submit)
    assert isinstance(outcome, Submitted), outcome
    return id_


async def _measure_suspended() -> tuple[tuple[float, float], float, int, int]:
    """How late timers are, then what suspended invocations hold: MiB, tasks and connections."""
    async with _run_runtime(UVICORN) as runtime:
        await _invoke_all(runtime, "nothing", b"", 5 * CONCURRENCY)
        before, tasks = _measure_memory(), len(asyncio.all_tasks())
        submissions = [_submit(runtime, "naps", b"86400") for _ in range(SUSPENDED)]
        await asyncio.gather(*submissions)
        del submissions
        for _ in range(PATIENCE):
            if runtime.store.count_invocations().get(Status.SUSPENDED, 0) == SUSPENDED:
                break
            await asyncio.sleep(1)
        await asyncio.sleep(IDLE_SECONDS + 1)  # Idle connections end meanwhile.
        growth, new_tasks = _measure_memory() - before, len(asyncio.all_tasks()) - tasks
        import psutil

        connections = len(psutil.Process().net_connections("tcp"))
        return await _measure_lateness(runtime), growth, new_tasks, connections


async def _measure_lateness(runtime: Runtime) -> tuple[float, float]:
    """The median and the greatest lateness of timers, in milliseconds."""
    invocation_ids = []
    for number in range(TIMERS):
        seconds = 1 + SPREAD * number / TIMERS
        invocation_ids.append(await _submit(runtime, "naps", b"%f" % seconds))
    await asyncio.gather(*(runtime.wait_for_result(id_) for id_ in invocation_ids))
    lateness = []
    for id_ in invocation_ids:
        entry = runtime.store.read_journal(id_)[1]
        assert entry.completed_at is not None
        lateness.append(float(entry.completed_at - entry.frame.message().wake_up_time))
    return median(lateness), max(lateness)


def _measure_memory() -> float:
    import psutil

    gc.collect()
    return float(psutil.Process().memory_info().rss) / MIB


@asynccontextmanager
async def _run_runtime(server: str) -> AsyncIterator[Runtime]:
    """A runtime on a new database on disk, and a service endpoint in a process of its own."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("ISCP_BENCH_DIR", ".")) as folder:
        clock = SteadyClock()
        store = SqlStore(_open_engine(folder), clock=clock.get_utc)
        store.ensure()
        with _serve_endpoint(server, Path(folder)) as address:
            async with Runtime(store, RuntimeSettings(), clock=clock) as runtime:
                await runtime.register(address)
                yield runtime
        store.engine.dispose()


@contextmanager
def _serve_endpoint(server: str, folder: Path) -> Iterator[str]:
    (folder / "benchservice.py").write_text(SERVICE, encoding="utf-8")
    command = [sys.executable, "-m", server, "benchservice:app"]
    options = (
        ["--workers", "0", "--bind", "127.0.0.1:0"]
        if server == HYPERCORN
        else ["--port", "0", "--no-access-log"]
    )
    with subprocess.Popen(
        [*command, *options, "--log-level", "info"],
        cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
    ) as process:  # fmt: skip
        assert process.stderr is not None
        line = next(line for line in process.stderr if "unning on http" in line)
        address = line.partition("http://")[2].split()[0]
        try:
            yield f"http://{address}"
        finally:
            process.terminate()


def _open_engine(folder: str) -> sa.Engine:
    return open_engine(f"sqlite:///{Path(folder).resolve()}/log.db", keep_open=True)


def _compute_percentiles(waits: list[float]) -> tuple[float, float]:
    return median(waits), quantiles(waits, n=100)[98]
