"""Hourly maintenance: flushes watermarks, deletes garbage, old staging tables and history."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import groupby, product
from typing import Any

from iscp_dagster.clickhouse.tables.generations import IndexData
from iscp_dagster.clickhouse.tables.staging import left
from iscp_dagster.clickhouse.write.letters import DeadLetters
from iscp_dagster.model.consumers.kinds import is_index
from iscp_dagster.model.declared.names import view_name
from iscp_dagster.model.declared.sharding import base_name, shard_of, suffix
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.model.errors import IscpError, UnavailableError
from iscp_dagster.model.jobs import Job, JobID
from iscp_dagster.planning.declared import name_of
from iscp_dagster.planning.effective import effective, flush_jobs
from iscp_dagster.planning.problems import as_ours, problem_of
from iscp_dagster.sync.deployment import Deployment
from iscp_dagster.sync.ledger import state_key

KEPT = timedelta(days=1)
"""How long a dropped job and its data are kept."""
HISTORY = timedelta(days=90)
"""How long the history is kept."""


@dataclass(kw_only=True)
class Flushed:
    """How many jobs moved, by table, and the problems, none of which stops another table."""

    moved: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def flush_watermarks(deployment: Deployment, sources: Sequence[SourceTable]) -> Flushed:
    """Write to the ISCP log how far the watermarks of idle jobs moved in memory.

    A restart then asks for changes since the last flush, not since the last change. Reads the
    tables' logs; touches no state and no status. Idempotent.
    """
    flushed = Flushed()
    for source in sources:
        if not deployment.log.table_ids(source.database, source.table):
            continue  # it has no jobs, and may not be there yet
        try:
            flushed.moved[source.name] = _flush(deployment, source)
        except Exception as error:  # noqa: BLE001 - whatever a table raises stops it alone
            flushed.problems.append(str(problem_of(source, error)))
    return flushed


@dataclass(frozen=True, kw_only=True)
class Garbage:
    """A dropped job to delete, and what to delete with it."""

    job: Job
    drops: str
    """`table`, `tenant`, or `nothing` where the data is not ours, is gone or serves another job."""
    letters: bool
    """Whether to drop its dead letters: no other job of the tenant has its name."""
    stays: bool
    """Whether the row stays, since the runner would register the job again without it."""


def garbage(
    deployment: Deployment, sources: Sequence[SourceTable], kept: timedelta = KEPT
) -> list[Garbage]:
    """The jobs dropped longer ago than `kept`, and what to delete with each, by name. Reads only.

    Only jobs of the `sources`: others in the log belong, or belonged, to another deployment.
    """
    tables = {(source.database, source.table) for source in sources}
    dropped = [
        job
        for job in deployment.log.dropped(deployment.clock() - kept)
        if (job.name.db, job.name.table) in tables
    ]
    dropped.sort(key=_name)
    staying = _registered_by_itself(deployment, sources, dropped)
    found: list[Garbage] = []
    for name, group in groupby(dropped, key=_name):
        found += _of(deployment, name, list(group), staying)
    return found


def collect(
    deployment: Deployment, sources: Sequence[SourceTable], found: Sequence[Garbage]
) -> int:
    """Drop the data, then the rows; returns how many rows. Resumes an interrupted call.

    A row that stays is marked, so that its data is dropped once. Raises the first error as an
    IscpError, after trying all.
    """
    columns = {(source.database, source.table): source.tenant for source in sources}
    forgotten, errors = 0, list[IscpError]()
    for group in _alike(_still(deployment, sources, found)):
        name = group[0].job.name
        gone, problems = _dropped(deployment, group, columns[name.db, name.table])
        errors += problems
        if deployment.states is not None and gone:
            deployment.states().forget([state_key(each.job) for each in gone])
        deployment.log.mark_collected([each.job for each in gone if each.stays])
        forgotten += deployment.log.forget([each.job for each in gone if not each.stays])
    if errors:
        raise errors[0]
    return forgotten


def _alike(found: Iterable[Garbage]) -> Iterator[list[Garbage]]:
    """The garbage in groups whose data is dropped by the same statements."""
    groups: dict[tuple[Any, ...], list[Garbage]] = {}
    for each in found:
        info = each.job.spec.detail.consumer
        same = (each.job.name, shard_of(info.options), each.drops, each.letters)
        groups.setdefault(same, []).append(each)
    yield from groups.values()


def _dropped(
    deployment: Deployment, group: Sequence[Garbage], tenant_column: str | None
) -> tuple[Sequence[Garbage], Sequence[IscpError]]:
    """Those whose data was dropped, and the errors of the others.

    A group that fails is dropped one by one, since one tenant may be the cause.
    """
    try:
        _drop(deployment, group, tenant_column)
    except UnavailableError as error:
        return [], [error]
    except Exception as error:  # noqa: BLE001 - whatever one tenant raises stops it alone
        if len(group) == 1:
            return [], [as_ours(error)]
        each = [_dropped(deployment, [one], tenant_column) for one in group]
        return [one for gone, _ in each for one in gone], [e for _, errors in each for e in errors]
    return group, []


def _drop(deployment: Deployment, group: Sequence[Garbage], tenant_column: str | None) -> None:
    """Drop the data of a group's jobs in ClickHouse, and their dead letters."""
    first = group[0]
    name, tenants = first.job.name, [each.job.key.tenant for each in group]
    data = deployment.data(first.job.spec.detail.consumer)
    if data is None:
        return
    if first.drops == "table":
        data.drop()
    elif first.drops == "tenant":
        data.drop_tenants(tenant_column, tenants)
    if first.letters:
        letters = DeadLetters(endpoint=data.endpoint, database=data.database)
        letters.drop_tenants(f"{name.db}.{name.table}/{name.job}", tenants)


def _still(
    deployment: Deployment, sources: Sequence[SourceTable], found: Sequence[Garbage]
) -> Iterator[Garbage]:
    """The garbage, looked up again just before use: without jobs registered again meanwhile."""
    ids = {(each.job.key, each.job.registration) for each in found}
    staying = _registered_by_itself(deployment, sources, [each.job for each in found])
    for name in sorted({each.job.name for each in found}):
        rows = deployment.log.jobs(name=name, include_dropped=True)
        dropped = [job for job in rows if job.drop_at and (job.key, job.registration) in ids]
        yield from _of(deployment, name, dropped, staying)


def _registered_by_itself(
    deployment: Deployment, sources: Sequence[SourceTable], dropped: Sequence[Job]
) -> set[tuple[JobID, str]]:
    """The jobs, by name and table id, that the runner would register again without their rows."""
    standing, kept = deployment.log.standing(), set()
    tables = {(job.name.db, job.name.table) for job in dropped}
    for source in sources:
        if (source.database, source.table) not in tables:
            continue
        names = {name_of(source, each) for each in source.consumers if each.auto_register}
        names |= {n for n in standing if (n.db, n.table) == (source.database, source.table)}
        kept |= set(product(names, _ids(deployment, source, dropped)))
    return kept


def _ids(deployment: Deployment, source: SourceTable, dropped: Sequence[Job]) -> set[str]:
    """The table's id; where it cannot be read, every id that it may be."""
    try:
        return {deployment.delta_log(source).table_id()}
    except Exception:  # noqa: BLE001 - whatever a table raises stops it alone
        return {job.key.table_id for job in dropped}


def clear_staging(deployment: Deployment, sources: Sequence[SourceTable]) -> list[str]:
    """Drop the staging tables of dead runs; returns the problems, which stop no other index."""
    problems = []
    for source, index in [(table, each) for table in sources for each in table.indexes]:
        try:
            endpoint, view = deployment.endpoint_of(index), view_name(source.table, index.shown)
            data = IndexData(endpoint=endpoint, database=endpoint.holds(source.database), view=view)
            staged = data.stagings()
            # List the tables first: a run is active before it creates its table.
            for table in left(staged, deployment.log.active_runs()) if staged else []:
                data.drop_staging(table)
        except Exception as error:  # noqa: BLE001 - whatever an index raises stops it alone
            problems.append(f"{source.name}/{index.name}: {problem_of(source, error).message}")
    return problems


def prune_history(deployment: Deployment, kept: timedelta = HISTORY) -> int:
    """Delete history entries older than `kept`; returns how many."""
    return deployment.log.prune(deployment.clock() - kept)


def _flush(deployment: Deployment, source: SourceTable) -> int:
    delta_log = deployment.delta_log(source)
    latest, table_id = delta_log.latest(), delta_log.table_id()
    if not all(map(delta_log.has, deployment.log.watermarks(table_id))):
        return 0  # the table's log was restored: the next look rebuilds those jobs
    tenants = deployment.log.tenants(table_id, behind=latest.version)
    jobs = deployment.log.jobs(table_id=table_id, tenants=tenants)
    return flush_jobs(deployment.log, jobs, effective(delta_log, jobs, latest))


def _of(
    deployment: Deployment,
    name: JobID,
    dropped: Sequence[Job],
    staying: Collection[tuple[JobID, str]],
) -> list[Garbage]:
    names = _keeping(name, dropped)
    rows = [
        job
        for each in names
        for job in deployment.log.jobs(name=each, include_dropped=True)
        if each == name or _is_twin(job)
    ]
    gone = {(job.key, job.registration) for job in dropped}
    held = [job for job in rows if job.collected_at is None]
    others = [job for job in held if (job.key, job.registration) not in gone]
    served = {job.key.tenant for job in others}
    named = {job.key.tenant for job in others if job.name == name}
    # The last one drops the table, unless it serves other jobs.
    last = next((job for job in reversed(dropped) if job.collected_at is None), None)
    found = []
    for job in dropped:
        stays = (name, job.key.table_id) in staying
        if stays and job.collected_at is not None:
            continue
        drops = "table" if job is last and not served else "tenant"
        ours = is_index(job.spec.detail.consumer) and job.collected_at is None
        if not ours or job.key.tenant in served:
            drops = "nothing"
        letters = ours and job.key.tenant not in named
        found.append(Garbage(job=job, drops=drops, letters=letters, stays=stays))
    return found


def _keeping(name: JobID, dropped: Sequence[Job]) -> list[JobID]:
    """The jobs whose rows may share tables: an index shares them with its first shard."""
    shards = {shard_of(job.spec.detail.consumer.options) for job in dropped}
    if shards - {None, 0}:
        return [name]
    bases = {base_name(name.job, shard) for shard in shards}
    found = {name.job, *bases, *(f"{base}{suffix(0)}" for base in bases)}
    return [replace(name, job=job) for job in sorted(found)]


def _is_twin(job: Job) -> bool:
    """Whether it keeps a shard, or an index that is not merely named like a first shard."""
    shard = shard_of(job.spec.detail.consumer.options)
    return shard is not None or not job.name.job.endswith(suffix(0))


def _name(job: Job) -> JobID:
    return job.name
