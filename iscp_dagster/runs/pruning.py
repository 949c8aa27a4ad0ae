"""Deletes old runs from Dagster's storage without the assets losing anything."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path

import dagster as dg

from iscp_dagster.model.portions import split_into_portions
from iscp_dagster.runs.internals import SqliteEventLogStorage
from iscp_dagster.runs.named import DISPATCH_TAG

PAGE = 500
"""Runs, or events, asked for at once."""


@dataclass(frozen=True, kw_only=True)
class Pruned:
    """How many runs were deleted, and how many stay since they made a partition's latest event."""

    runs: int
    kept: int


def prune_runs(
    instance: dg.DagsterInstance,
    *,
    before: datetime,
    jobs: Collection[str],
    assets: Mapping[dg.AssetKey, dg.DagsterEventType],
    most: int,
    dry_run: bool = False,
) -> Pruned:
    """Delete up to `most` successful runs of `jobs` that ended `before`, each job's oldest first.

    Deletes only dispatched runs, none that a person started, and none that made the latest
    materialization (or observation, as `assets` gives for each) of some partition: Dagster counts
    partitions and compares data versions by these. Safe to repeat, and to run twice at once.
    """
    old = [run for name in sorted(jobs) for run in _ended(instance, name, before)]
    held = _holders(instance, assets) if old else frozenset()
    gone = list(islice((run for run in old if run.run_id not in held), most))
    for run in gone if not dry_run else ():
        _delete(instance, run.run_id)
    return Pruned(runs=len(gone), kept=sum(run.run_id in held for run in old))


def _ended(instance: dg.DagsterInstance, job: str, before: datetime) -> Iterator[dg.DagsterRun]:
    wanted = dg.RunsFilter(
        job_name=job, statuses=[dg.DagsterRunStatus.SUCCESS], updated_before=before
    )
    cursor = None
    while runs := instance.get_runs(wanted, cursor=cursor, limit=PAGE, ascending=True):
        yield from (run for run in runs if DISPATCH_TAG in run.tags)
        cursor = runs[-1].run_id


def _holders(
    instance: dg.DagsterInstance, assets: Mapping[dg.AssetKey, dg.DagsterEventType]
) -> frozenset[str]:
    """The runs that made the latest event of some partition."""
    return frozenset(
        run_id
        for asset, kind in assets.items()
        for some in split_into_portions(_latest(instance, asset, kind), most=PAGE)
        for run_id in _runs_of(instance, asset, kind, some)
    )


def _latest(
    instance: dg.DagsterInstance, asset: dg.AssetKey, kind: dg.DagsterEventType
) -> Sequence[int]:
    found = instance.event_log_storage.get_latest_storage_id_by_partition(asset, kind)
    return sorted(found.values())


def _runs_of(
    instance: dg.DagsterInstance, asset: dg.AssetKey, kind: dg.DagsterEventType, ids: Sequence[int]
) -> Iterator[str]:
    wanted = dg.AssetRecordsFilter(asset_key=asset, storage_ids=ids)
    observed = kind is dg.DagsterEventType.ASSET_OBSERVATION
    fetch = instance.fetch_observations if observed else instance.fetch_materializations
    return (each.run_id for each in fetch(wanted, limit=PAGE).records)


def _delete(instance: dg.DagsterInstance, run_id: str) -> None:
    """Delete the run, its events and what it printed; with SQLite also the file of its events."""
    instance.delete_run(run_id)
    instance.compute_log_manager.delete_logs(prefix=[run_id])
    storage = instance.event_log_storage
    if isinstance(storage, SqliteEventLogStorage):
        for end in ("", "-wal", "-shm"):
            Path(storage.path_for_shard(run_id) + end).unlink(missing_ok=True)
