"""The default trigger: the jobs of a table keep one watermark."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from iscp_dagster.joblog.iterations import Iteration
from iscp_dagster.model.jobs import Job
from iscp_dagster.model.moment import Moment
from iscp_dagster.planning.triggers.rules import each_alone, together


def default_trigger(jobs: Sequence[Job], latest: Moment, _now: datetime) -> tuple[Iteration, ...]:
    """All together, as `together` says; an independent job by itself, holding nobody up."""
    alone = [job for job in jobs if job.spec.trigger.independent]
    group = [job for job in jobs if not job.spec.trigger.independent]
    return (*each_alone(alone, latest), *together(group, latest))
