"""Hourly maintenance: flushes watermarks, deletes garbage, old staging tables and history."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import groupby, product
from typing import Any

from iscp_dagster.clickhouse.tables.generations import IndexGenerations
from iscp_dagster.clickhouse.tables.staging import find_leftover_tables
from iscp_dagster.clickhouse.write.letters import DeadLetters
from iscp_dagster.model.consumers.kinds import is_index
from iscp_dagster.model.declared.names import view_name
from iscp_dagster.model.declared.sharding import format_suffix, get_shard, strip_shard_suffix
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.model.errors import IscpError, UnavailableError
from iscp_dagster.model.jobs import Job, JobID
from iscp_dagster.planning.effective import compute_effective_jobs, flush_jobs
from iscp_dagster.planning.job_specs import make_job_name
from iscp_dagster.planning.problems import make_problem, to_iscp_error
from iscp_dagster.sync.deployment import Deployment
from iscp_dagster.sync.ledger import make_state_key

JOB_RETENTION = timedelta(days=1)
"""How long a dropped job and its data are kept."""
HISTORY_RETENTION = timedelta(days=90)
"""How long the history is kept."""


@dataclass(kw_only=True)
class FlushResult:
    """How many jobs moved, by table, and the problems, none of which stops another table."""

    moved_jobs: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def flush_watermarks(deployment: Deployment, sources: Sequence[SourceTable]) -> FlushResult:
    """Write to the ISCP log how far the watermarks of idle jobs moved in memory.

    A restart then reads changes since the last flush, not since the last change. Reads the
    tables' logs; touches no state and no status. Idempotent.
    """
    flushed = FlushResult()
    for source in sources:
        if not deployment.log.find_table_ids(source.database, source.table):
            continue  # it has no jobs, and may not be there yet
        try:
            flushed.moved_jobs[source.name] = _flush_table(deployment, source)
        except Exception as error:  # noqa: BLE001 - a table's error must not stop the others
            flushed.problems.append(str(make_problem(source, error)))
    return flushed


@dataclass(frozen=True, kw_only=True)
class Garbage:
    """A dropped job to delete, and what to delete with it."""

    job: Job
    scope: str
    """`table`, `tenant`, or `nothing` where the data is not ours, is gone or serves another job."""
    drops_letters: bool
    """Whether to drop its dead letters: no other job of the tenant has its name."""
    keeps_row: bool
    """Whether the row stays, since the runner would register the job again without it."""


def find_garbage(
    deployment: Deployment, sources: Sequence[SourceTable], retention: timedelta = JOB_RETENTION
) -> list[Garbage]:
    """The jobs dropped longer ago than `retention`, and what to delete with each, by name.

    Reads only. Only jobs of the `sources`: others in the log belong, or belonged, to another
    deployment.
    """
    tables = {(source.database, source.table) for source in sources}
    dropped = [
        job
        for job in deployment.log.list_dropped(deployment.clock() - retention)
        if (job.name.db, job.name.table) in tables
    ]
    dropped.sort(key=_get_name)
    staying = _find_self_registering(deployment, sources, dropped)
    garbage: list[Garbage] = []
    for name, group in groupby(dropped, key=_get_name):
        garbage += _build_garbage(deployment, name, list(group), staying)
    return garbage


def delete_garbage(
    deployment: Deployment, sources: Sequence[SourceTable], garbage: Sequence[Garbage]
) -> int:
    """Drop the data, then the rows; returns how many rows. Resumes an interrupted call.

    A row that stays is marked, so that its data is dropped once. Raises the first error as an
    IscpError, after trying all.
    """
    columns = {(source.database, source.table): source.tenant for source in sources}
    forgotten, errors = 0, list[IscpError]()
    for group in _group_alike(_refresh_garbage(deployment, sources, garbage)):
        name = group[0].job.name
        dropped, problems = _drop_or_split(deployment, group, columns[name.db, name.table])
        errors += problems
        if deployment.open_state_store is not None and dropped:
            deployment.open_state_store().forget([make_state_key(piece.job) for piece in dropped])
        deployment.log.mark_collected([piece.job for piece in dropped if piece.keeps_row])
        forgotten += deployment.log.delete_dropped(
            [piece.job for piece in dropped if not piece.keeps_row]
        )
    if errors:
        raise errors[0]
    return forgotten


def _group_alike(garbage: Iterable[Garbage]) -> Iterator[list[Garbage]]:
    """The garbage in groups whose data is dropped by the same statements."""
    groups: dict[tuple[Any, ...], list[Garbage]] = {}
    for piece in garbage:
        info = piece.job.spec.detail.consumer
        group_key = (piece.job.name, get_shard(info.options), piece.scope, piece.drops_letters)
        groups.setdefault(group_key, []).append(piece)
    yield from groups.values()


def _drop_or_split(
    deployment: Deployment, group: Sequence[Garbage], tenant_column: str | None
) -> tuple[Sequence[Garbage], Sequence[IscpError]]:
    """The garbage whose data was dropped, and the errors of the rest.

    A group that fails is dropped one by one, since one tenant may be the cause.
    """
    try:
        _drop_data(deployment, group, tenant_column)
    except UnavailableError as error:
        return [], [error]
    except Exception as error:  # noqa: BLE001 - a tenant's error must not stop the others
        if len(group) == 1:
            return [], [to_iscp_error(error)]
        results = [_drop_or_split(deployment, [piece], tenant_column) for piece in group]
        return [piece for dropped, _ in results for piece in dropped], [
            failure for _, errors in results for failure in errors
        ]
    return group, []


def _drop_data(deployment: Deployment, group: Sequence[Garbage], tenant_column: str | None) -> None:
    """Drop the data of a group's jobs in ClickHouse, and their dead letters."""
    first = group[0]
    name, tenants = first.job.name, [piece.job.key.tenant for piece in group]
    data = deployment.get_index_data(first.job.spec.detail.consumer)
    if data is None:
        return
    if first.scope == "table":
        data.drop_index()
    elif first.scope == "tenant":
        data.drop_tenants(tenant_column, tenants)
    if first.drops_letters:
        letters = DeadLetters(endpoint=data.endpoint, database=data.database)
        letters.drop_tenants(f"{name.db}.{name.table}/{name.job}", tenants)


def _refresh_garbage(
    deployment: Deployment, sources: Sequence[SourceTable], garbage: Sequence[Garbage]
) -> Iterator[Garbage]:
    """The garbage, looked up again just before use: without jobs registered again meanwhile."""
    ids = {(piece.job.key, piece.job.registration) for piece in garbage}
    staying = _find_self_registering(deployment, sources, [piece.job for piece in garbage])
    for name in sorted({piece.job.name for piece in garbage}):
        rows = deployment.log.list_jobs(name=name, include_dropped=True)
        dropped = [job for job in rows if job.drop_at and (job.key, job.registration) in ids]
        yield from _build_garbage(deployment, name, dropped, staying)


def _find_self_registering(
    deployment: Deployment, sources: Sequence[SourceTable], dropped: Sequence[Job]
) -> set[tuple[JobID, str]]:
    """The jobs, by name and table id, that the runner would register again without their rows."""
    standing, staying = deployment.log.list_standing(), set()
    tables = {(job.name.db, job.name.table) for job in dropped}
    for source in sources:
        if (source.database, source.table) not in tables:
            continue
        names = {
            make_job_name(source, consumer)
            for consumer in source.consumers
            if consumer.auto_register
        }
        names |= {id_ for id_ in standing if (id_.db, id_.table) == (source.database, source.table)}
        staying |= set(product(names, _find_table_ids(deployment, source, dropped)))
    return staying


def _find_table_ids(
    deployment: Deployment, source: SourceTable, dropped: Sequence[Job]
) -> set[str]:
    """The table's id; where it cannot be read, every id that it may be."""
    try:
        return {deployment.make_delta_log(source).get_table_id()}
    except Exception:  # noqa: BLE001 - a table's error must not stop the others
        return {job.key.table_id for job in dropped}


def clear_staging(deployment: Deployment, sources: Sequence[SourceTable]) -> list[str]:
    """Drop the staging tables of dead runs; returns the problems, which stop no other index."""
    problems = []
    for source, index in [(table, index) for table in sources for index in table.indexes]:
        try:
            endpoint, view = deployment.get_endpoint(index), view_name(source.table, index.shown)
            data = IndexGenerations(
                endpoint=endpoint, database=endpoint.resolve_database(source.database), view=view
            )
            staged = data.list_staging_tables()
            # List the tables first: a run is active before it creates its table.
            for table in (
                find_leftover_tables(staged, deployment.log.list_active_runs()) if staged else []
            ):
                data.drop_staging(table)
        except Exception as error:  # noqa: BLE001 - an index's error must not stop the others
            problems.append(f"{source.name}/{index.name}: {make_problem(source, error).message}")
    return problems


def prune_history(deployment: Deployment, retention: timedelta = HISTORY_RETENTION) -> int:
    """Delete history entries older than `retention`; returns how many."""
    return deployment.log.prune(deployment.clock() - retention)


def _flush_table(deployment: Deployment, source: SourceTable) -> int:
    delta_log = deployment.make_delta_log(source)
    latest, table_id = delta_log.get_latest_moment(), delta_log.get_table_id()
    if not all(map(delta_log.has_moment, deployment.log.list_watermarks(table_id))):
        return 0  # the table's log was restored: the next look rebuilds those jobs
    tenants = deployment.log.list_tenants(table_id, behind=latest.version)
    jobs = deployment.log.list_jobs(table_id=table_id, tenants=tenants)
    return flush_jobs(deployment.log, jobs, compute_effective_jobs(delta_log, jobs, latest))


def _build_garbage(
    deployment: Deployment,
    name: JobID,
    dropped: Sequence[Job],
    staying: Collection[tuple[JobID, str]],
) -> list[Garbage]:
    names = _list_sharing_names(name, dropped)
    rows = [
        job
        for job_id in names
        for job in deployment.log.list_jobs(name=job_id, include_dropped=True)
        if job_id == name or _has_tables_to_share(job)
    ]
    dropped_keys = {(job.key, job.registration) for job in dropped}
    uncollected = [job for job in rows if job.collected_at is None]
    remaining = [job for job in uncollected if (job.key, job.registration) not in dropped_keys]
    served_tenants = {job.key.tenant for job in remaining}
    named_tenants = {job.key.tenant for job in remaining if job.name == name}
    # The last one drops the table, unless it serves other jobs.
    last_job = next((job for job in reversed(dropped) if job.collected_at is None), None)
    garbage = []
    for job in dropped:
        stays = (name, job.key.table_id) in staying
        if stays and job.collected_at is not None:
            continue
        drops = "table" if job is last_job and not served_tenants else "tenant"
        has_data = is_index(job.spec.detail.consumer) and job.collected_at is None
        if not has_data or job.key.tenant in served_tenants:
            drops = "nothing"
        letters = has_data and job.key.tenant not in named_tenants
        garbage.append(Garbage(job=job, scope=drops, drops_letters=letters, keeps_row=stays))
    return garbage


def _list_sharing_names(name: JobID, dropped: Sequence[Job]) -> list[JobID]:
    """The jobs whose rows may share tables: an index shares them with its first shard."""
    shards = {get_shard(job.spec.detail.consumer.options) for job in dropped}
    if shards - {None, 0}:
        return [name]
    bases = {strip_shard_suffix(name.job, shard) for shard in shards}
    names = {name.job, *bases, *(f"{base}{format_suffix(0)}" for base in bases)}
    return [replace(name, job=job) for job in sorted(names)]


def _has_tables_to_share(job: Job) -> bool:
    """Whether it has tables to share.

    False for an unsharded index that is merely named like a first shard.
    """
    shard = get_shard(job.spec.detail.consumer.options)
    return shard is not None or not job.name.job.endswith(format_suffix(0))


def _get_name(job: Job) -> JobID:
    return job.name
