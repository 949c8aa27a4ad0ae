"""The runtime of invocations as an ASGI application: it runs while the application does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from asgi_guards.admission import Admission
from durable_invocations.ingress.app import Settings as AppSettings
from durable_invocations.ingress.app import create_app
from durable_invocations.ingress.tokens import checked
from durable_invocations.runtime.runtime import Runtime
from durable_invocations.runtime.settings import Settings
from durable_invocations.runtime.sql.database import open_database
from durable_invocations.runtime.sql.store import SqlStore
from durable_invocations.runtime.timers import SteadyClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.applications import Starlette
    from starlette.routing import BaseRoute

Beside = Callable[[Runtime], Awaitable[None]]
"""What is done beside a running runtime, until it ends."""


def runtime_app(
    database: str, *, token: str = "", hosts: Sequence[str] = (), settings: Settings | None = None
) -> Starlette:
    """The ingress and administration of a runtime that keeps invocations in a database's URL.

    Makes the tables that are missing. Several may run on one PostgreSQL. Who has no `token` is
    refused, if there is one; `hosts` are names of the server besides its address. Serve it by
    itself, since servers run no lifespan of a mounted application, and let none fork after it is
    made.

    Raises ConfigError for another database than SQLite or PostgreSQL, and for a token that is too
    short; UnavailableError for a database that does not answer.
    """
    checked(token)
    clock, driven = SteadyClock(), settings or Settings()
    store = SqlStore(
        open_database(database, kept=True), owner=driven.owner, clock=clock.utc, lead=clock.lead
    )
    store.ensure()
    admission = Admission(
        hosts=frozenset(each.lower() for each in hosts), hosts_setting="runtime_app(hosts=…)"
    )
    return serve_store(store, driven, clock, token=token, admission=admission)


def serve_store(
    store: SqlStore,
    settings: Settings,
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

    `own` is the id of a deployment that nobody may unregister, `routes` are served too, below
    `own_path` without a token, and `beside` is done while it runs.
    """
    runtime = Runtime(store, settings, clock=clock)

    @asynccontextmanager
    async def run(_app: Starlette) -> AsyncIterator[None]:
        async with runtime:
            done = asyncio.ensure_future(beside(runtime)) if beside else None
            try:
                yield
            finally:
                if done is not None:
                    done.cancel()
                    await asyncio.gather(done, return_exceptions=True)

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
