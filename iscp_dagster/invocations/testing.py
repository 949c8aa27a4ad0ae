"""A runtime for the tests of services: it and they run in threads of the test's own process."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from tempfile import TemporaryDirectory
from threading import Thread
from typing import TYPE_CHECKING, Any, Literal

from iscp_dagster.invocations.client.client import Client
from iscp_dagster.model.imports import need

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from iscp_dagster.invocations.serving.declared.services import AnyService

_SECONDS_BETWEEN = 0.05


@contextmanager
def running(*services: AnyService, attempts: int = 3) -> Iterator[Client]:
    """Serve the services, and yield a client of a runtime that has them registered.

    An attempt that fails is made again after 50 ms; after `attempts` in a row without progress the
    invocation is paused, so give calls of handlers that may fail their `seconds`. Everything ends
    with the block, and nothing is kept. Needs the extra `serve`.
    """
    need("serve", "iscp_dagster.invocations.testing")
    from iscp_dagster.invocations.serving.app import service_app

    with ExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory(prefix="iscp-"))
        runtime = stack.enter_context(_runtime(f"sqlite:///{folder}/log.sqlite", attempts))
        client = stack.enter_context(Client(runtime))
        client.register(stack.enter_context(_served(service_app(*services), "off")))
        yield client


@contextmanager
def _runtime(log: str, attempts: int) -> Iterator[str]:
    from iscp_dagster.invocations.ingress.app import Settings, create_app
    from iscp_dagster.invocations.runtime import settings
    from iscp_dagster.invocations.runtime.retries import RetryPolicy
    from iscp_dagster.invocations.runtime.runtime import Runtime
    from iscp_dagster.invocations.runtime.sql.store import SqlStore
    from iscp_dagster.joblog.sql.engine import open_engine

    wait = _SECONDS_BETWEEN
    policy = RetryPolicy(initial=wait, factor=1.0, cap=wait, attempts=attempts)
    store = SqlStore(open_engine(log))
    runtime = Runtime(store, settings.Settings(policy=policy))

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        async with runtime:
            yield

    try:
        store.ensure()
        with _served(create_app(Settings(backend=runtime, lifespan=lifespan)), "on") as url:
            yield url
    finally:
        store.engine.dispose()


@contextmanager
def _served(app: ASGIApp, lifespan: Literal["on", "off"]) -> Iterator[str]:
    """The address of a server of an app, over HTTP/1.1; connections wait until it has begun."""
    import uvicorn

    with socket.create_server(("127.0.0.1", 0)) as listening:
        config = uvicorn.Config(
            app, lifespan=lifespan, log_level="error", timeout_graceful_shutdown=1
        )
        server = uvicorn.Server(config)
        thread = Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()
