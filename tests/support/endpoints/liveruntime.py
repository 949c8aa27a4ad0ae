"""A runtime of invocations with its ingress in a thread of the test, over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from asgiservers import uvicorn_of

from iscp_dagster.invocations.client.client import Client
from iscp_dagster.invocations.ingress.app import Settings, create_app
from iscp_dagster.invocations.runtime.retries import RetryPolicy
from iscp_dagster.invocations.runtime.runtime import Runtime
from iscp_dagster.invocations.runtime.settings import Settings as RuntimeSettings
from iscp_dagster.invocations.runtime.sql.store import SqlStore
from iscp_dagster.joblog.sql.engine import open_engine

IMPATIENT = RetryPolicy(initial=0.05, factor=1.0, cap=0.05, attempts=3)


@dataclass
class Running:
    """The runtime's address, a client of it, and what can be served beside."""

    url: str
    client: Client
    _stack: ExitStack = field(default_factory=ExitStack)

    def serve(self, app: Any) -> str:
        """Serve an app until the end; returns its address."""
        return str(self._stack.enter_context(uvicorn_of(app)).url)


@contextmanager
def running(folder: Path, policy: RetryPolicy = IMPATIENT) -> Iterator[Running]:
    """Yield a runtime whose invocations are in SQLite in `folder`."""
    store = SqlStore(open_engine(f"sqlite:///{folder / 'invocations.sqlite'}"))
    store.ensure()
    runtime = Runtime(store, replace(RuntimeSettings(), policy=policy))

    @asynccontextmanager
    async def lifespan(_: Any):
        async with runtime:
            yield

    app = create_app(Settings(backend=runtime, lifespan=lifespan))
    with ExitStack() as stack:
        url = stack.enter_context(uvicorn_of(app, lifespan="on")).url
        client = stack.enter_context(Client(url))
        yield Running(url, client, stack)
    store.engine.dispose()
