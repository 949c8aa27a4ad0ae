"""Short names for rows, iterations and moments in tests of ISCP logs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.pool import QueuePool

from iscp_dagster.joblog.iterations import Claim, FailedStep, Iteration, WrittenStep
from iscp_dagster.joblog.sql.log import SqlLog
from iscp_dagster.model.batch import Range
from iscp_dagster.model.errors import FenceError
from iscp_dagster.model.jobs import JobID, JobKey
from iscp_dagster.model.moment import START, Moment
from iscp_dagster.model.specs import ConsumerInfo, IterationDetail, JobSpec, TriggerSpec

T0 = datetime(2025, 6, 18, 12, tzinfo=timezone.utc)
LAYOUT = {"partitions": 2, "rows": 1000}
mostly_on_sqlite = pytest.mark.parametrize(
    "make_log", ["sqlite", pytest.param("postgresql", marks=pytest.mark.soak)], indirect=True
)
"""Marks what a log does whatever its database; what databases do differently runs on both."""


class Advancing:
    """A clock that advances by a second each time it is read."""

    def __init__(self) -> None:
        self.now = T0

    def __call__(self) -> datetime:
        self.now += timedelta(seconds=1)
        return self.now


class Hand:
    """A clock in seconds that only a test moves."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def log_in_memory(**options: Any) -> SqlLog:
    """Return an empty ISCP log that is gone with the test; its threads take turns."""
    one = {"poolclass": QueuePool, "pool_size": 1, "max_overflow": 0}
    engine = sa.create_engine("sqlite://", connect_args={"check_same_thread": False}, **one)
    log = SqlLog(engine, **options)
    log.ensure()
    return log


def name(job: str = "mirror") -> JobID:
    return JobID(db="docs", table="symbols", job=job)


def spec(job: str = "mirror", priority: int = 0, **trigger) -> JobSpec:
    consumer = ConsumerInfo(type="mirror", table="symbols", db="docs", job=job, columns=("a",))
    detail = IterationDetail(priority=priority, consumer=consumer)
    return JobSpec(trigger=TriggerSpec(**trigger), detail=detail)


def make_plain_spec(name: JobID, kind: str = "mirror") -> JobSpec:
    """Return the spec of a job of that name that has no options."""
    consumer = ConsumerInfo(type=kind, db=name.db, table=name.table, job=name.job)
    return JobSpec(detail=IterationDetail(consumer=consumer))


def key(job: str = "mirror", tenant: str = "acme", table_id: str = "t-1") -> JobKey:
    return JobKey(tenant=tenant, table_id=table_id, job_name=job)


def add(log: SqlLog, *keys: JobKey) -> None:
    for k in keys:
        assert log.register(k.tenant, name(k.job_name), k.table_id, spec(k.job_name))


def advance(log: SqlLog, claim: Claim, counts: Mapping[str, int]) -> Claim:
    """Return the claim of the next step. Raises FenceError."""
    step = WrittenStep(claim=claim, to=claim.step.range.to, counts=counts)
    return _get_outcome(log.advance([step]), claim)


def complete(log: SqlLog, claim: Claim, to: Moment, counts: Mapping[str, int]) -> None:
    _get_outcome(log.complete([WrittenStep(claim=claim, to=to, counts=counts)]), claim)


def fail(log: SqlLog, claim: Claim, code: int, message: str) -> None:
    _get_outcome(log.fail([FailedStep(claim=claim, code=code, message=message)]), claim)


def _get_outcome(outcomes: Mapping[JobKey, Any], claim: Claim) -> Any:
    outcome = outcomes.get(claim.key)
    if isinstance(outcome, FenceError):
        raise outcome
    return outcome


def over(*keys: JobKey, start: int = -1, to: int = 5, waits_long: bool = False) -> Iteration:
    return Iteration(
        table_id=keys[0].table_id,
        tenants=frozenset(k.tenant for k in keys),
        jobs=keys,
        from_=moment(start),
        to=moment(to),
        waits_long=waits_long,
    )


def moment(version: int) -> Moment:
    return START if version < 0 else Moment(version, version * 1_000_000)


def span(start: int, to: int) -> Range:
    return Range(from_=moment(start), to=moment(to))


def at(log: SqlLog, version: int, *keys: JobKey) -> None:
    """Register the jobs and bring them to `version`."""
    add(log, *keys)
    for claim in log.claim_jobs(over(*keys, to=version), "first", LAYOUT):
        complete(log, claim, moment(version), {})


def carry_out(deployment, look):
    """Do to the log what a look's runs would do."""
    for dispatch in look.dispatches:
        claims = deployment.log.claim_jobs(dispatch.iteration, "run", {}, queued_as=dispatch.name)
        for claim in claims:
            complete(deployment.log, claim, claim.range.to, {})
