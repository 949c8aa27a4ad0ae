"""Ends runs of iterations that were canceled in the ISCP log, and orphans."""

from __future__ import annotations

from collections.abc import Collection

from dagster import DagsterInstance, DagsterRun, DagsterRunStatus

from iscp_dagster.runs.run_names import find_runs, get_run_names


def cancel_runs(dagster_home: str, names: Collection[str], spared: Collection[str] = ()) -> None:
    """Ask Dagster to cancel the runs, named by run id or by dispatch; unknown names are ignored.

    A run stays if any of its names is among the `spared`.
    """
    with DagsterInstance.from_config(dagster_home) as instance:
        runs = {run.run_id: run for run in find_runs(instance, names)}
        for run_id, run in sorted(runs.items()):
            if not run.is_finished and get_run_names(run).isdisjoint(spared):
                instance.run_coordinator.cancel_run(run_id)


def report_orphan(instance: DagsterInstance, run: DagsterRun, reason: str) -> None:
    """Report an orphan to Dagster as failed, or as canceled if it was being canceled."""
    if run.status is DagsterRunStatus.CANCELING:
        instance.report_run_canceled(run, reason)
    else:
        instance.report_run_failed(run, reason)
