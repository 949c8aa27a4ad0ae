"""What `iscp job register` did, and how the registered job differs from the wish."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from iscp_dagster.api.jobs import Jobs
from iscp_dagster.api.names import EVERY, command, titled, whose
from iscp_dagster.cli.jobs.specs import Wish
from iscp_dagster.delta.log.tenants import tenants_in
from iscp_dagster.model.specs import JobSpec


@dataclass(frozen=True, kw_only=True)
class Registered:
    """What became of one wish; `note` is what a person should know about it."""

    wish: Wish
    created: bool
    note: str = ""
    differs: bool = False
    """Whether a job already exists with another specification than the one asked for."""

    def __str__(self) -> str:
        done = "registered" if self.created else "already exists"
        mark = (", " if self.differs and self.wish.tenant != EVERY else "; ") if self.note else ""
        return f"{titled(str(self.wish.job), self.wish.tenant)}: {done}{mark}{self.note}"

    def to_json(self) -> Mapping[str, Any]:
        told = {"note": self.note} if self.note else {}
        wish = self.wish
        return {"tenant": wish.tenant, "job": str(wish.job), "created": self.created} | told


def registered(jobs: Jobs, wish: Wish) -> Registered:
    """Register the wish. Raises what `Jobs.register_job` raises."""
    created = jobs.register_job(wish.tenant, wish.job, wish.spec)
    note = "" if created and wish.tenant != EVERY else _other(jobs, wish)
    differs = bool(note)
    if created and not note:
        note = _rowless(jobs, wish)
    return Registered(wish=wish, created=created, note=note, differs=differs)


def _other(jobs: Jobs, wish: Wish) -> str:
    """Say how the first existing job that differs from the wish differs; empty if none does."""
    for place, spec in _held(jobs, wish):
        if found := wish.change.differences(spec):
            said = "; ".join(_said(name, *values) for name, values in found.items())
            change = command("update", wish.tenant, wish.job)
            return f"{place}with another specification ({said}); change it with {change}"
    return ""


def _held(jobs: Jobs, wish: Wish) -> Iterator[tuple[str, JobSpec]]:
    """The existing jobs that the wish names, each with the start of a sentence about it."""
    name, every = wish.job, wish.tenant == EVERY
    if every and name in (standing := jobs.standing()):
        yield "for later tenants it already exists, ", standing[name]
    for job in jobs.deployment.log.jobs(tenant=None if every else wish.tenant, name=name):
        yield f"for {whose(job.key.tenant)} it already exists, " if every else "", job.spec


def _said(name: str, held: Any, asked: Any) -> str:
    called = "trigger" if name == "job_type" else name
    return f"{called}: {_value(held)}, not {_value(asked)}"


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _rowless(jobs: Jobs, wish: Wish) -> str:
    delta_log = jobs.deployment.delta_log(jobs.source(f"{wish.job.db}.{wish.job.table}"))
    tenants = tenants_in(delta_log)
    if wish.tenant == EVERY or tenants is None or wish.tenant in tenants:
        return ""
    return f"the table holds no rows of {whose(wish.tenant)} yet"
