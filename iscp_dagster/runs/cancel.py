"""Ends the runs of iterations that were canceled in the ISCP log."""

from __future__ import annotations

from collections.abc import Collection

from dagster import DagsterInstance

from iscp_dagster.runs.named import runs_named


def cancel_runs(dagster_home: str, names: Collection[str]) -> None:
    """Ask Dagster to cancel the runs, named by run id or by dispatch; others are passed over."""
    with DagsterInstance.from_config(dagster_home) as instance:
        for run_id in unfinished(instance, names):
            instance.run_coordinator.cancel_run(run_id)


def unfinished(instance: DagsterInstance, names: Collection[str]) -> list[str]:
    """The ids of the runs of these names that have not ended."""
    return sorted({run.run_id for run in runs_named(instance, names) if not run.is_finished})
