"""The steps that handlers take: each blocks, and is idempotent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from durable_invocations.serving.errors import RetryableError, TerminalError
from iscp_dagster.api.facts import describe_comparison as compared_facts
from iscp_dagster.api.facts import describe_job as job_facts
from iscp_dagster.api.jobs import Jobs
from iscp_dagster.api.names import ALL_TENANTS, to_job_id
from iscp_dagster.api.selection import select_indexes
from iscp_dagster.joblog.updates import SpecUpdate
from iscp_dagster.jobservices import arguments
from iscp_dagster.model.consumers.kinds import is_index
from iscp_dagster.model.errors import ConfigError, IscpError, NoSuchJobError, WaitError
from iscp_dagster.model.jobs import Job
from iscp_dagster.model.specs import JobSpec
from iscp_dagster.upkeep.verify_tables import compare_tables

BAD, UNKNOWN, TIMED_OUT, HELD_UP, FAILED = 400, 404, 408, 409, 500
"""The statuses of terminal failures."""


@dataclass(frozen=True, kw_only=True)
class Steps:
    """What can be done with the jobs of the deployment that `jobs` opens.

    Raises TerminalError if another attempt would not help, else RetryableError.
    """

    jobs: Callable[[], Jobs]

    def register(self, argument: arguments.RegisterArgument) -> dict[str, Any]:
        """Register a job, or those of every tenant. Idempotent."""
        with _translate_errors():
            jobs, job = self.jobs(), to_job_id(argument.job)
            change = _parse_change(argument)
            spec = _reset_generation(change.apply_to(jobs.get_default_spec(job, change.type)))
            jobs.register_job(argument.tenant, job, spec)
        return {"tenant": argument.tenant, "job": str(job), "registered": True}

    def update(self, argument: arguments.UpdateArgument) -> dict[str, Any]:
        """Change a job's spec."""
        with _translate_errors():
            change = _parse_change(argument)
            changed = self.jobs().update_job_spec(
                argument.tenant, argument.job, change, interrupt=argument.interrupt
            )
        return {**_identify_job(argument), "changed": changed}

    def pause(self, argument: arguments.JobReference) -> dict[str, Any]:
        """Plan no more iterations."""
        with _translate_errors():
            changed = self.jobs().pause_job(argument.tenant, argument.job)
        return {**_identify_job(argument), "changed": changed}

    def resume(self, argument: arguments.JobReference) -> dict[str, Any]:
        """Plan a paused job again."""
        with _translate_errors():
            changed = self.jobs().resume_job(argument.tenant, argument.job)
        return {**_identify_job(argument), "changed": changed}

    def describe_jobs(self, argument: arguments.JobReference) -> list[dict[str, Any]]:
        """Everything about the job of one tenant, or of each."""
        with _translate_errors():
            return [job_facts(job) for job in self._find_jobs(argument)]

    def get_latest_version(self, table: str) -> int:
        """The table's latest commit."""
        with _translate_errors():
            jobs = self.jobs()
            return (
                jobs.deployment.make_delta_log(jobs.get_source(table)).get_latest_moment().version
            )

    def find_lag(self, argument: arguments.WaitArgument) -> tuple[str | None, float]:
        """What lacks the awaited commit, or None; and when it was checked, in Unix time.

        TerminalError (409) if waiting cannot help: a job is in error or paused.
        """
        with _translate_errors():
            jobs = self.jobs()
            now = jobs.deployment.clock().timestamp()
            try:
                jobs.wait(argument.table, argument.version, argument.tenant, 0, argument.index)
            except WaitError as error:
                if not error.late:
                    raise
                return str(error), now
        return None, now

    def list_verifiable(
        self, argument: arguments.VerifyArgument
    ) -> list[tuple[str, list[str] | None]]:
        """The tables to compare, each with the names of some of its indexes; None: all."""
        with _translate_errors():
            jobs = self.jobs()
            registered = jobs.deployment.log.list_jobs()
            names = {job.name for job in registered if is_index(job.spec.detail.consumer)}
            selected = select_indexes(argument.index, jobs.sources, names)
            return [(source.name, indexes) for source, indexes in selected]

    def verify(
        self, table: str, indexes: list[str] | None, tenant: str | None
    ) -> list[dict[str, Any]]:
        """Compare indexes of a table with it, as `iscp verify` does. Reads only."""
        with _translate_errors():
            jobs = self.jobs()
            comparison = compare_tables(
                jobs.deployment, [(jobs.get_source(table), indexes)], tenant
            )
            return compared_facts(comparison)

    def _find_jobs(self, argument: arguments.JobReference) -> list[Job]:
        jobs = self.jobs()
        if argument.tenant != ALL_TENANTS:
            return [jobs.get_job(argument.tenant, argument.job)]
        name = to_job_id(argument.job)
        return [job for job in jobs.list_jobs(ALL_TENANTS) if job.name == name]


def _parse_change(argument: arguments.SpecOfKey) -> SpecUpdate:
    """The requested change. Raises ConfigError, also for code by its import path."""
    change = SpecUpdate.from_json(dict(argument.spec))
    for role, value in (("consumer", change.type), ("trigger", change.job_type)):
        if ":" in str(value):
            raise ConfigError(
                f"The {role} {value!r} is an import path, which is not allowed here, since whoever "
                "reaches the runtime could have any code imported. Register the job by "
                f"`iscp job register`, or have a package offer the {role} by a name."
            )
    return change


def _reset_generation(spec: JobSpec) -> JobSpec:
    """The spec of a job that has built nothing yet."""
    detail = spec.detail
    return replace(spec, detail=replace(detail, consumer=replace(detail.consumer, generation=0)))


def _identify_job(argument: arguments.JobReference) -> dict[str, Any]:
    return {"tenant": argument.tenant, "job": str(to_job_id(argument.job))}


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Raise errors as terminal, or as retryable if another attempt may help."""
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
