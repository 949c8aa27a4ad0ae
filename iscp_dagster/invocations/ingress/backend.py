"""What the ingress asks of the runtime that it is the front of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from iscp_dagster.invocations.protocol.results import Result
from iscp_dagster.invocations.runtime.store.deployments import Deployment, Service
from iscp_dagster.invocations.runtime.store.operations import Operation
from iscp_dagster.invocations.runtime.store.protocol import Store

T = TypeVar("T")


class Backend(Protocol):
    """Coroutines of the runtime's event loop. UnavailableError while its database is away."""

    @property
    def store(self) -> Store:
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
        """What is served at a checked address. Raises IscpError where that cannot be learnt."""
