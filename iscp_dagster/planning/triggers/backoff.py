"""How long a job waits after temporary failures."""

from __future__ import annotations

from datetime import datetime, timedelta

from iscp_dagster.model.jobs import JobStatus

FIRST = timedelta(seconds=5)
LONGEST = timedelta(minutes=10)
SKEW = timedelta(minutes=1)


def compute_backoff(attempts: int) -> timedelta:
    """The wait after that many temporary failures in a row: doubled each time, to a limit."""
    if attempts < 1:
        return timedelta(0)
    return LONGEST if attempts > 12 else min(FIRST * 2 ** (attempts - 1), LONGEST)  # noqa: PLR2004


def is_backing_off(status: JobStatus, now: datetime) -> bool:
    """Whether a job with this status still waits.

    An end further in the future than clocks differ (`SKEW`) comes from a wrong clock: do not wait.
    """
    if status.end_at is None or status.end_at > now + SKEW:
        return False
    return now < status.end_at + compute_backoff(status.attempts)
