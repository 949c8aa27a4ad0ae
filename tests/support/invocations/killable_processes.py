"""A runtime and a service endpoint as processes that a test kills at a chosen point."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hypercorn.asyncio
import uvicorn
from hypercorn.config import Config

from durable_invocations import Context, Service, VirtualObject, service_app
from durable_invocations.ingress.app import IngressSettings, create_app
from durable_invocations.runtime.retries import RetryPolicy
from durable_invocations.runtime.runtime import Runtime
from durable_invocations.runtime.settings import RuntimeSettings
from durable_invocations.runtime.sql.database import open_database
from durable_invocations.runtime.sql.store import SqlStore
from durable_invocations.runtime.store.operations import CommitEntry, StoreOperation
from durable_invocations.runtime.timers import SteadyClock
from iscp_dagster.local.stack.ports import find_free_port
from support.invocations.asgi_process import await_port
from support.invocations.effects import note
from support.invocations.gates import Gates

SILENT_SECONDS = 1.0
OWNER = "rt_"
TIMES = {"beat": 0.1, "poll": 0.05, "silent": SILENT_SECONDS}
PRELOADED = [
    *("hypercorn.asyncio", "uvicorn", "psycopg", "sqlalchemy.dialects.postgresql.psycopg"),
    *("durable_invocations.runtime.runtime", "durable_invocations.runtime.sql.store"),
    *("durable_invocations.serving.app", "durable_invocations.ingress.app"),
]
"""What a new process need not import; the fork server finds no module of the tests."""
trips, tally = Service("Trips"), VirtualObject("Tally")
ALL = "all"
TRIP = ["run 0", "hello you", "run 1"]
"""The output of a trip."""


@trips.handler
async def greet(_: Context, name: str) -> str:
    return f"hello {name}"


@tally.handler
async def add(ctx: Context, name: str) -> None:
    """Count one more."""
    ctx.state.set(name, (await ctx.state.get(name) or 0) + 1)


@tally.shared
async def added(ctx: Context) -> dict[str, int]:
    return {name: await ctx.state.get(name) for name in await ctx.state.keys()}


@trips.handler
async def trip(ctx: Context, argument: dict[str, Any]) -> list[str]:
    """Two runs with a sleep, calls and a delayed send between them."""
    file = argument["file"]

    def run_second() -> str:
        line = note(file, "run 1")
        Gates(Path(argument["gates"])).pass_point("in run")
        return line

    results = [await ctx.run("step 0", note, file, "run 0")]
    note(file, "past 0")
    await ctx.sleep(argument["seconds"])
    results.append(await ctx.call("Trips", "greet", "you"))
    await ctx.call("Tally", "add", "calls", key=ALL)
    ctx.send("Tally", "add", "sends", key=ALL, delay=0.05)
    results.append(await ctx.run("step 1", run_second))
    note(file, "past 1")
    return results


class GatedStore(SqlStore):
    """Stops before and after the transactions of the operations that a test named."""

    gates: Gates

    def run(self, operations: Sequence[StoreOperation[Any]]) -> Any:
        names = [_name(operation) for operation in operations]
        for name in names:
            self.gates.pass_point(f"before {name}")
        results = super().run(operations)
        for name in names:
            self.gates.pass_point(f"after {name}")
        return results


def _name(operation: StoreOperation[Any]) -> str:
    if isinstance(operation, CommitEntry):
        return operation.frame.kind.name
    return type(operation).__name__.lower()


@dataclass(frozen=True)
class LateClock:
    """The machine's clock, put back by the seconds that a file names."""

    file: Path

    def seconds(self) -> float:
        with suppress(OSError, ValueError):
            return time.time() - float(self.file.read_text())
        return time.time()


def run_runtime(port: int, log: Path, database: str, folder: Path) -> None:
    """The whole life of a runtime's process."""
    _redirect_output(log)
    clock = SteadyClock(wall=LateClock(folder / "clock").seconds)
    engine = open_database(database, keep_open=True)
    owner = f"{OWNER}{os.getpid()}"
    store = GatedStore(engine, owner=owner, clock=clock.get_utc, lead=clock.get_lead)
    store.gates = Gates(folder)
    store.ensure()
    policy = RetryPolicy(initial=0.05, cap=0.2, attempts=None)
    settings = RuntimeSettings(owner=store.owner, policy=policy, **TIMES)
    runtime = Runtime(store, settings, clock=clock)

    @asynccontextmanager
    async def lifespan(_: Any) -> Any:
        async with runtime:
            yield

    app = create_app(IngressSettings(backend=runtime, lifespan=lifespan))
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning", lifespan="on")


def run_endpoint(port: int, log: Path, folder: Path) -> None:
    """The whole life of a service endpoint's process."""
    _redirect_output(log)
    app = service_app(trips, tally, clock=LateClock(folder / "clock").seconds)
    config = Config()
    config.bind = [f"127.0.0.1:{port}"]
    asyncio.run(hypercorn.asyncio.serve(app, config))


def _redirect_output(log: Path) -> None:
    for stream in (sys.stdout, sys.stderr):
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream.fileno())


@dataclass
class Mortal:
    """A process that can be killed and started again at the same address."""

    life: Callable[..., None]
    log: Path
    arguments: tuple[Any, ...] = ()
    port: int = field(default_factory=find_free_port)
    process: Any = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, and wait until it listens."""
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        arguments = (self.port, self.log, *self.arguments)
        self.process = context.Process(target=self.life, args=arguments, daemon=True)
        self.process.start()
        await_port(self.port, self.process.is_alive, self.log.read_text)

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        self.process.kill()
        self.process.join()
