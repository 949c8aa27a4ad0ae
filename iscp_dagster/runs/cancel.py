"""Ends runs of iterations that were canceled in the ISCP log, and orphans."""

from __future__ import annotations

from collections.abc import Collection

from dagster import DagsterInstance, DagsterRun, DagsterRunStatus

from iscp_dagster.runs.named import names_of, runs_named


def cancel_runs(dagster_home: str, names: Collection[str], spared: Collection[str] = ()) -> None:
    """Ask Dagster to cancel the runs, named by run id or by dispatch; unknown names are ignored.

    A run stays if any of its names is among the `spared`.
    """
    with DagsterInstance.from_config(dagster_home) as instance:
        found = {run.run_id: run for run in runs_named(instance, names)}
        for run_id, run in sorted(found.items()):
            if not run.is_finished and names_of(run).isdisjoint(spared):
                instance.run_coordinator.cancel_run(run_id)


def end(instance: DagsterInstance, run: DagsterRun, why: str) -> None:
    """Report an orphan to Dagster as failed, or as canceled if it was being canceled."""
    if run.status is DagsterRunStatus.CANCELING:
        instance.report_run_canceled(run, why)
    else:
        instance.report_run_failed(run, why)
