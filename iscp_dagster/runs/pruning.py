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
from iscp_dagster.runs.run_names import DISPATCH_TAG

PAGE = 500
"""Runs, or events, fetched at once."""


@dataclass(frozen=True, kw_only=True)
class PruneResult:
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
) -> PruneResult:
    """Delete up to `most` successful runs of `jobs` that ended `before`, each job's oldest first.

    Deletes only dispatched runs, none that a person started, and none that made some partition's
    latest materialization (or observation, as `assets` says for each asset): Dagster counts
    partitions and compares data versions by these. Safe to repeat, and to run twice at once.
    """
    ended_runs = [run for name in sorted(jobs) for run in _list_ended_runs(instance, name, before)]
    kept_ids = _find_kept_runs(instance, assets) if ended_runs else frozenset()
    deletable = list(islice((run for run in ended_runs if run.run_id not in kept_ids), most))
    for run in deletable if not dry_run else ():
        _delete_run(instance, run.run_id)
    return PruneResult(runs=len(deletable), kept=sum(run.run_id in kept_ids for run in ended_runs))


def _list_ended_runs(
    instance: dg.DagsterInstance, job: str, before: datetime
) -> Iterator[dg.DagsterRun]:
    filters = dg.RunsFilter(
        job_name=job, statuses=[dg.DagsterRunStatus.SUCCESS], updated_before=before
    )
    cursor = None
    while runs := instance.get_runs(filters, cursor=cursor, limit=PAGE, ascending=True):
        yield from (run for run in runs if DISPATCH_TAG in run.tags)
        cursor = runs[-1].run_id


def _find_kept_runs(
    instance: dg.DagsterInstance, assets: Mapping[dg.AssetKey, dg.DagsterEventType]
) -> frozenset[str]:
    """The runs that made the latest event of some partition."""
    return frozenset(
        run_id
        for asset, kind in assets.items()
        for ids in split_into_portions(_list_latest_event_ids(instance, asset, kind), most=PAGE)
        for run_id in _list_event_runs(instance, asset, kind, ids)
    )


def _list_latest_event_ids(
    instance: dg.DagsterInstance, asset: dg.AssetKey, kind: dg.DagsterEventType
) -> Sequence[int]:
    latest = instance.event_log_storage.get_latest_storage_id_by_partition(asset, kind)
    return sorted(latest.values())


def _list_event_runs(
    instance: dg.DagsterInstance, asset: dg.AssetKey, kind: dg.DagsterEventType, ids: Sequence[int]
) -> Iterator[str]:
    filters = dg.AssetRecordsFilter(asset_key=asset, storage_ids=ids)
    observed = kind is dg.DagsterEventType.ASSET_OBSERVATION
    fetch = instance.fetch_observations if observed else instance.fetch_materializations
    return (record.run_id for record in fetch(filters, limit=PAGE).records)


def _delete_run(instance: dg.DagsterInstance, run_id: str) -> None:
    """Delete the run, its events and what it printed; with SQLite also the file of its events."""
    instance.delete_run(run_id)
    instance.compute_log_manager.delete_logs(prefix=[run_id])
    storage = instance.event_log_storage
    if isinstance(storage, SqliteEventLogStorage):
        for end in ("", "-wal", "-shm"):
            Path(storage.path_for_shard(run_id) + end).unlink(missing_ok=True)
