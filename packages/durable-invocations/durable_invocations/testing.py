"""A runtime for tests of services: all run in threads of the test's process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from durable_invocations.client.client import Client

if TYPE_CHECKING:
    from durable_invocations.serving.declarations.services import AnyService

_SECONDS_BETWEEN = 0.05


@contextmanager
def running(*services: AnyService, attempts: int = 3) -> Iterator[Client]:
    """Serve the services, and yield a client of a runtime that has them registered.

    A failed attempt is retried after 50 ms; after `attempts` in a row without progress the
    invocation is paused, so pass `seconds` when you call handlers that may fail. Everything ends
    with the block, and nothing is kept. Needs the extra `runtime`.
    """
    from asgi_guards.testing import run_server
    from durable_invocations.serving.app import service_app

    with ExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory(prefix="invocations-"))
        runtime = stack.enter_context(
            _serve_runtime(f"sqlite:///{folder}/invocations.sqlite", attempts)
        )
        client = stack.enter_context(Client(runtime))
        client.register(stack.enter_context(run_server(service_app(*services))).url)
        yield client


@contextmanager
def _serve_runtime(database: str, attempts: int) -> Iterator[str]:
    from asgi_guards.testing import run_server
    from durable_invocations.app import build_runtime_app
    from durable_invocations.runtime import settings
    from durable_invocations.runtime.retries import RetryPolicy
    from durable_invocations.runtime.sql.database import open_database
    from durable_invocations.runtime.sql.store import SqlStore

    wait = _SECONDS_BETWEEN
    policy = RetryPolicy(initial=wait, factor=1.0, cap=wait, attempts=attempts)
    store = SqlStore(open_database(database))
    try:
        store.ensure()
        app = build_runtime_app(store, settings.RuntimeSettings(policy=policy))
        with run_server(app, lifespan="on") as served:
            yield served.url
    finally:
        store.engine.dispose()
