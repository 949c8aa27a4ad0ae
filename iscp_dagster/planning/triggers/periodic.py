"""The periodic trigger: only when the watermark is older than an interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any

from iscp_dagster.joblog.iterations import Iteration
from iscp_dagster.model.clock import DURATION, parse_duration
from iscp_dagster.model.errors import ConfigError
from iscp_dagster.model.jobs import Job
from iscp_dagster.model.moment import Moment
from iscp_dagster.planning.triggers.plan import is_fresh, plan_each_alone, plan_together

INTERVAL, SHARE = "interval", "share"
_TRUTH = {True: True, False: False, "true": True, "false": False}


class PeriodicTrigger:
    """A job is due when `now` is more than its interval after its watermark's time.

    First iterations are due at once. Jobs with equal intervals and `share` keep one watermark, like
    default jobs; due jobs catch up with jobs not due yet, and neither wait for the other.
    """

    settings = (INTERVAL, SHARE)

    def __call__(self, jobs: Sequence[Job], latest: Moment, now: datetime) -> tuple[Iteration, ...]:
        independent = [job for job in jobs if not parse_share(job.spec.trigger.schedule)]
        sharing = sorted((job for job in jobs if job not in independent), key=_get_interval)
        planned = list(plan_each_alone([job for job in independent if _is_due(job, now)], latest))
        for _, group in groupby(sharing, key=_get_interval):
            planned += _plan_shared(list(group), latest, now)
        return tuple(planned)

    def check_schedule(self, schedule: Mapping[str, Any]) -> None:
        """Raise ConfigError for a schedule that no periodic job can follow."""
        parse_interval(schedule)
        parse_share(schedule)


def parse_interval(schedule: Mapping[str, Any]) -> timedelta:
    """The schedule's interval, such as `10s`, `1.5m`, `2h`. Raises ConfigError for others."""
    text = schedule.get(INTERVAL)
    length = parse_duration(text)
    if length is None:
        raise ConfigError(
            f"The periodic schedule's interval {text!r} is not a length of time; give {DURATION}."
        )
    if not length:
        raise ConfigError(
            f"The periodic schedule's interval {text!r} is not above 0; give a longer one, or use "
            "the trigger greedy, which only waits for a commit."
        )
    return length


def parse_share(schedule: Mapping[str, Any]) -> bool:
    """Whether jobs share iterations; may be a text, `"true"`. Raises ConfigError."""
    value = schedule.get(SHARE, False)
    try:
        return _TRUTH[value.lower() if isinstance(value, str) else value]
    except (KeyError, TypeError):
        raise ConfigError(
            f"The periodic schedule's share {value!r} is neither true nor false."
        ) from None


def _plan_shared(group: Sequence[Job], latest: Moment, now: datetime) -> Sequence[Iteration]:
    due = {job.key for job in group if _is_due(job, now)}
    return [
        iteration for iteration in plan_together(group, latest) if due.issuperset(iteration.jobs)
    ]


def _is_due(job: Job, now: datetime) -> bool:
    return is_fresh(job) or now - job.watermark.at > _get_interval(job)


def _get_interval(job: Job) -> timedelta:
    return parse_interval(job.spec.trigger.schedule)
