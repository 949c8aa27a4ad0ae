"""The greedy trigger: always, each job its own iteration, at the price of a scan each."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from iscp_dagster.joblog.iterations import Iteration
from iscp_dagster.model.jobs import Job
from iscp_dagster.model.moment import Moment
from iscp_dagster.planning.triggers.rules import each_alone


def greedy_trigger(jobs: Sequence[Job], latest: Moment, _now: datetime) -> tuple[Iteration, ...]:
    """Each job from its own watermark to `latest`, whatever the others do."""
    return each_alone(jobs, latest)
