"""What the ingress needs from its runtime."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from durable_invocations.protocol.results import Result
from durable_invocations.runtime.sql.store import SqlStore
from durable_invocations.runtime.store.deployments import Deployment, RegisteredService
from durable_invocations.runtime.store.operations import StoreOperation

T = TypeVar("T")


class Backend(Protocol):
    """Coroutines of the runtime's event loop; UnavailableError if its database does not answer."""

    @property
    def store(self) -> SqlStore:
        """Blocks; use it through `read`."""

    async def do(self, operation: StoreOperation[T]) -> T:
        """The outcome of an operation, once it is durable."""

    async def read(self, question: Callable[..., T], *arguments: Any) -> T:
        """The store's answer, without blocking the loop."""

    async def wait_for_result(self, id_: str) -> Result | None:
        """Wait for an invocation to end, on whichever runtime; None if it is unknown.

        Cancel it to stop waiting.
        """

    async def discover(self, url: str) -> tuple[Deployment, tuple[RegisteredService, ...]]:
        """What a checked address serves. Raises DurableError if discovery fails."""


class Catalog:
    """The services, as of at most `seconds` ago; Submit reads their current state."""

    def __init__(
        self, backend: Backend, seconds: float = 1.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._backend, self._seconds, self._clock = backend, seconds, clock
        self._services: Mapping[str, RegisteredService] = {}
        self._read_at: float | None = None

    async def find_service(self, name: str, *handlers: str) -> RegisteredService | None:
        """The service of that name, read again if it has none of the handlers."""
        if self._read_at is not None and self._clock() - self._read_at < self._seconds:
            service = self._services.get(name)
            if service is not None and any(map(service.handler, handlers)):
                return service
        self._services = await self._backend.read(self._backend.store.services)
        self._read_at = self._clock()
        return self._services.get(name)
