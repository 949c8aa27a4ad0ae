"""What a runtime is told of errors that are not terminal."""

from __future__ import annotations

from iscp_dagster.invocations.protocol.failures import ErrorReport
from iscp_dagster.invocations.serving.errors import RetryableError


def report(
    error: BaseException,
    index: int | None = None,
    name: str | None = None,
    kind: int | None = None,
    description: str = "",
) -> ErrorReport:
    """The report of an error, with the entry that it belongs to if there is one."""
    retryable = isinstance(error, RetryableError)
    delay = error.delay if isinstance(error, RetryableError) else None
    return ErrorReport(
        message=str(error) if retryable else f"{type(error).__name__}: {error}",
        description=description,
        index=index,
        name=name,
        kind=kind,
        retry_after=None if delay is None else round(delay * 1000),
    )
