"""The store of a runtime: what does operations, and answers questions."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Protocol, TypeVar

from durable_invocations.protocol.results import Result
from durable_invocations.runtime.store.deployments import Deployment, Service
from durable_invocations.runtime.store.operations import Operation
from durable_invocations.runtime.store.outcomes import Changes
from durable_invocations.runtime.store.views import (
    Chosen,
    Invocation,
    JournalEntry,
    Look,
    Status,
)

T = TypeVar("T")


class Store(Protocol):
    """Blocks; a runtime's event loop uses writer.Writer instead.

    Raises UnavailableError while the database does not answer.
    """

    owner: str
    """The runtime whose news are told in `Changes`; empty: none."""

    def ensure(self) -> None:
        """Make the tables that are missing. Idempotent."""

    def do(self, operation: Operation[T]) -> T:
        """Do one operation, in a transaction of its own."""

    def run(self, operations: Sequence[Operation[Any]]) -> tuple[list[Any], Changes]:
        """Do the operations in one transaction; their outcomes, and what changed.

        Those of one invocation and fence are done in their order, others in any.
        """

    def look(self, owner: str, watched: Collection[str] = ()) -> Look:
        """What `owner` has to do, and which of `watched` have ended; cheap."""

    def results(self, ids: Collection[str]) -> dict[str, Result | None]:
        """How these invocations ended; None: not yet; no entry for unknown ones."""

    def find(self, service: str, key: str, handler: str, idempotency_key: str | None) -> str | None:
        """The invocation of that idempotency key; with None, a workflow's run."""

    def invocation(self, id_: str) -> Invocation | None:
        """One invocation; None if it is unknown."""

    def invocations(self, chosen: Chosen | None = None) -> list[Invocation]:
        """Newest first."""

    def counts(self, chosen: Chosen | None = None) -> dict[Status, int]:
        """How many of the chosen there are, by status, whatever the limit."""

    def journal(self, id_: str) -> list[JournalEntry]:
        """An invocation's journal; empty if it is unknown."""

    def state(self, service: str, key: str) -> dict[bytes, bytes]:
        """An object's state."""

    def deployments(self) -> list[Deployment]:
        """In the order of their registration."""

    def services(self) -> dict[str, Service]:
        """By name, each as its current deployment serves it."""

    def beats(self) -> dict[str, int]:
        """The runtimes that were alive, with their beats."""
