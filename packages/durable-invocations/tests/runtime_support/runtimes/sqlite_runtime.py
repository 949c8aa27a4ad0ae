"""A runtime on a store in SQLite, in the test's event loop."""

from __future__ import annotations

import asyncio
import inspect
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass

from durable_invocations.protocol import ids
from durable_invocations.runtime.retries import RetryPolicy
from durable_invocations.runtime.runtime import Runtime
from durable_invocations.runtime.settings import RuntimeSettings
from durable_invocations.runtime.sql.database import open_database
from durable_invocations.runtime.sql.store import SqlStore
from durable_invocations.runtime.store.operations import Submit
from durable_invocations.runtime.store.outcomes import Submitted
from durable_invocations.runtime.timers import SteadyClock

SECONDS = 40
AT_ONCE = RetryPolicy(initial=0.001, factor=1, cap=0.001, attempts=5)


@dataclass
class Driver:
    """Invokes handlers at a runtime, and waits for the results."""

    runtime: Runtime

    @property
    def store(self):
        return self.runtime.store

    async def submit(self, target, argument=None, *, key="", at=0, idempotency_key=None):
        """Invoke `Service/handler`; the invocation's id."""
        service, handler = target.split("/")
        submission = Submit(
            id=ids.format_id(ids.make_id()), service=service, handler=handler, key=key,
            argument=json.dumps(argument).encode(), at=at, idempotency_key=idempotency_key,
        )  # fmt: skip
        outcome = await self.runtime.do(submission)
        assert isinstance(outcome, Submitted), outcome
        return outcome.id

    async def end(self, id_):
        return await asyncio.wait_for(self.runtime.wait_for_result(id_), SECONDS)

    async def call(self, target, argument=None, *, key=""):
        """The output, or the Failure."""
        result = await self.end(await self.submit(target, argument, key=key))
        value = getattr(result, "value", None)
        return result if value is None else json.loads(value)

    async def until(self, id_, *statuses):
        """Wait until the invocation has one of these statuses."""

        async def read():
            invocation = await self.runtime.read(self.store.invocation, id_)
            return invocation if invocation.status in statuses else None

        return await until(read)

    def journal(self, id_):
        return self.store.read_journal(id_)


async def until(read, seconds=SECONDS):
    """Call `read`, which may be a coroutine function, until its result is true; return that."""
    for _ in range(int(seconds / 0.005)):
        value = read()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return value
        await asyncio.sleep(0.005)
    raise AssertionError(f"it did not come within {seconds} s")


def store_at(folder, clock=None, database=None):
    clock = clock or SteadyClock()
    url = database or f"sqlite:///{folder}/log.db"
    store = SqlStore(open_database(url, keep_open=True), clock=clock.get_utc, lead=clock.get_lead)
    store.ensure()
    return store


@asynccontextmanager
async def running(folder, *urls, clock=None, database=None, **settings):
    """A runtime with these deployments registered, and quick settings unless others are given."""
    clock = clock or SteadyClock()
    store = store_at(folder, clock, database)
    quick = {"policy": AT_ONCE, "poll": 0.05, "beat": 0.05, "silent": 10.0} | settings
    try:
        async with Runtime(store, RuntimeSettings(**quick), clock=clock) as runtime:
            for url in urls:
                await runtime.register(url)
            yield Driver(runtime)
    finally:
        store.engine.dispose()
