"""How a handler's attempt ends without a result."""

from __future__ import annotations

from datetime import timedelta

from durable_invocations.errors import DurableError


class TerminalError(DurableError):
    """Ends the invocation with a failure; it is not tried again.

    The caller gets the same `status` (an HTTP status, 500 by default) and message. Awaiting also
    raises it: for a call that failed, a rejected awakeable, a cancellation (status 409).
    """

    code = 10_670

    def __init__(self, message: str, status: int = 500) -> None:
        super().__init__(message)
        self.status = status


class RetryableError(DurableError):
    """Fails the attempt; the runtime tries again after `delay`, or by its own policy.

    A number is in seconds.
    """

    code = 1_970

    def __init__(self, message: str, delay: float | timedelta | None = None) -> None:
        super().__init__(message)
        self.delay = delay


class ContextError(DurableError):
    """A handler uses its context wrongly; the attempt fails until the code is fixed."""

    code = 10_680
