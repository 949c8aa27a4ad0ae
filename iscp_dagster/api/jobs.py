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
    ALL_TENANTS,
    check_table,
    describe_tenant,
    format_command,
    format_names,
    make_unknown_error,
    prefix_errors,
    to_job_id,
    to_tenant_filter,
)
from iscp_dagster.api.waiting import CommitWait
from iscp_dagster.delta.checks import check_keys
from iscp_dagster.delta.log.deltalog import DeltaLog
from iscp_dagster.joblog.history import HistoryEntry, Usage
from iscp_dagster.joblog.index_consumer import fit_index_consumer
from iscp_dagster.joblog.results import SpecUpdateResult
from iscp_dagster.joblog.updates import SpecUpdate
from iscp_dagster.model import errors
from iscp_dagster.model.consumers.kinds import get_consumer_kind
from iscp_dagster.model.declared.kinds import list_kind_names
from iscp_dagster.model.declared.sharding import SHARD
from iscp_dagster.model.declared.tables import DEFAULT_TENANT, SourceTable
from iscp_dagster.model.jobs import Job, JobID, JobKey, JobStatus, NewJob, check_tenant
from iscp_dagster.model.moment import HistoryStart
from iscp_dagster.model.specs import ConsumerInfo, IterationDetail, JobSpec
from iscp_dagster.model.states import JobState
from iscp_dagster.model.variables import DAGSTER_HOME
from iscp_dagster.planning.job_specs import add_shard, make_job_spec, make_job_specs
from iscp_dagster.planning.table_problems import check_sole
from iscp_dagster.planning.triggers.plan import check_schedule_settings
from iscp_dagster.sync.deployment import Deployment
from iscp_dagster.upkeep.progress import Progress, read_progress


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

    def join_transaction(self, connection: Any) -> Jobs:
        """The same jobs; every call joins the transaction of a SQLAlchemy connection.

        The connection is to the ISCP log's database. Others see nothing before the caller
        commits; runs that a change interrupts then find out by themselves within seconds.
        """
        deployment = replace(self.deployment, log=self.deployment.log.bind(connection))
        return replace(self, deployment=deployment, cancel_runs=lambda _: None)

    def register_job(
        self, tenant: str, job: JobID | str, spec: JobSpec, *, connection: Any = None
    ) -> bool:
        """Register a job. True when it is new; False when it exists, and keeps its spec.

        `*` registers it for every tenant of the table, now and later; True when that or any job
        is new. Unregisters the tenant's job of an earlier, dropped table of the same name; its rows
        are replaced by the new table's, even if that has none.
        `connection` makes the call part of the caller's transaction (see `join_transaction`).
        Raises ConfigError for a job that could never run, SourceError when there is no such table.
        """
        job = to_job_id(job)
        if connection is not None:
            return self.join_transaction(connection).register_job(tenant, job, spec)
        delta_log, spec = self.prepare_registration(tenant, job, spec)
        table_id = delta_log.get_table_id()
        check_sole(self.deployment, self.get_source(f"{job.db}.{job.table}"), table_id)
        tenants = self._list_tenants(job, delta_log) if tenant == ALL_TENANTS else [tenant]
        rows = [NewJob(tenant=owner, name=job, table_id=table_id, spec=spec) for owner in tenants]
        if tenant == ALL_TENANTS:
            created = self.deployment.log.register_standing(job, spec, rows)
        else:
            created = self.deployment.log.register_many(rows, adopt=False) > 0
        self._unregister_earlier(tenant, job, table_id)
        return created

    def unregister_job(self, tenant: str, job: JobID | str, *, connection: Any = None) -> bool:
        """Unregister a job, with `*` also its standing registration. False if it already was.

        The runner does not register it again by itself, even if its index is declared.
        `connection` makes the call part of the caller's transaction (see `join_transaction`).
        Raises NoSuchJobError for a job that the tenant never had, or whose row was collected.
        """
        job = to_job_id(job)
        if connection is not None:
            return self.join_transaction(connection).unregister_job(tenant, job)
        log, tenant_filter = self.deployment.log, to_tenant_filter(tenant)
        unregistered = log.unregister(tenant_filter, job)
        if not (
            unregistered or log.list_jobs(tenant=tenant_filter, name=job, include_dropped=True)
        ):
            raise self._make_unknown_error(tenant, job)
        return unregistered

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
        the caller's transaction (see `join_transaction`).
        Raises ConfigError for a spec that could never run, NoSuchJobError.
        """
        jobs = self if connection is None else self.join_transaction(connection)
        interruption = jobs.apply_spec_change(tenant, to_job_id(job), change, interrupt=interrupt)
        return interruption.changed or bool(interruption.interrupted_jobs)

    def apply_spec_change(
        self, tenant: str, job: JobID, change: SpecUpdate | JobSpec, *, interrupt: bool
    ) -> SpecUpdateResult:
        """Like `update_job_spec`, with an answer that names the jobs that were interrupted."""
        if isinstance(change, JobSpec) and _get_job_id(change) != job:
            self.check_job_spec(job, change)
        update = change if isinstance(change, SpecUpdate) else to_spec_update(change)
        rows, template = self._find_jobs(tenant, job), self._find_template(tenant, job)
        for spec in [*(row.spec for row in rows), *filter(None, [template])]:
            self._check_applied(job, update, spec)
        if update.type in list_kind_names() and rows:
            self._check_view(job, update.apply_to(rows[0].spec))
        interruption = self.deployment.log.update(
            to_tenant_filter(tenant), job, update, interrupt=interrupt, declared=template
        )
        if interruption is None:
            raise self._make_unknown_error(tenant, job)
        if interruption.interrupted_runs:
            self.cancel_runs(interruption.interrupted_runs)
        return interruption

    def rebuild_job(self, tenant: str, job: JobID | str) -> bool:
        """Rebuild an index from its source; what it serves now stays readable until then.

        `*` builds the next generation beside the served one, with the columns and options that the
        index is declared with or has been given since, and serves it in one step when every tenant
        is built. One tenant is rebuilt in place. A job in error is planned again. Raises
        NoSuchJobError, ConfigError.
        """
        job = to_job_id(job)
        if tenant == ALL_TENANTS:
            change = SpecUpdate(rebuild=True, type=self._get_declared_kind(job))
            return self.update_job_spec(ALL_TENANTS, job, change)
        rows = self._get_jobs(tenant, job)
        self.deployment.log.rebuild([row.key for row in rows])
        self.deployment.log.repair(
            [row.key for row in rows if row.state is JobState.ERROR and not self._is_stranded(row)]
        )
        return True

    def pause_job(self, tenant: str, job: JobID | str) -> bool:
        """Plan no more iterations; a running one continues. False when it is already paused.

        `*` pauses the job of every tenant that has one now. Raises NoSuchJobError.
        """
        job = to_job_id(job)
        return self._confirm_change(
            tenant, job, self.deployment.log.pause(to_tenant_filter(tenant), job)
        )

    def resume_job(self, tenant: str, job: JobID | str) -> bool:
        """Plan a paused job again; False when it is not paused. Raises NoSuchJobError."""
        job = to_job_id(job)
        return self._confirm_change(
            tenant, job, self.deployment.log.resume(to_tenant_filter(tenant), job)
        )

    def repair_job(self, tenant: str, job: JobID | str) -> bool:
        """Plan a job in error again, once the cause is gone; False when it is not in error.

        Raises NoSuchJobError, and ConfigError for a job whose table is gone.
        """
        job = to_job_id(job)
        broken = [row for row in self._get_jobs(tenant, job) if row.state is JobState.ERROR]
        stranded = [row for row in broken if self._is_stranded(row)]
        repaired = self.deployment.log.repair([row.key for row in broken if row not in stranded])
        if stranded and not repaired:
            raise errors.ConfigError(
                f"Job {job} of {describe_tenant(tenant)}: its table was dropped or recreated, "
                f"which a repair cannot undo. Register it again "
                f"({format_command('register', tenant, job)})."
            )
        return bool(repaired)

    def get_job_status(self, tenant: str, job: JobID | str) -> JobStatus:
        """The job's latest iteration. Raises NoSuchJobError."""
        return self.get_job(tenant, job).status

    def get_job(self, tenant: str, job: JobID | str) -> Job:
        """The job; if several tables had its name, the latest one. Raises NoSuchJobError."""
        return max(self._get_jobs(tenant, to_job_id(job)), key=lambda row: row.create_at)

    def get_progress(self, job: Job) -> Progress | None:
        """The progress of an index that is building. Raises SourceError, UnavailableError."""
        return read_progress(
            self.deployment, self.get_source(f"{job.name.db}.{job.name.table}"), job
        )

    def get_history_start(self, job: Job) -> HistoryStart | None:
        """Where a changes index's history of the tenant begins. Raises IscpError."""
        kind = get_consumer_kind(job.spec.detail.consumer.type)
        source = self.get_source(f"{job.name.db}.{job.name.table}")
        return kind.find_history_start(source, job, self.deployment)

    def get_job_count(self, state: JobState | str) -> list[tuple[str, JobID, JobStatus]]:
        """Tenant, name and latest iteration of every job in `state`; `len` counts them.

        Give a JobState or its name, such as `completed`. Raises ConfigError naming the states.
        """
        jobs = self.deployment.log.list_jobs(state=JobState.parse_state(state))
        return [(job.key.tenant, job.name, job.status) for job in jobs]

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
        tenant = to_tenant_filter(tenant)
        job_state = None if state is None else JobState.parse_state(state)
        jobs = self.deployment.log.list_jobs(tenant=tenant, state=job_state)
        selected = [job for job in jobs if table in {None, f"{job.name.db}.{job.name.table}"}]
        return sorted(selected, key=lambda job: (job.name, job.key))

    def list_standing(self, table: str | None = None) -> Mapping[JobID, JobSpec]:
        """The specs registered for every tenant, of `database.table` or all tables, by job name."""
        templates = self.deployment.log.list_standing()
        return {
            name: templates[name]
            for name in templates
            if table in {None, f"{name.db}.{name.table}"}
        }

    def read_history(
        self,
        tenant: str | None = None,
        job: JobID | str | None = None,
        since: datetime | None = None,
        most: int = 1_000,
    ) -> list[HistoryEntry]:
        """The history of jobs, oldest first; only the newest `most` entries."""
        tenant = to_tenant_filter(tenant)
        name = None if job is None else to_job_id(job)
        return self.deployment.log.read_history(tenant=tenant, name=name, since=since, most=most)

    def read_usage(
        self, since: datetime | None = None, tenant: str | None = None, table: str | None = None
    ) -> list[Usage]:
        """What each job used since `since`: iterations, rows, bytes, seconds.

        For every tenant and table, or for one.
        """
        return self.deployment.log.read_usage(since, tenant=to_tenant_filter(tenant), table=table)

    def wait(
        self,
        table: str,
        version: int | None = None,
        tenant: str | None = None,
        timeout: float = 300.0,
        index: str | None = None,
        *,
        report: Callable[[str], None] = lambda _: None,
    ) -> int:
        """Return a commit's version once it is searchable in every index (None: the latest commit).

        With `index`, only in that index or the consumer of that job. `report` is called with a
        line about what is still to come, whenever that may have changed.
        Registered consumers of the user's own must have it too. Waits for all tenants that the
        table holds at that version, or only for `tenant`; leaves out unregistered jobs. Raises
        WaitError after `timeout` seconds, or at once when a lagging job is in error or paused, or
        all are unregistered; ConfigError when no index of the table is declared or registered, or
        when `tenant` has neither rows in the table nor a job.
        """
        wait = CommitWait(
            deployment=self.deployment,
            source=self.get_source(table),
            tenant=to_tenant_filter(tenant),
            sleep=self.sleep,
            monotonic=self.monotonic,
            index=index,
            report=report,
        )
        return wait.wait_for_version(version, timeout)

    def get_source(self, table: str) -> SourceTable:
        """The declared `database.table`. Raises ConfigError naming the declared ones."""
        for source in self.sources:
            if source.name == table:
                return source
        check_table(table)
        names = ", ".join(sorted(source.name for source in self.sources)) or "none"
        raise errors.ConfigError(
            f"Table {table!r} is not declared; there are: {names}. Declare it in "
            f"{self.declared_in}."
        )

    def get_default_spec(self, job: JobID, type_: str | None = None) -> JobSpec:
        """The default spec of a new job: as declared, else one with only the type `type_`.

        Raises ConfigError for a job that nothing declares, without a type.
        """
        source = self.get_source(f"{job.db}.{job.table}")
        for declared in source.consumers:
            if declared.name == job.job:
                return make_job_spec(source, declared)
        if type_ is None:
            names = ", ".join(declared.name for declared in source.consumers) or "none"
            raise errors.ConfigError(
                f"{source.name} declares no index or trigger {job.job!r} (declared: {names}); name "
                "the consumer with --type."
            )
        consumer = ConsumerInfo(type=type_, db=job.db, table=job.table, job=job.job)
        return JobSpec(detail=IterationDetail(consumer=consumer))

    def list_known_tables(self) -> set[str]:
        """The tables that are declared or have a job."""
        names = {f"{job.name.db}.{job.name.table}" for job in self.list_jobs()}
        return names.union(source.name for source in self.sources)

    def prepare_registration(
        self, tenant: str, job: JobID, spec: JobSpec
    ) -> tuple[DeltaLog, JobSpec]:
        """The table's log, and the spec to register. Writes nothing; raises ConfigError."""
        source = self.check_job_spec(job, spec)
        self._check_new(job, spec)
        self._check_view(job, spec)
        delta_log = self._check_columns(job, spec)
        check_tenant(tenant)
        if source.tenant is None and tenant not in {ALL_TENANTS, DEFAULT_TENANT}:
            raise errors.ConfigError(
                f"Job {job}: table {source.name} has no tenants, so no tenant {tenant!r}; "
                f"register it for {DEFAULT_TENANT!r}."
            )
        return delta_log, add_shard(source, spec)

    def check_siblings(self, job: JobID, spec: JobSpec, tenants: Collection[str]) -> None:
        """Raises ConfigError if some of `tenants` are new and `spec` contradicts the others' jobs.

        The registration itself checks jobs registered in the meantime.
        """
        siblings = self.deployment.log.list_jobs(name=job, include_dropped=True)
        if set(tenants) - {sibling.key.tenant for sibling in siblings if sibling.drop_at is None}:
            placed_spec = add_shard(self.get_source(f"{job.db}.{job.table}"), spec)
            fit_index_consumer(job, placed_spec, siblings, adopt=False)

    def check_job_spec(self, job: JobID, spec: JobSpec) -> SourceTable:
        """The job's table. Raises ConfigError, naming the job, for a spec that could never run."""
        with prefix_errors(job):
            source = self.get_source(f"{job.db}.{job.table}")
            check_spec(source, job, spec)
        return source

    def _check_applied(self, job: JobID, update: SpecUpdate, spec: JobSpec) -> None:
        with prefix_errors(job):
            new_spec = update.apply_to(spec)
        self.check_job_spec(job, new_spec)
        if update.schedule or new_spec.detail.consumer.type != spec.detail.consumer.type:
            self._check_new(job, new_spec)
        if new_spec.detail.consumer != spec.detail.consumer:
            self._check_columns(job, new_spec)

    def _check_new(self, job: JobID, spec: JobSpec) -> None:
        """Check the rules that existing jobs may break but new ones may not. Raises ConfigError."""
        with prefix_errors(job):
            check_schedule_settings(spec.trigger)
            consumer = spec.detail.consumer
            get_consumer_kind(consumer.type).check_importable(consumer)

    def _check_view(self, job: JobID, spec: JobSpec) -> None:
        source = self.get_source(f"{job.db}.{job.table}")
        with prefix_errors(job):
            check_view_free(self.deployment, self.sources, source, spec.detail.consumer)

    def _check_columns(self, job: JobID, spec: JobSpec) -> DeltaLog:
        """The table's log. Raises ConfigError for a missing column or an invalid key.

        Checks neither if the table cannot be read.
        """
        source = self.get_source(f"{job.db}.{job.table}")
        delta_log = self.deployment.make_delta_log(source)
        with suppress(errors.SourceError, errors.UnavailableError):
            columns = delta_log.get_facts().fields
            with prefix_errors(job):
                consumer = spec.detail.consumer
                names = [field.name for field in columns]
                get_consumer_kind(consumer.type).list_columns(source, consumer, names)
                check_keys(delta_log.location, columns, source.keys)
        return delta_log

    def _confirm_change(self, tenant: str, job: JobID, changed: Collection[JobKey]) -> bool:
        """Whether anything changed. Raises NoSuchJobError if there is no job."""
        if not changed:
            self._get_jobs(tenant, job)
        return bool(changed)

    def list_specs(self, tenant: str, job: JobID) -> list[JobSpec]:
        """The spec of the tenant's job; for `*` every tenant's, and the one for later tenants."""
        template = self._find_template(tenant, job)
        return [row.spec for row in self._find_jobs(tenant, job)] + ([template] if template else [])

    def _find_jobs(self, tenant: str, job: JobID) -> list[Job]:
        return self.deployment.log.list_jobs(tenant=to_tenant_filter(tenant), name=job)

    def _get_jobs(self, tenant: str, job: JobID) -> list[Job]:
        rows = self._find_jobs(tenant, job)
        if not rows:
            raise self._make_unknown_error(tenant, job)
        return rows

    def _find_template(self, tenant: str, job: JobID) -> JobSpec | None:
        """The spec that later tenants get: as registered for `*`, else as declared."""
        if tenant != ALL_TENANTS:
            return None
        registered = self.deployment.log.list_standing()
        source = self.get_source(f"{job.db}.{job.table}")
        consumers = [consumer for consumer in source.consumers if consumer.auto_register]
        templates = {**make_job_specs(source, consumers), **registered}
        return templates.get(job)

    def _get_declared_kind(self, job: JobID) -> str | None:
        """The declared kind of the index; None if a spec sets columns or options."""
        source = self.get_source(f"{job.db}.{job.table}")
        kinds = [index.kind for index in source.indexes if index.name == job.job]
        consumers = [row.spec.detail.consumer for row in self._find_jobs(ALL_TENANTS, job)]
        plain = not any(
            consumer.columns or set(consumer.options) - {SHARD} for consumer in consumers
        )
        return (
            kinds[0]
            if kinds and plain and all(consumer.type in list_kind_names() for consumer in consumers)
            else None
        )

    def _list_tenants(self, job: JobID, delta_log: DeltaLog) -> list[str]:
        """The table's tenants, and tenants that have the job, perhaps for an earlier table.

        Includes tenants only of an earlier table, whose rows would else be served forever.
        """
        tenants = {row.key.tenant for row in self._find_jobs(ALL_TENANTS, job)}
        return sorted(tenants.union(delta_log.list_tenants()))

    def _unregister_earlier(self, tenant: str, job: JobID, table_id: str) -> None:
        for row in self._find_jobs(tenant, job):
            if row.key.table_id != table_id:
                self.deployment.log.unregister(row.key.tenant, job, row.key.table_id)

    def _is_stranded(self, job: Job) -> bool:
        if job.status.code != errors.TableGoneError.code:
            return False
        source = self.get_source(f"{job.name.db}.{job.name.table}")
        return job.key.table_id != self.deployment.make_delta_log(source).get_table_id()

    def _make_unknown_error(self, tenant: str, job: JobID) -> errors.NoSuchJobError:
        table = f"{job.db}.{job.table}"
        tables = self.list_known_tables()
        if table not in tables:
            return make_unknown_error("table", table, tables)
        names = sorted({row.name.job for row in self.list_jobs(tenant, table)})
        if owners := {row.key.tenant for row in self._find_jobs(ALL_TENANTS, job)}:
            return errors.NoSuchJobError(
                f"There is no job {job} of {describe_tenant(tenant)}; its tenants are: "
                f"{format_names(owners, tenant)}. Name one with --tenant, or all with --tenant '*'."
            )
        return errors.NoSuchJobError(
            f"There is no job {job} of {describe_tenant(tenant)}; its jobs on that table: "
            f"{', '.join(names) or 'none'}. Correct the name (`iscp job list`), or register it "
            f"({format_command('register', tenant, job)})."
        )


def to_spec_update(spec: JobSpec) -> SpecUpdate:
    """The change that sets the fields given in `spec`; the job keeps its others."""
    parts = spec.trigger, spec.detail, spec.detail.consumer
    fields = {name: getattr(part, name) for part in parts for name in part.set_fields}
    return SpecUpdate(type=spec.detail.consumer.type, **fields)


def open_jobs(environ: Mapping[str, str]) -> Jobs:
    """The jobs of the deployment that the environment or the running stack names.

    Raises ConfigError naming the unset variables.
    """
    from iscp_dagster.api.discovery import describe_place, load_tables
    from iscp_dagster.api.environment import open_deployment
    from iscp_dagster.local.stack.environment import add_stack_variables

    variables = add_stack_variables(environ)
    deployment = open_deployment(variables)

    def cancel(runs: Collection[str]) -> None:
        if home := variables.get(DAGSTER_HOME):
            from iscp_dagster.runs.cancel import cancel_runs

            cancel_runs(home, runs, spared=deployment.log.list_active_runs())

    return Jobs(
        deployment=deployment,
        sources=load_tables(variables),
        cancel_runs=cancel,
        declared_in=describe_place(variables),
    )


def _get_job_id(spec: JobSpec) -> JobID:
    consumer = spec.detail.consumer
    return JobID(db=consumer.db, table=consumer.table, job=consumer.job)
