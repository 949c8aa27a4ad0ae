"""Ends the runs of iterations that were canceled in the job log."""

from __future__ import annotations

from collections.abc import Collection

from dagster import DagsterInstance, RunsFilter

from iscp_dagster.location.names import DISPATCH_TAG


def cancel_runs(dagster_home: str, names: Collection[str]) -> None:
    """Ask Dagster to cancel the runs, named by run id or by dispatch; others are passed over."""
    with DagsterInstance.from_config(dagster_home) as instance:
        for run_id in unfinished(instance, names):
            instance.run_coordinator.cancel_run(run_id)


def unfinished(instance: DagsterInstance, names: Collection[str]) -> list[str]:
    """The ids of the runs of these names that have not ended."""
    wanted = list(names)
    runs = [
        *instance.get_runs(RunsFilter(run_ids=wanted)),
        *instance.get_runs(RunsFilter(tags={DISPATCH_TAG: wanted})),
    ]
    return sorted({run.run_id for run in runs if not run.is_finished})
