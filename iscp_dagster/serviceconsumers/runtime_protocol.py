"""What a service consumer needs from a runtime of invocations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from iscp_dagster.model.errors import IscpError


class InvocationUnsettledError(IscpError):
    """An invocation has not ended yet, or is paused; the next iteration attaches to it again."""

    code = 1_840


ENDED = "completed"
"""The status of an invocation that has ended, also with a failure."""
PAUSED = "paused"
INVOKED = "invoked"
"""The key under which an iteration's facts list a tenant's invocations."""


@dataclass(frozen=True, kw_only=True)
class InvocationState:
    """An invocation as it was last seen."""

    id: str
    status: str
    """As the runtime names it: `completed`, `paused`, `suspended`, ..."""
    link: str
    """The URL of its description."""
    is_new: bool = True
    """Whether the call began it, rather than attached to it."""
    failure: str = ""
    """Why it failed, or what last went wrong."""

    @property
    def ended(self) -> bool:
        return self.status == ENDED

    @property
    def failed(self) -> bool:
        """Whether it ended with a failure."""
        return self.ended and bool(self.failure)


class InvocationRuntime(Protocol):
    """A runtime of invocations. Every method raises UnavailableError if it does not answer."""

    def ensure_handler(self, url: str, service: str, handler: str) -> bool:
        """Whether the handler is one of a virtual object, which is called with a key.

        Registers the service endpoint at `url` if the runtime does not know the handler there.
        Raises ConfigError for a handler that it does not serve, or that cannot be invoked so.
        """

    def send(
        self, service: str, handler: str, body: bytes, *, key: str | None, idempotency_key: str
    ) -> InvocationState:
        """Invoke, or find the invocation of that idempotency key; does not wait for its end."""

    def has_invocation(
        self, service: str, handler: str, *, key: str | None, idempotency_key: str
    ) -> bool:
        """Whether there is an invocation of that idempotency key that has not failed."""

    def poll_invocation(self, invoked: InvocationState, seconds: float) -> InvocationState:
        """Its state: at once if it has ended or is paused, else after at most `seconds`."""
