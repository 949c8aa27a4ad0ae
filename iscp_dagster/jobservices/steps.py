"""The steps that handlers take: each blocks, and may be taken again with the same effect."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from durable_invocations.serving.errors import RetryableError, TerminalError
from iscp_dagster.api.chosen import chosen
from iscp_dagster.api.facts import compared as compared_facts
from iscp_dagster.api.facts import job as job_facts
from iscp_dagster.api.jobs import Jobs
from iscp_dagster.api.names import EVERY, job_of
from iscp_dagster.joblog.updates import SpecUpdate
from iscp_dagster.jobservices import arguments
from iscp_dagster.model.consumers.kinds import is_index
from iscp_dagster.model.errors import ConfigError, IscpError, NoSuchJobError, WaitError
from iscp_dagster.model.jobs import Job
from iscp_dagster.model.specs import JobSpec
from iscp_dagster.upkeep.comparison import compared

BAD, UNKNOWN, TIMED_OUT, HELD_UP, FAILED = 400, 404, 408, 409, 500
"""The statuses of terminal failures."""


@dataclass(frozen=True, kw_only=True)
class Steps:
    """What can be done with the jobs of the deployment that `jobs` opens.

    Raises TerminalError for what another attempt would not change, else RetryableError.
    """

    jobs: Callable[[], Jobs]

    def register(self, asked: arguments.Specified) -> dict[str, Any]:
        """Register a job, or those of every tenant; it is the same whoever did it before."""
        with _told():
            jobs, job = self.jobs(), job_of(asked.job)
            change = _change(asked)
            spec = _first(change.applied(jobs.plain_spec(job, change.type)))
            jobs.register_job(asked.tenant, job, spec)
        return {"tenant": asked.tenant, "job": str(job), "registered": True}

    def update(self, asked: arguments.Updated) -> dict[str, Any]:
        """Change a job's spec."""
        with _told():
            change = _change(asked)
            done = self.jobs().update_job_spec(
                asked.tenant, asked.job, change, interrupt=asked.interrupt
            )
        return {**_named(asked), "changed": done}

    def pause(self, asked: arguments.Named) -> dict[str, Any]:
        """Plan no more iterations."""
        with _told():
            done = self.jobs().pause_job(asked.tenant, asked.job)
        return {**_named(asked), "changed": done}

    def resume(self, asked: arguments.Named) -> dict[str, Any]:
        """Plan a paused job again."""
        with _told():
            done = self.jobs().resume_job(asked.tenant, asked.job)
        return {**_named(asked), "changed": done}

    def status(self, asked: arguments.Named) -> list[dict[str, Any]]:
        """Everything about the job of one tenant, or of each."""
        with _told():
            return [job_facts(each) for each in self._held(asked)]

    def version(self, table: str) -> int:
        """The table's latest commit."""
        with _told():
            jobs = self.jobs()
            return jobs.deployment.delta_log(jobs.source(table)).latest().version

    def lacking(self, asked: arguments.Awaited) -> tuple[str | None, float]:
        """What lacks the commit that is waited for, or None; and when that was, in Unix time.

        TerminalError (409) if waiting cannot help: a job is in error or paused.
        """
        with _told():
            jobs = self.jobs()
            now = jobs.deployment.clock().timestamp()
            try:
                jobs.wait(asked.table, asked.version, asked.tenant, 0, asked.index)
            except WaitError as error:
                if not error.late:
                    raise
                return str(error), now
        return None, now

    def verifiable(self, asked: arguments.Compared) -> list[tuple[str, list[str] | None]]:
        """The tables to compare, each with the names of some of its indexes; None: all."""
        with _told():
            jobs = self.jobs()
            held = jobs.deployment.log.jobs()
            names = {each.name for each in held if is_index(each.spec.detail.consumer)}
            wanted = chosen(asked.index, jobs.sources, names)
            return [(source.name, indexes) for source, indexes in wanted]

    def verify(
        self, table: str, indexes: list[str] | None, tenant: str | None
    ) -> list[dict[str, Any]]:
        """Compare indexes of a table with it, as `iscp verify` does. Reads only."""
        with _told():
            jobs = self.jobs()
            found = compared(jobs.deployment, [(jobs.source(table), indexes)], tenant)
            return compared_facts(found)

    def _held(self, asked: arguments.Named) -> list[Job]:
        jobs = self.jobs()
        if asked.tenant != EVERY:
            return [jobs.get_job(asked.tenant, asked.job)]
        name = job_of(asked.job)
        return [each for each in jobs.list_jobs(EVERY) if each.name == name]


def _change(asked: arguments.SpecOfKey) -> SpecUpdate:
    """The change that is asked for. Raises ConfigError, also for code by its import path."""
    change = SpecUpdate.from_json(dict(asked.spec))
    for what, named in (("consumer", change.type), ("trigger", change.job_type)):
        if ":" in str(named):
            raise ConfigError(
                f"The {what} {named!r} is an import path, which is not taken here, since whoever "
                "reaches the runtime could have any code imported. Register the job by "
                f"`iscp job register`, or have a package offer the {what} by a name."
            )
    return change


def _first(spec: JobSpec) -> JobSpec:
    """The spec of a job that has built nothing yet."""
    detail = spec.detail
    return replace(spec, detail=replace(detail, consumer=replace(detail.consumer, generation=0)))


def _named(asked: arguments.Named) -> dict[str, Any]:
    return {"tenant": asked.tenant, "job": str(job_of(asked.job))}


@contextmanager
def _told() -> Iterator[None]:
    """Say of an error whether another attempt may help."""
    try:
        yield
    except WaitError as error:
        raise TerminalError(str(error), HELD_UP) from error
    except NoSuchJobError as error:
        raise TerminalError(str(error), UNKNOWN) from error
    except ConfigError as error:
        raise TerminalError(str(error), BAD) from error
    except IscpError as error:
        if error.permanent:
            raise TerminalError(f"[{error.code}] {error}", FAILED) from error
        raise RetryableError(f"[{error.code}] {error}") from error.__cause__
