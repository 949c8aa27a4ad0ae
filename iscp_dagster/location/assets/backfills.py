"""Joins the runs of one backfill: Dagster starts one for each stretch of adjacent partitions.

Here a few runs process all of them: a run that begins cancels those still queued and processes
their partitions too, and does so again when its work is done (decision 30).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from dagster import DagsterInstance, DagsterRun, DagsterRunStatus, PartitionsDefinition, RunsFilter

from iscp_dagster.joblog.sql.log import SqlLog
from iscp_dagster.location import internals

TAKEN_TAG = "iscp/taken_by"
"""On a canceled run: the run that processes its partitions instead."""
TAKEN = "Run {run} of the same backfill processes these partitions too."
QUEUED = DagsterRunStatus.QUEUED
LEASE_SECONDS = 60.0
"""How long others wait for a run that died while it took over runs."""


def take_over(
    instance: DagsterInstance, run: DagsterRun, of: PartitionsDefinition[str], log: SqlLog
) -> None:
    """Cancel queued runs of the same backfill and assets; this run processes their partitions.

    A lease in the ISCP log keeps two runs from taking over the same one; if another run has it,
    nothing happens. A run whose partitions no longer exist is left alone: it reports that itself.
    """
    backfill = run.tags.get(internals.BACKFILL_ID_TAG)
    if backfill is None or not _waiting(instance, run, backfill):
        return
    lease = f"backfill {backfill}"
    if lease not in log.take([lease], run.run_id, LEASE_SECONDS):
        return
    try:
        waiting = _waiting(instance, run, backfill)
        ordered = of.get_partition_keys(None, instance) if waiting else ()
        places = {key: at for at, key in enumerate(ordered)}
        for each in waiting:
            # It may have begun since; then it processes its own partitions.
            now = instance.get_run_by_id(each.run_id)
            if now is not None and now.status is QUEUED and any(_keys(now, ordered, places)):
                # The tag first: if this run dies in between, both process them.
                instance.add_run_tags(now.run_id, {TAKEN_TAG: run.run_id})
                instance.report_run_canceled(now, TAKEN.format(run=run.run_id))
    finally:
        log.take([lease], run.run_id, 0.0)


def _waiting(instance: DagsterInstance, run: DagsterRun, backfill: str) -> list[DagsterRun]:
    wanted = RunsFilter(tags={internals.BACKFILL_ID_TAG: backfill}, statuses=[QUEUED])
    return [each for each in instance.get_runs(wanted, ascending=True) if _alike(each, run)]


def taken(instance: DagsterInstance, run: DagsterRun, of: PartitionsDefinition[str]) -> list[str]:
    """The partitions that this run, or the run that it executes again, took over from others."""
    before = (run.tags.get(internals.PARENT_RUN_ID_TAG), run.tags.get(internals.ROOT_RUN_ID_TAG))
    names = [run.run_id, *filter(None, before)]
    runs = instance.get_runs(RunsFilter(tags={TAKEN_TAG: names}))
    if not runs:
        return []
    ordered = of.get_partition_keys(None, instance)
    places = {key: at for at, key in enumerate(ordered)}
    return sorted({key for each in runs for key in _keys(each, ordered, places)})


def _keys(run: DagsterRun, ordered: Sequence[str], places: Mapping[str, int]) -> Iterator[str]:
    one = run.tags.get(internals.PARTITION_NAME_TAG, "")
    first = run.tags.get(internals.ASSET_PARTITION_RANGE_START_TAG, one)
    last = run.tags.get(internals.ASSET_PARTITION_RANGE_END_TAG, one)
    if first in places and last in places:
        yield from ordered[places[first] : places[last] + 1]


def _alike(one: DagsterRun, other: DagsterRun) -> bool:
    return (one.job_name, one.asset_selection, one.asset_check_selection) == (
        other.job_name,
        other.asset_selection,
        other.asset_check_selection,
    )
