"""The job API: register, change, watch and wait for the jobs of one deployment.

Concurrent calls are safe: each is decided in one transaction of the ISCP log.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from iscp_dagster.api.checks import check_spec, check_view_free
from iscp_dagster.api.names import (
    EVERY,
    about,
    check_table,
    command,
    job_of,
    listed,
    narrowed,
    no_such,
    whose,
)
from iscp_dagster.api.waiting import Wait
from iscp_dagster.delta.checks import check_keys
from iscp_dagster.delta.log.deltalog import DeltaLog
from iscp_dagster.joblog.history import Entry, Usage
from iscp_dagster.joblog.protocol import Interrupted
from iscp_dagster.joblog.sharing import joined
from iscp_dagster.joblog.updates import SpecUpdate
from iscp_dagster.model import errors
from iscp_dagster.model.consumers.kinds import consumer_kind
from iscp_dagster.model.declared.kinds import kind_names
from iscp_dagster.model.declared.sharding import SHARD
from iscp_dagster.model.declared.tables import DEFAULT_TENANT, SourceTable
from iscp_dagster.model.jobs import Job, JobID, JobKey, JobStatus, NewJob, checked_tenant
from iscp_dagster.model.moment import Beginning
from iscp_dagster.model.specs import ConsumerInfo, IterationDetail, JobSpec
from iscp_dagster.model.states import JobState
from iscp_dagster.model.variables import DAGSTER_HOME
from iscp_dagster.planning.declared import declared, job_spec, placed
from iscp_dagster.planning.table_problems import check_sole
from iscp_dagster.planning.triggers.plan import check_scheduled
from iscp_dagster.sync.deployment import Deployment
from iscp_dagster.upkeep.progress import Progress, progress


@dataclass(frozen=True, kw_only=True)
class Jobs:
    """The jobs of the `sources` that a deployment declares.

    A job is given by its JobID or as `database.table/job`, a state by a JobState or its name;
    anything else raises ConfigError.
    `cancel_runs` gets the runs of interrupted jobs, by run id or dispatch name; the log already
    rejects what they write for these jobs. It must spare a run that has other jobs.
    """

    deployment: Deployment
    sources: Sequence[SourceTable]
    cancel_runs: Callable[[Collection[str]], None]
    declared_in: str = "assets/"
    """What declares the sources, as a message names it."""
    sleep: Callable[[float], None] = time.sleep
    monotonic: Callable[[], float] = time.monotonic

    def within(self, connection: Any) -> Jobs:
        """The same jobs; every call joins the transaction of a SQLAlchemy connection.

        The connection is to the ISCP log's database. Others see nothing before the caller
        commits; runs that a change interrupts then find out by themselves within seconds.
        """
        deployment = replace(self.deployment, log=self.deployment.log.within(connection))
        return replace(self, deployment=deployment, cancel_runs=lambda _: None)

    def register_job(
        self, tenant: str, job: JobID | str, spec: JobSpec, *, connection: Any = None
    ) -> bool:
        """Register a job. True when it is new; False when it exists, and keeps its spec.

        `*` registers it for every tenant of the table, now and later; True when that or any job
        is new. Unregisters the tenant's job of an earlier, dropped table of the same name, whose
        rows are replaced by the new table's, of which there may be none.
        `connection` makes the call part of the caller's transaction (see `within`).
        Raises ConfigError for a job that could never run, SourceError when there is no such table.
        """
        job = job_of(job)
        if connection is not None:
            return self.within(connection).register_job(tenant, job, spec)
        delta_log, spec = self.registrable(tenant, job, spec)
        table_id = delta_log.table_id()
        check_sole(self.deployment, self.source(f"{job.db}.{job.table}"), table_id)
        rows = [
            NewJob(tenant=each, name=job, table_id=table_id, spec=spec)
            for each in (self._tenants(job, delta_log) if tenant == EVERY else [tenant])
        ]
        if tenant == EVERY:
            created = self.deployment.log.stand(job, spec, rows)
        else:
            created = self.deployment.log.register_many(rows, adopt=False) > 0
        self._unregister_earlier(tenant, job, table_id)
        return created

    def unregister_job(self, tenant: str, job: JobID | str, *, connection: Any = None) -> bool:
        """Unregister a job, with `*` also its standing registration. False if it already was.

        The runner does not register it again by itself, even if its index is declared.
        `connection` makes the call part of the caller's transaction (see `within`).
        Raises NoSuchJobError for a job that the tenant never had, or whose row was collected.
        """
        job = job_of(job)
        if connection is not None:
            return self.within(connection).unregister_job(tenant, job)
        log, chosen = self.deployment.log, narrowed(tenant)
        done = log.unregister(chosen, job)
        if not (done or log.jobs(tenant=chosen, name=job, include_dropped=True)):
            raise self._unknown(tenant, job)
        return done

    def update_job_spec(
        self,
        tenant: str,
        job: JobID | str,
        change: SpecUpdate | JobSpec,
        *,
        interrupt: bool = False,
        connection: Any = None,
    ) -> bool:
        """Change the fields that `change` sets, even to a default. False when nothing changed.

        Takes effect with the next iteration; `interrupt` cancels the job's part in the current one,
        and the run if it has no other job, so that the next one starts soon. A job that waits after
        failures is planned again at once if the spec changes or `interrupt` is set; one in error
        always is, unless its table is gone. `*` changes
        every tenant's job and the spec that later tenants get. `connection` makes the call part of
        the caller's transaction (see `within`).
        Raises ConfigError for a spec that could never run, NoSuchJobError.
        """
        jobs = self if connection is None else self.within(connection)
        done = jobs.change_job_spec(tenant, job_of(job), change, interrupt=interrupt)
        return done.changed or bool(done.keys)

    def change_job_spec(
        self, tenant: str, job: JobID, change: SpecUpdate | JobSpec, *, interrupt: bool
    ) -> Interrupted:
        """Like `update_job_spec`, with an answer that names the jobs that were interrupted."""
        if isinstance(change, JobSpec) and _named(change) != job:
            self.checked(job, change)
        wanted = change if isinstance(change, SpecUpdate) else stated(change)
        held, standing = self._rows(tenant, job), self._standing(tenant, job)
        for spec in [*(each.spec for each in held), *filter(None, [standing])]:
            self._check_applied(job, wanted, spec)
        if wanted.type in kind_names() and held:
            self._check_view(job, wanted.applied(held[0].spec))
        done = self.deployment.log.update(
            narrowed(tenant), job, wanted, interrupt=interrupt, declared=standing
        )
        if done is None:
            raise self._unknown(tenant, job)
        if done.runs:
            self.cancel_runs(done.runs)
        return done

    def rebuild_job(self, tenant: str, job: JobID | str) -> bool:
        """Rebuild an index from its source; what it serves now stays readable until then.

        `*` builds the next generation beside the served one, with the columns and options that the
        index is declared with or has been given since, and serves it in one step when every tenant
        is built. One tenant is rebuilt in place. A job in error is planned again. Raises
        NoSuchJobError, ConfigError.
        """
        job = job_of(job)
        if tenant == EVERY:
            change = SpecUpdate(rebuild=True, type=self._declared_kind(job))
            return self.update_job_spec(EVERY, job, change)
        held = self._held(tenant, job)
        self.deployment.log.rebuild([each.key for each in held])
        self.deployment.log.repair(
            [e.key for e in held if e.state is JobState.ERROR and not self._is_stranded(e)]
        )
        return True

    def pause_job(self, tenant: str, job: JobID | str) -> bool:
        """Plan no more iterations; one that runs goes on. False when it is already paused.

        `*` pauses the job of every tenant that has one now. Raises NoSuchJobError.
        """
        job = job_of(job)
        return self._told(tenant, job, self.deployment.log.pause(narrowed(tenant), job))

    def resume_job(self, tenant: str, job: JobID | str) -> bool:
        """Plan a paused job again; False when it is not paused. Raises NoSuchJobError."""
        job = job_of(job)
        return self._told(tenant, job, self.deployment.log.resume(narrowed(tenant), job))

    def repair_job(self, tenant: str, job: JobID | str) -> bool:
        """Plan a job in error again, once the cause is gone; False when it is not in error.

        Raises NoSuchJobError, and ConfigError for a job whose table is gone.
        """
        job = job_of(job)
        broken = [each for each in self._held(tenant, job) if each.state is JobState.ERROR]
        stranded = [each for each in broken if self._is_stranded(each)]
        repaired = self.deployment.log.repair([each.key for each in broken if each not in stranded])
        if stranded and not repaired:
            raise errors.ConfigError(
                f"Job {job} of {whose(tenant)}: its table was dropped or recreated, "
                f"which a repair cannot undo. Register it again "
                f"({command('register', tenant, job)})."
            )
        return bool(repaired)

    def get_job_status(self, tenant: str, job: JobID | str) -> JobStatus:
        """The job's latest iteration. Raises NoSuchJobError."""
        return self.get_job(tenant, job).status

    def get_job(self, tenant: str, job: JobID | str) -> Job:
        """The job; if several tables had its name, the latest one. Raises NoSuchJobError."""
        return max(self._held(tenant, job_of(job)), key=lambda each: each.create_at)

    def get_progress(self, job: Job) -> Progress | None:
        """How far an index that is building has come. Raises SourceError, UnavailableError."""
        return progress(self.deployment, self.source(f"{job.name.db}.{job.name.table}"), job)

    def get_history(self, job: Job) -> Beginning | None:
        """Where a changes index's history of the tenant begins. Raises IscpError."""
        kind = consumer_kind(job.spec.detail.consumer.type)
        source = self.source(f"{job.name.db}.{job.name.table}")
        return kind.history(source, job, self.deployment)

    def get_job_count(self, state: JobState | str) -> list[tuple[str, JobID, JobStatus]]:
        """Tenant, name and latest iteration of every job in `state`; `len` counts them.

        Give a JobState or its name, such as `completed`. Raises ConfigError naming the states.
        """
        found = self.deployment.log.jobs(state=JobState.named(state))
        return [(each.key.tenant, each.name, each.status) for each in found]

    def count_jobs(self) -> Mapping[JobState, int]:
        """How many registered jobs are in each state, 0 included; no job is read."""
        return self.deployment.log.count()

    def list_jobs(
        self,
        tenant: str | None = None,
        table: str | None = None,
        state: JobState | str | None = None,
    ) -> list[Job]:
        """The jobs of a tenant (None or `*`: all), of `database.table`, in a state; by name."""
        tenant = narrowed(tenant)
        wanted = None if state is None else JobState.named(state)
        found = self.deployment.log.jobs(tenant=tenant, state=wanted)
        chosen = [each for each in found if table in {None, f"{each.name.db}.{each.name.table}"}]
        return sorted(chosen, key=lambda each: (each.name, each.key))

    def standing(self, table: str | None = None) -> Mapping[JobID, JobSpec]:
        """The specs registered for every tenant, of `database.table` or all tables, by job name."""
        found = self.deployment.log.standing()
        return {name: found[name] for name in found if table in {None, f"{name.db}.{name.table}"}}

    def history(
        self,
        tenant: str | None = None,
        job: JobID | str | None = None,
        since: datetime | None = None,
        most: int = 1_000,
    ) -> list[Entry]:
        """What happened to jobs, oldest first; only the newest `most` entries."""
        tenant = narrowed(tenant)
        name = None if job is None else job_of(job)
        return self.deployment.log.history(tenant=tenant, name=name, since=since, most=most)

    def usage(
        self, since: datetime | None = None, tenant: str | None = None, table: str | None = None
    ) -> list[Usage]:
        """What each job used since `since`: iterations, rows, bytes, seconds.

        For every tenant and table, or for one.
        """
        return self.deployment.log.usage(since, tenant=narrowed(tenant), table=table)

    def wait(
        self,
        table: str,
        version: int | None = None,
        tenant: str | None = None,
        timeout: float = 300.0,
        index: str | None = None,
        *,
        tell: Callable[[str], None] = lambda _: None,
    ) -> int:
        """Return a commit's version once it is searchable in every index (None: the latest commit).

        With `index`, in that index or the consumer of that job alone. `tell` is called with a line
        about what is still to come, whenever that may have changed.
        Registered consumers of the user's own must have it too. Waits for all tenants that the
        table holds at that version, or for `tenant` alone; leaves out unregistered jobs. Raises
        WaitError after `timeout` seconds, or at once when a lagging job is in error or paused, or
        all are unregistered; ConfigError when no index of the table is declared or registered, or
        when `tenant` has neither rows in the table nor a job.
        """
        wait = Wait(
            deployment=self.deployment,
            source=self.source(table),
            tenant=narrowed(tenant),
            sleep=self.sleep,
            monotonic=self.monotonic,
            index=index,
            tell=tell,
        )
        return wait.until(version, timeout)

    def source(self, table: str) -> SourceTable:
        """The declared `database.table`. Raises ConfigError naming the declared ones."""
        for each in self.sources:
            if each.name == table:
                return each
        check_table(table)
        known = ", ".join(sorted(each.name for each in self.sources)) or "none"
        raise errors.ConfigError(
            f"Table {table!r} is not declared; there are: {known}. Declare it in "
            f"{self.declared_in}."
        )

    def plain_spec(self, job: JobID, type_: str | None = None) -> JobSpec:
        """The spec that a new job has unless more is said: as declared, else of the `type_` alone.

        Raises ConfigError for a job that nothing declares, without a type.
        """
        source = self.source(f"{job.db}.{job.table}")
        for each in source.consumers:
            if each.name == job.job:
                return job_spec(source, each)
        if type_ is None:
            known = ", ".join(each.name for each in source.consumers) or "none"
            raise errors.ConfigError(
                f"{source.name} declares no index or trigger {job.job!r} (declared: {known}); name "
                "the consumer with --type."
            )
        consumer = ConsumerInfo(type=type_, db=job.db, table=job.table, job=job.job)
        return JobSpec(detail=IterationDetail(consumer=consumer))

    def known_tables(self) -> set[str]:
        """The tables that are declared or have a job."""
        held = {f"{each.name.db}.{each.name.table}" for each in self.list_jobs()}
        return held.union(source.name for source in self.sources)

    def registrable(self, tenant: str, job: JobID, spec: JobSpec) -> tuple[DeltaLog, JobSpec]:
        """The table's log, and the spec to register. Writes nothing; raises ConfigError."""
        source = self.checked(job, spec)
        self._check_new(job, spec)
        self._check_view(job, spec)
        delta_log = self._check_columns(job, spec)
        checked_tenant(tenant)
        if source.tenant is None and tenant not in {EVERY, DEFAULT_TENANT}:
            raise errors.ConfigError(
                f"Job {job}: table {source.name} has no tenants, so no tenant {tenant!r}; "
                f"register it for {DEFAULT_TENANT!r}."
            )
        return delta_log, placed(source, spec)

    def check_siblings(self, job: JobID, spec: JobSpec, tenants: Collection[str]) -> None:
        """Raises ConfigError if some of `tenants` are new and `spec` contradicts the others' jobs.

        The registration itself checks those registered in the meantime.
        """
        others = self.deployment.log.jobs(name=job, include_dropped=True)
        if set(tenants) - {each.key.tenant for each in others if each.drop_at is None}:
            placed_spec = placed(self.source(f"{job.db}.{job.table}"), spec)
            joined(job, placed_spec, others, adopt=False)

    def checked(self, job: JobID, spec: JobSpec) -> SourceTable:
        """The job's table. Raises ConfigError, naming the job, for a spec that could never run."""
        with about(job):
            source = self.source(f"{job.db}.{job.table}")
            check_spec(source, job, spec)
        return source

    def _check_applied(self, job: JobID, wanted: SpecUpdate, spec: JobSpec) -> None:
        with about(job):
            new = wanted.applied(spec)
        self.checked(job, new)
        if wanted.schedule or new.detail.consumer.type != spec.detail.consumer.type:
            self._check_new(job, new)
        if new.detail.consumer != spec.detail.consumer:
            self._check_columns(job, new)

    def _check_new(self, job: JobID, spec: JobSpec) -> None:
        """Check the rules that existing jobs may break but new ones may not. Raises ConfigError."""
        with about(job):
            check_scheduled(spec.trigger)
            consumer = spec.detail.consumer
            consumer_kind(consumer.type).check_importable(consumer)

    def _check_view(self, job: JobID, spec: JobSpec) -> None:
        source = self.source(f"{job.db}.{job.table}")
        with about(job):
            check_view_free(self.deployment, self.sources, source, spec.detail.consumer)

    def _check_columns(self, job: JobID, spec: JobSpec) -> DeltaLog:
        """The table's log. Raises ConfigError for a missing column or an invalid key.

        Checks neither if the table cannot be read.
        """
        source = self.source(f"{job.db}.{job.table}")
        delta_log = self.deployment.delta_log(source)
        with suppress(errors.SourceError, errors.UnavailableError):
            columns = delta_log.facts().fields
            with about(job):
                consumer = spec.detail.consumer
                names = [field.name for field in columns]
                consumer_kind(consumer.type).columns(source, consumer, names)
                check_keys(delta_log.location, columns, source.keys)
        return delta_log

    def _told(self, tenant: str, job: JobID, changed: Collection[JobKey]) -> bool:
        """Whether anything changed. Raises NoSuchJobError if there is no job."""
        if not changed:
            self._held(tenant, job)
        return bool(changed)

    def specs(self, tenant: str, job: JobID) -> list[JobSpec]:
        """The spec of the tenant's job; for `*` every tenant's, and the one for later tenants."""
        later = self._standing(tenant, job)
        return [each.spec for each in self._rows(tenant, job)] + ([later] if later else [])

    def _rows(self, tenant: str, job: JobID) -> list[Job]:
        return self.deployment.log.jobs(tenant=narrowed(tenant), name=job)

    def _held(self, tenant: str, job: JobID) -> list[Job]:
        held = self._rows(tenant, job)
        if not held:
            raise self._unknown(tenant, job)
        return held

    def _standing(self, tenant: str, job: JobID) -> JobSpec | None:
        """The spec that later tenants get: as registered for `*`, else as declared."""
        if tenant != EVERY:
            return None
        standing = self.deployment.log.standing()
        source = self.source(f"{job.db}.{job.table}")
        auto = [each for each in source.consumers if each.auto_register]
        found = {**declared(source, auto), **standing}
        return found.get(job)

    def _declared_kind(self, job: JobID) -> str | None:
        """The declared kind of the index; None if a spec sets columns or options."""
        source = self.source(f"{job.db}.{job.table}")
        kinds = [index.kind for index in source.indexes if index.name == job.job]
        held = [each.spec.detail.consumer for each in self._rows(EVERY, job)]
        plain = not any(each.columns or set(each.options) - {SHARD} for each in held)
        return (
            kinds[0]
            if kinds and plain and all(each.type in kind_names() for each in held)
            else None
        )

    def _tenants(self, job: JobID, delta_log: DeltaLog) -> list[str]:
        """The table's tenants, and those that have the job, perhaps for an earlier table.

        A tenant that the table lacks would else be served the earlier one's rows for ever.
        """
        held = {each.key.tenant for each in self._rows(EVERY, job)}
        return sorted(held.union(delta_log.tenants()))

    def _unregister_earlier(self, tenant: str, job: JobID, table_id: str) -> None:
        for each in self._rows(tenant, job):
            if each.key.table_id != table_id:
                self.deployment.log.unregister(each.key.tenant, job, each.key.table_id)

    def _is_stranded(self, job: Job) -> bool:
        if job.status.code != errors.TableGoneError.code:
            return False
        source = self.source(f"{job.name.db}.{job.name.table}")
        return job.key.table_id != self.deployment.delta_log(source).table_id()

    def _unknown(self, tenant: str, job: JobID) -> errors.NoSuchJobError:
        table = f"{job.db}.{job.table}"
        tables = self.known_tables()
        if table not in tables:
            return no_such("table", table, tables)
        known = sorted({each.name.job for each in self.list_jobs(tenant, table)})
        if others := {each.key.tenant for each in self._rows(EVERY, job)}:
            return errors.NoSuchJobError(
                f"There is no job {job} of {whose(tenant)}; its tenants are: "
                f"{listed(others, tenant)}. Name one with --tenant, or all with --tenant '*'."
            )
        return errors.NoSuchJobError(
            f"There is no job {job} of {whose(tenant)}; its jobs on that table: "
            f"{', '.join(known) or 'none'}. Correct the name (`iscp job list`), or register it "
            f"({command('register', tenant, job)})."
        )


def stated(spec: JobSpec) -> SpecUpdate:
    """The change that sets the fields given in `spec`; the job keeps its others."""
    parts = spec.trigger, spec.detail, spec.detail.consumer
    given = {name: getattr(part, name) for part in parts for name in part.given}
    return SpecUpdate(type=spec.detail.consumer.type, **given)


def open_jobs(environ: Mapping[str, str]) -> Jobs:
    """The jobs of the deployment that the environment or the running stack names.

    Raises ConfigError naming the unset variables.
    """
    from iscp_dagster.api.discovery import declared, place_of
    from iscp_dagster.api.environment import deployment_of
    from iscp_dagster.local.stack.environment import with_stack

    found = with_stack(environ)
    deployment = deployment_of(found)

    def cancel(runs: Collection[str]) -> None:
        if home := found.get(DAGSTER_HOME):
            from iscp_dagster.runs.cancel import cancel_runs

            cancel_runs(home, runs, spared=deployment.log.active_runs())

    return Jobs(
        deployment=deployment,
        sources=declared(found),
        cancel_runs=cancel,
        declared_in=place_of(found),
    )


def _named(spec: JobSpec) -> JobID:
    consumer = spec.detail.consumer
    return JobID(db=consumer.db, table=consumer.table, job=consumer.job)
