"""What the ingress asks of the runtime that it is the front of."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from durable_invocations.protocol.results import Result
from durable_invocations.runtime.sql.store import SqlStore
from durable_invocations.runtime.store.deployments import Deployment, Service
from durable_invocations.runtime.store.operations import Operation

T = TypeVar("T")


class Backend(Protocol):
    """Coroutines of the runtime's event loop. UnavailableError while its database is away."""

    @property
    def store(self) -> SqlStore:
        """For `read`: it blocks."""

    async def do(self, operation: Operation[T]) -> T:
        """The outcome of an operation, once it is durable."""

    async def read(self, question: Callable[..., T], *arguments: Any) -> T:
        """The answer of the store, without blocking the loop."""

    async def ended(self, id_: str) -> Result | None:
        """Wait for an invocation's end, whichever runtime brings it; None if it is unknown.

        Who waits no longer cancels this.
        """

    async def discover(self, url: str) -> tuple[Deployment, tuple[Service, ...]]:
        """What is served at a checked address. Raises DurableError where that cannot be learnt."""


class Catalog:
    """The services, as they were at most `seconds` ago; Submit looks at what they are now."""

    def __init__(
        self, backend: Backend, seconds: float = 1.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._backend, self._seconds, self._clock = backend, seconds, clock
        self._services: Mapping[str, Service] = {}
        self._read_at: float | None = None

    async def service(self, name: str, *handlers: str) -> Service | None:
        """The service of that name, read anew if it has none of the handlers."""
        if self._read_at is not None and self._clock() - self._read_at < self._seconds:
            found = self._services.get(name)
            if found is not None and any(map(found.handler, handlers)):
                return found
        self._services = await self._backend.read(self._backend.store.services)
        self._read_at = self._clock()
        return self._services.get(name)
