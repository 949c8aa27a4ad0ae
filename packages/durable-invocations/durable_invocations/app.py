"""The runtime of invocations as an ASGI application: it runs while the application does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from asgi_guards.admission import Admission
from durable_invocations.ingress.app import IngressSettings as AppSettings
from durable_invocations.ingress.app import create_app
from durable_invocations.ingress.tokens import check_token
from durable_invocations.runtime.runtime import Runtime
from durable_invocations.runtime.settings import RuntimeSettings
from durable_invocations.runtime.sql.database import open_database
from durable_invocations.runtime.sql.store import SqlStore
from durable_invocations.runtime.timers import SteadyClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.applications import Starlette
    from starlette.routing import BaseRoute

Beside = Callable[[Runtime], Awaitable[None]]
"""Runs beside a runtime until it ends."""


def runtime_app(
    database: str,
    *,
    token: str = "",
    hosts: Sequence[str] = (),
    settings: RuntimeSettings | None = None,
) -> Starlette:
    """The ingress and administration of a runtime that keeps invocations in the database.

    Creates missing tables. Several runtimes may share one PostgreSQL. If there is a `token`,
    requests without it are refused; `hosts` are names of the server besides its address. Serve it
    unmounted, since servers do not run the lifespan of a mounted application, and do not fork once
    it is created.

    Raises ConfigError for databases other than SQLite and PostgreSQL, and for a token that is too
    short; UnavailableError for a database that does not answer.
    """
    check_token(token)
    clock, runtime_settings = SteadyClock(), settings or RuntimeSettings()
    store = SqlStore(
        open_database(database, keep_open=True),
        owner=runtime_settings.owner,
        clock=clock.get_utc,
        lead=clock.get_lead,
    )
    store.ensure()
    admission = Admission(
        hosts=frozenset(host.lower() for host in hosts), hosts_setting="runtime_app(hosts=…)"
    )
    return build_runtime_app(store, runtime_settings, clock, token=token, admission=admission)


def build_runtime_app(
    store: SqlStore,
    settings: RuntimeSettings,
    clock: SteadyClock | None = None,
    *,
    token: str = "",
    credential: str = "the runtime's token",
    admission: Admission | None = None,
    own: str = "",
    own_path: str = "",
    routes: Sequence[BaseRoute] = (),
    beside: Beside | None = None,
) -> Starlette:
    """The application of a runtime over this store.

    `own` is the id of the process's own deployment, whose services no other may take; `routes` are
    served too, without a
    token below `own_path`; `beside` runs while the application does.
    """
    runtime = Runtime(store, settings, clock=clock)

    @asynccontextmanager
    async def run(_app: Starlette) -> AsyncIterator[None]:
        async with runtime:
            task = asyncio.ensure_future(beside(runtime)) if beside else None
            try:
                yield
            finally:
                if task is not None:
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)

    return create_app(
        AppSettings(
            backend=runtime,
            token=token,
            credential=credential,
            open_below=own_path if token else "",
            admission=admission or Admission(),
            own=own,
            routes=list(routes),
            lifespan=run,
        )
    )
