"""A runtime of invocations with its ingress in a thread of the test, over HTTP."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from durable_invocations.app import build_runtime_app
from durable_invocations.client.client import Client
from durable_invocations.runtime.retries import RetryPolicy
from durable_invocations.runtime.settings import RuntimeSettings
from durable_invocations.runtime.sql.database import open_database
from durable_invocations.runtime.sql.store import SqlStore
from runtime_support.endpoints.asgi_servers import uvicorn_of

DEADLINE = 20
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
def running(folder: Path, policy: RetryPolicy = IMPATIENT, *, token: str = "") -> Iterator[Running]:
    """Yield a runtime whose invocations are in SQLite in `folder`."""
    store = SqlStore(open_database(f"sqlite:///{folder / 'invocations.sqlite'}"))
    store.ensure()
    app = build_runtime_app(store, RuntimeSettings(policy=policy), token=token)
    with ExitStack() as stack:
        url = stack.enter_context(uvicorn_of(app, lifespan="on")).url
        client = stack.enter_context(Client(url, token))
        yield Running(url, client, stack)
    store.engine.dispose()


def until(found):
    """What is found, once it is."""
    ended = time.monotonic() + DEADLINE
    while not (value := found()):
        assert time.monotonic() < ended
        time.sleep(0.01)
    return value


def asked_for(client, tmp_path):
    """An invocation that waits for an awakeable, and the awakeable's id."""
    file = tmp_path / "awakeable"
    sent = client.send("Desk", "approve", str(file))
    return sent.id, until(lambda: file.exists() and file.read_text())
