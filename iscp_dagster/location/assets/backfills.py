"""Joins the runs of one backfill: Dagster starts one for each range of adjacent partitions.

Here a few runs process all of them: a run that starts cancels the runs still queued and processes
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
"""How long other runs wait for one that died while it took over runs."""


def take_over_queued_runs(
    instance: DagsterInstance,
    run: DagsterRun,
    partitions_def: PartitionsDefinition[str],
    log: SqlLog,
) -> None:
    """Cancel queued runs of the same backfill and assets; this run processes their partitions.

    A lease in the ISCP log keeps two runs from taking over the same one; if another run has it,
    nothing happens. A run whose partitions no longer exist stays: it reports that itself.
    """
    backfill = run.tags.get(internals.BACKFILL_ID_TAG)
    if backfill is None or not _find_queued_runs(instance, run, backfill):
        return
    lease = f"backfill {backfill}"
    if lease not in log.take_leases([lease], run.run_id, LEASE_SECONDS):
        return
    try:
        queued = _find_queued_runs(instance, run, backfill)
        keys = partitions_def.get_partition_keys(None, instance) if queued else ()
        positions = {key: position for position, key in enumerate(keys)}
        for queued_run in queued:
            # It may have started since; then it processes its own partitions.
            current = instance.get_run_by_id(queued_run.run_id)
            if (
                current is not None
                and current.status is QUEUED
                and any(_list_partition_keys(current, keys, positions))
            ):
                # The tag first: if this run dies in between, both process them.
                instance.add_run_tags(current.run_id, {TAKEN_TAG: run.run_id})
                instance.report_run_canceled(current, TAKEN.format(run=run.run_id))
    finally:
        log.take_leases([lease], run.run_id, 0.0)


def _find_queued_runs(
    instance: DagsterInstance, run: DagsterRun, backfill: str
) -> list[DagsterRun]:
    filters = RunsFilter(tags={internals.BACKFILL_ID_TAG: backfill}, statuses=[QUEUED])
    return [
        queued_run
        for queued_run in instance.get_runs(filters, ascending=True)
        if _has_same_selection(queued_run, run)
    ]


def list_taken_partitions(
    instance: DagsterInstance, run: DagsterRun, partitions_def: PartitionsDefinition[str]
) -> list[str]:
    """The partitions that this run, or the run that it re-executes, took over from others."""
    ancestors = (run.tags.get(internals.PARENT_RUN_ID_TAG), run.tags.get(internals.ROOT_RUN_ID_TAG))
    run_ids = [run.run_id, *filter(None, ancestors)]
    runs = instance.get_runs(RunsFilter(tags={TAKEN_TAG: run_ids}))
    if not runs:
        return []
    keys = partitions_def.get_partition_keys(None, instance)
    positions = {key: position for position, key in enumerate(keys)}
    return sorted(
        {key for taken_run in runs for key in _list_partition_keys(taken_run, keys, positions)}
    )


def _list_partition_keys(
    run: DagsterRun, keys: Sequence[str], positions: Mapping[str, int]
) -> Iterator[str]:
    partition = run.tags.get(internals.PARTITION_NAME_TAG, "")
    start = run.tags.get(internals.ASSET_PARTITION_RANGE_START_TAG, partition)
    end = run.tags.get(internals.ASSET_PARTITION_RANGE_END_TAG, partition)
    if start in positions and end in positions:
        yield from keys[positions[start] : positions[end] + 1]


def _has_same_selection(first: DagsterRun, second: DagsterRun) -> bool:
    return (first.job_name, first.asset_selection, first.asset_check_selection) == (
        second.job_name,
        second.asset_selection,
        second.asset_check_selection,
    )
