"""A runtime and a service endpoint as processes that a test kills at a chosen point."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import socket
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
from support.invocations.gates import Gates
from support.invocations.project_services import note

START_SECONDS = 120.0
"""The limit on a machine busy with other tests."""
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
async def trip(ctx: Context, told: dict[str, Any]) -> list[str]:
    """Two runs with a sleep, calls and a delayed send between them."""
    file = told["file"]

    def second() -> str:
        done = note(file, "run 1")
        Gates(Path(told["gates"])).pass_("in run")
        return done

    kept = [await ctx.run("step 0", note, file, "run 0")]
    note(file, "past 0")
    await ctx.sleep(told["seconds"])
    kept.append(await ctx.call("Trips", "greet", "you"))
    await ctx.call("Tally", "add", "calls", key=ALL)
    ctx.send("Tally", "add", "sends", key=ALL, delay=0.05)
    kept.append(await ctx.run("step 1", second))
    note(file, "past 1")
    return kept


TRIPPED = ["run 0", "hello you", "run 1"]


class GatedStore(SqlStore):
    """Stands still before and after the transactions of what a test named."""

    gates: Gates

    def run(self, operations: Sequence[StoreOperation[Any]]) -> Any:
        for each in operations:
            self.gates.pass_(f"before {_named(each)}")
        done = super().run(operations)
        for each in operations:
            self.gates.pass_(f"after {_named(each)}")
        return done


def _named(operation: StoreOperation[Any]) -> str:
    if isinstance(operation, CommitEntry):
        return f"{operation.frame.kind.name}"
    return type(operation).__name__.lower()


@dataclass(frozen=True)
class PutBack:
    """The machine's clock, less the seconds that a file names."""

    file: Path

    def seconds(self) -> float:
        with suppress(OSError, ValueError):
            return time.time() - float(self.file.read_text())
        return time.time()


def run_runtime(port: int, log: Path, database: str, folder: Path) -> None:
    """The whole life of a runtime's process."""
    _tell_to(log)
    clock = SteadyClock(wall=PutBack(folder / "clock").seconds)
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
    _tell_to(log)
    app = service_app(trips, tally, clock=PutBack(folder / "clock").seconds)
    config = Config()
    config.bind = [f"127.0.0.1:{port}"]
    asyncio.run(hypercorn.asyncio.serve(app, config))


def _tell_to(log: Path) -> None:
    for stream in (sys.stdout, sys.stderr):
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream.fileno())


@dataclass
class Mortal:
    """A process that comes back at its address when it was killed."""

    life: Callable[..., None]
    log: Path
    given: tuple[Any, ...] = ()
    port: int = field(default_factory=find_free_port)
    process: Any = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, and wait until it listens."""
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        arguments = (self.port, self.log, *self.given)
        self.process = context.Process(target=self.life, args=arguments, daemon=True)
        self.process.start()
        until = time.monotonic() + START_SECONDS
        while not self._listens():
            assert self.process.is_alive(), self.log.read_text()
            assert time.monotonic() < until, self.log.read_text()
            time.sleep(0.01)

    def _listens(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        self.process.kill()
        self.process.join()
