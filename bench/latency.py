"""From a commit of one tenant to its row in the index, at random moments of an idle stack."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from statistics import quantiles

from bench.deployed import deploy_stack, open_instance
from bench.report import BenchReport
from iscp_dagster.joblog.sql.log import SqlLog
from iscp_dagster.model.states import Event

SEARCHABLE = "one tenant: commit -> searchable"
OVERHEAD = "a run: starting -> success, less its iteration"
LONGEST_PAUSE = 12.0
"""Seconds; longer than a round of Dagster's sensors, so that commits come at any point of one."""


def measure(folder: Path, report: BenchReport, commits: int) -> None:
    with deploy_stack(folder, ["one"]) as tables:
        table, moments = tables["one"], random.Random(7)
        table.commit(["a"], 20, 0)
        table.await_in_step(2)
        for number in range(commits):
            time.sleep(moments.uniform(1, LONGEST_PAUSE))
            table.commit(["a"], 1, 1_000 + number)
            with report.measure_time(SEARCHABLE):
                table.await_served(1_000 + number)
        report.seconds[OVERHEAD] = list(_read_overheads(folder, table.deployment.log))
    for label in (SEARCHABLE, OVERHEAD):
        report.add_rate(label, 1)
        seconds = report.seconds[label]
        cuts = quantiles(seconds, n=20, method="inclusive") if len(seconds) > 1 else seconds * 20
        report.add_fact(
            "  p50, p95, worst", f"{cuts[9]:.2f} s, {cuts[18]:.2f} s, {max(seconds):.2f} s"
        )


def _read_overheads(folder: Path, log: SqlLog) -> Iterator[float]:
    """Yield, for each successful run, its seconds outside the time in which it held its jobs.

    A run counts from its start event: Dagster records no other moment of leaving the queue.
    """
    from dagster import DagsterEventType, DagsterRunStatus, RunsFilter

    with open_instance(folder) as instance:
        for run in instance.get_runs(RunsFilter(statuses=[DagsterRunStatus.SUCCESS])):
            claim_times = _list_claim_times(log, run.run_id)
            event_times = {
                entry.dagster_event_type: entry.timestamp
                for entry in instance.all_logs(
                    run.run_id,
                    of_type={DagsterEventType.RUN_STARTING, DagsterEventType.RUN_SUCCESS},
                )
            }
            if claim_times and len(event_times) == 2:
                seconds = (
                    event_times[DagsterEventType.RUN_SUCCESS]
                    - event_times[DagsterEventType.RUN_STARTING]
                )
                yield seconds - (max(claim_times) - min(claim_times)).total_seconds()


def _list_claim_times(log: SqlLog, run_id: str) -> list[datetime]:
    """Return when the run's jobs were claimed, and when they were complete."""
    events = {Event.START, Event.COMPLETE}
    history = log.read_history(most=100_000)
    return [entry.at for entry in history if entry.actor == run_id and entry.event in events]
