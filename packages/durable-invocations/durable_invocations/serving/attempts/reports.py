"""What a runtime is told of errors that are not terminal."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from durable_invocations.durations import YEAR
from durable_invocations.protocol.failures import ErrorReport
from durable_invocations.serving.errors import RetryableError

MOST_SAID = 100_000
"""Characters of a text; a message of the protocol has a bound, and the runtime keeps fewer."""


def report(
    error: BaseException,
    index: int | None = None,
    name: str | None = None,
    kind: int | None = None,
    description: str = "",
) -> ErrorReport:
    """The report of an error, with the entry that it belongs to if there is one.

    Every error has one: an attempt whose failure cannot be told would never end.
    """
    retryable = isinstance(error, RetryableError)
    text = said(error)
    return ErrorReport(
        message=text if retryable else f"{type(error).__name__}: {text}",
        description=description[:MOST_SAID],
        index=index,
        name=name,
        kind=kind,
        retry_after=_milliseconds(error.delay) if isinstance(error, RetryableError) else None,
    )


def said(error: BaseException) -> str:
    """The text of any error, cut where no message could have it."""
    try:
        return str(error)[:MOST_SAID]
    except Exception as other:  # noqa: BLE001 - its class is not ours
        return f"its text raises {type(other).__name__}"


def _milliseconds(delay: Any) -> int | None:
    """A delay as the protocol has it; none where it is no number of seconds."""
    if isinstance(delay, timedelta):
        delay = delay.total_seconds()
    if not isinstance(delay, (int, float)) or delay != delay:  # noqa: PLR0124 - as NaN does
        return None
    return round(min(max(0.0, delay), YEAR) * 1000)
