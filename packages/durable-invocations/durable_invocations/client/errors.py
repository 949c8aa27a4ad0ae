"""Errors of the client of the runtime of invocations."""

from __future__ import annotations

from durable_invocations.errors import DurableError

MOST_TOLD = 2_000
"""Characters of a handler's reason that a message shows."""


def truncate_reason(reason: str) -> str:
    """The beginning of a reason, which may be as long as a handler likes."""
    return reason if len(reason) <= MOST_TOLD else f"{reason[:MOST_TOLD]}…"


class InvocationFailedError(DurableError):
    """A handler ended an invocation with a terminal failure: its `status`, and its reason."""

    code = 10_740

    def __init__(
        self, message: str, *, invocation: str = "", status: int = 500, reason: str = ""
    ) -> None:
        super().__init__(message)
        self.invocation, self.status, self.reason = invocation, status, reason


class InvocationRefusedError(DurableError):
    """The runtime did not carry out a request: its HTTP `status`, and its reason."""

    code = 10_750

    def __init__(self, message: str, *, status: int = 400, reason: str = "") -> None:
        super().__init__(message)
        self.status, self.reason = status, reason


class TokenRefusedError(InvocationRefusedError):
    """The runtime expects another token: only one of the two was changed."""

    code = 1_850
