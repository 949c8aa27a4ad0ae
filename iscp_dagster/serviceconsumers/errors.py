"""The errors of a job whose invocation, or the runtime, fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from durable_invocations import errors
from durable_invocations.client import errors as of_clients
from iscp_dagster.model.errors import (
    INVOCATION_FAILED,
    ConfigError,
    IscpError,
    UnavailableError,
    WaitError,
)
from iscp_dagster.model.variables import INVOCATIONS_TOKEN


class InvocationFailedError(IscpError):
    """A handler ended an invocation with a terminal failure; the job's batch is replayed."""

    code = INVOCATION_FAILED


class InvocationRefusedError(IscpError):
    """The runtime did not carry out a request: its HTTP `status`."""

    code = of_clients.InvocationRefusedError.code

    def __init__(self, message: str, *, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class TokenRefusedError(InvocationRefusedError):
    """The runtime expects another token: only one of the two was changed so far."""

    code = of_clients.TokenRefusedError.code


_KINDS: tuple[tuple[type[errors.DurableError], type[IscpError]], ...] = (
    (of_clients.InvocationFailedError, InvocationFailedError),
    (errors.UnavailableError, UnavailableError),
    (errors.WaitError, WaitError),
    (errors.ConfigError, ConfigError),
)


@contextmanager
def raise_job_errors() -> Iterator[None]:
    """Raise the errors of durable_invocations as a job's errors."""
    try:
        yield
    except errors.DurableError as error:
        raise _to_job_error(error) from error


def _to_job_error(error: errors.DurableError) -> IscpError:
    match error:
        case of_clients.TokenRefusedError():
            message = f"{error} Give runs and runtime the same {INVOCATIONS_TOKEN}."
            return TokenRefusedError(message, status=error.status)
        case of_clients.InvocationRefusedError():
            return InvocationRefusedError(str(error), status=error.status)
    return next((kind for error_type, kind in _KINDS if isinstance(error, error_type)), IscpError)(
        str(error)
    )
