"""Reports errors that are not terminal to the runtime."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from durable_invocations.durations import YEAR
from durable_invocations.protocol.failures import ErrorReport
from durable_invocations.serving.errors import RetryableError

MOST_SAID = 100_000
"""Characters of a text: the protocol's messages are bounded, and the runtime keeps fewer."""


def make_report(
    error: BaseException,
    index: int | None = None,
    name: str | None = None,
    kind: int | None = None,
    description: str = "",
) -> ErrorReport:
    """The report of an error, with its entry if there is one.

    It works for every error: an attempt whose failure cannot be reported would never end.
    """
    retryable = isinstance(error, RetryableError)
    text = format_error(error)
    return ErrorReport(
        message=text if retryable else f"{type(error).__name__}: {text}",
        description=description[:MOST_SAID],
        index=index,
        name=name,
        kind=kind,
        retry_after=_to_milliseconds(error.delay) if isinstance(error, RetryableError) else None,
    )


def format_error(error: BaseException) -> str:
    """The text of any error, truncated to what a message can hold."""
    try:
        return str(error)[:MOST_SAID]
    except Exception as other:  # noqa: BLE001 - its class is not ours
        return f"its text raises {type(other).__name__}"


def _to_milliseconds(delay: Any) -> int | None:
    """A delay in milliseconds; None unless it is a number of seconds."""
    if isinstance(delay, timedelta):
        delay = delay.total_seconds()
    if not isinstance(delay, (int, float)) or delay != delay:  # noqa: PLR0124 - as NaN does
        return None
    return round(min(max(0.0, delay), YEAR) * 1000)
