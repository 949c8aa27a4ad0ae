"""What happens every hour: watermarks are flushed, what was dropped is cleared away (seed 001)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import groupby

from iscp_dagster.core.errors import IscpError, SourceError
from iscp_dagster.core.jobs import Job, JobID
from iscp_dagster.core.moment import START, Moment
from iscp_dagster.core.sharding import base_name, shard_of, suffix
from iscp_dagster.core.tables import SourceTable
from iscp_dagster.engine.consumers import is_index
from iscp_dagster.engine.context import Engine
from iscp_dagster.engine.effective import rest_until
from iscp_dagster.engine.jobs import job_id
from iscp_dagster.engine.ledger import state_key

KEPT = timedelta(days=1)
"""How long a dropped job and its data stay; seed 001, "GC"."""
HISTORY = timedelta(days=90)
"""How long the history stays."""


@dataclass(kw_only=True)
class Flushed:
    """How many jobs moved, by table; and what went wrong, which stops no other table."""

    moved: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def flush_watermarks(engine: Engine, sources: Sequence[SourceTable]) -> Flushed:
    """Write down how far idle jobs stand in memory: at the table's latest version.

    A restart then asks for changes since the last flush, not since the last change. Reads the
    tables' logs; touches no state and no status. Idempotent.
    """
    flushed = Flushed()
    for source in sources:
        if not engine.log.table_ids(source.database, source.table):
            continue  # it has no jobs, and may not be there yet
        try:
            flushed.moved[source.name] = _flush(engine, source)
        except IscpError as error:
            flushed.problems.append(f"{source.name}: {error}")
    return flushed


@dataclass(frozen=True, kw_only=True)
class Garbage:
    """A dropped job to clear away, and what of its index goes with it."""

    job: Job
    drops: str
    """`table`, `tenant`, or `nothing` where the data is not ours or serves another job."""


def garbage(engine: Engine, kept: timedelta = KEPT) -> list[Garbage]:
    """The jobs that were dropped longer ago than `kept`, ordered by name. Reads only."""
    dropped = engine.log.dropped(engine.clock() - kept)
    by_name = sorted(dropped, key=_name)
    found: list[Garbage] = []
    for name, group in groupby(by_name, key=_name):
        found += _of(engine, name, list(group))
    return found


def collect(engine: Engine, sources: Sequence[SourceTable], found: Sequence[Garbage]) -> int:
    """Drop the data, then the rows; how many rows. Interrupted, it goes on the next time.

    The row of a job that the runner would register by itself stays, so that it does not.
    """
    kept = _registered_by_itself(engine, sources)
    columns = {(source.database, source.table): source.tenant for source in sources}
    forgotten = 0
    for each in _still(engine, found):
        name, data = each.job.name, engine.data(each.job.spec.detail.consumer)
        if data is not None and each.drops == "table":
            data.drop()
        elif data is not None and each.drops == "tenant":
            data.drop_tenant(columns.get((name.db, name.table)), each.job.key.account)
        if engine.states is not None:
            engine.states().forget([state_key(each.job)])
        if (name, each.job.key.table_id) not in kept:
            forgotten += engine.log.forget([each.job])
    return forgotten


def _still(engine: Engine, found: Sequence[Garbage]) -> Iterator[Garbage]:
    """The garbage as it is when its turn comes: not what is registered again, and served."""
    ids = {(each.job.key, each.job.job_id) for each in found}
    for name in sorted({each.job.name for each in found}):
        rows = engine.log.jobs(name=name, include_dropped=True)
        dropped = [job for job in rows if job.drop_at and (job.key, job.job_id) in ids]
        yield from _of(engine, name, dropped)


def _registered_by_itself(engine: Engine, sources: Sequence[SourceTable]) -> set[tuple[JobID, str]]:
    """The jobs, by name and table id, that the runner would register again without their rows."""
    standing, kept = engine.log.standing(), set()
    for source in sources:
        names = {job_id(source, index) for index in source.indexes if index.auto_register}
        names |= {n for n in standing if (n.db, n.table) == (source.database, source.table)}
        with suppress(SourceError):
            kept |= {(name, engine.delta_log(source).table_id()) for name in names}
    return kept


def prune_history(engine: Engine, kept: timedelta = HISTORY) -> int:
    """Delete what happened longer ago than `kept`."""
    return engine.log.prune(engine.clock() - kept)


def _flush(engine: Engine, source: SourceTable) -> int:
    log = engine.delta_log(source)
    latest, table_id = log.latest(), log.table_id()
    places = engine.log.places(table_id)
    versions = sorted({v for _, v, _ in places if START.version < v < latest.version})
    accounts = engine.log.accounts(table_id) if versions else frozenset()
    moved = 0
    for version in versions:
        if log.changed_tenants(version, latest.version) is None:
            continue  # their next iteration reads a snapshot
        end = rest_until(log, version, latest)
        changed = log.changed_tenants(version, end.version) or set()
        moved += engine.log.flush(table_id, accounts - changed, Moment(version), end)
    return moved


def _of(engine: Engine, name: JobID, dropped: Sequence[Job]) -> list[Garbage]:
    names = _keeping(name, dropped)
    rows = [job for each in names for job in engine.log.jobs(name=each, include_dropped=True)]
    gone = {(job.key, job.job_id) for job in dropped}
    others = [job for job in rows if (job.key, job.job_id) not in gone]
    served = {job.key.account for job in others}
    found = []
    for number, job in enumerate(dropped, start=1):
        # The last one takes the table along, when nobody else is served from it.
        whole = not others and number == len(dropped)
        drops = "table" if whole else "nothing" if job.key.account in served else "tenant"
        ours = is_index(job.spec.detail.consumer)
        found.append(Garbage(job=job, drops=drops if ours else "nothing"))
    return found


def _keeping(name: JobID, dropped: Sequence[Job]) -> list[JobID]:
    """Whose rows may lie in the same tables: an index has its first shard's on the same server."""
    shards = {shard_of(job.spec.detail.consumer.options) for job in dropped}
    if shards - {None, 0}:
        return [name]
    bases = {base_name(name.job, shard) for shard in shards}
    found = {name.job, *bases, *(f"{base}{suffix(0)}" for base in bases)}
    return [replace(name, job=job) for job in sorted(found)]


def _name(job: Job) -> JobID:
    return job.name
