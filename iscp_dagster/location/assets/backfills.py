"""The runs of one backfill: Dagster starts one for each stretch of partitions that lie together.

A person who materializes partitions here and there gets a run of all of them instead: the first to
begin ends those that wait in the queue, and does their partitions too (decision 30).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from dagster import (
    DagsterInstance,
    DagsterRun,
    DagsterRunStatus,
    PartitionsDefinition,
    RunsFilter,
)
from dagster._core.storage.tags import (
    ASSET_PARTITION_RANGE_END_TAG,
    ASSET_PARTITION_RANGE_START_TAG,
    BACKFILL_ID_TAG,
    PARENT_RUN_ID_TAG,
    PARTITION_NAME_TAG,
    ROOT_RUN_ID_TAG,
)

TAKEN_TAG = "iscp/taken_by"
"""Names the run that does another one's partitions."""
TAKEN = "Run {run} of the same backfill processes these partitions too."
QUEUED = DagsterRunStatus.QUEUED
AT_WORK = (DagsterRunStatus.STARTING, DagsterRunStatus.STARTED)


def take_over(instance: DagsterInstance, run: DagsterRun, of: PartitionsDefinition[str]) -> None:
    """End those of the run's backfill that wait for the same assets; they are this run's now.

    Only the earliest that is at work does so, lest two take the same one. One whose partitions
    are not there any more is left to say so itself.
    """
    backfill = run.tags.get(BACKFILL_ID_TAG)
    if backfill is None:
        return
    wanted = RunsFilter(tags={BACKFILL_ID_TAG: backfill}, statuses=[*AT_WORK, QUEUED])
    found = [each for each in instance.get_runs(wanted, ascending=True) if _alike(each, run)]
    first = next((each.run_id for each in found if each.status in AT_WORK), None)
    waiting = [each for each in found if each.status is QUEUED and first == run.run_id]
    ordered = of.get_partition_keys(None, instance) if waiting else ()
    places = {key: at for at, key in enumerate(ordered)}
    for each in waiting:
        # It may have begun since, and does its own then.
        now = instance.get_run_by_id(each.run_id)
        if now is not None and now.status is QUEUED and any(_keys(now, ordered, places)):
            # First what this run has to do: should it end in between, both do it.
            instance.add_run_tags(now.run_id, {TAKEN_TAG: run.run_id})
            instance.report_run_canceled(now, TAKEN.format(run=run.run_id))


def taken(instance: DagsterInstance, run: DagsterRun, of: PartitionsDefinition[str]) -> list[str]:
    """The partitions that the run does of others, or did when it was executed before."""
    before = (run.tags.get(PARENT_RUN_ID_TAG), run.tags.get(ROOT_RUN_ID_TAG))
    names = [run.run_id, *filter(None, before)]
    runs = instance.get_runs(RunsFilter(tags={TAKEN_TAG: names}))
    if not runs:
        return []
    ordered = of.get_partition_keys(None, instance)
    places = {key: at for at, key in enumerate(ordered)}
    return sorted({key for each in runs for key in _keys(each, ordered, places)})


def _keys(run: DagsterRun, ordered: Sequence[str], places: Mapping[str, int]) -> Iterator[str]:
    one = run.tags.get(PARTITION_NAME_TAG, "")
    first = run.tags.get(ASSET_PARTITION_RANGE_START_TAG, one)
    last = run.tags.get(ASSET_PARTITION_RANGE_END_TAG, one)
    if first in places and last in places:
        yield from ordered[places[first] : places[last] + 1]


def _alike(one: DagsterRun, other: DagsterRun) -> bool:
    return (one.job_name, one.asset_selection, one.asset_check_selection) == (
        other.job_name,
        other.asset_selection,
        other.asset_check_selection,
    )
