"""From a commit of one tenant to its row in the index, at random moments of an idle stack."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from statistics import quantiles

from bench.deployed import deployed, instance_in
from bench.report import Report
from iscp_dagster.joblog.sql.log import SqlLog
from iscp_dagster.model.states import Event

WHAT = "one tenant: commit -> searchable"
AROUND = "a run: starting -> success, less its iteration"
LONGEST_PAUSE = 12.0
"""Seconds; longer than a round of Dagster's sensors, so that commits come at any point of one."""


def measure(folder: Path, report: Report, commits: int) -> None:
    with deployed(folder, ["one"]) as tables:
        table, moments = tables["one"], random.Random(7)
        table.commit(["a"], 20, 0)
        table.await_in_step(2)
        for number in range(commits):
            time.sleep(moments.uniform(1, LONGEST_PAUSE))
            table.commit(["a"], 1, 1_000 + number)
            with report.timed(WHAT):
                table.await_served(1_000 + number)
        report.seconds[AROUND] = list(_around(folder, table.deployment.log))
    for what in (WHAT, AROUND):
        report.row(what, 1)
        seconds = report.seconds[what]
        cuts = quantiles(seconds, n=20, method="inclusive") if len(seconds) > 1 else seconds * 20
        report.fact("  p50, p95, worst", f"{cuts[9]:.2f} s, {cuts[18]:.2f} s, {max(seconds):.2f} s")


def _around(folder: Path, log: SqlLog) -> Iterator[float]:
    """Yield, for each successful run, its seconds outside the time in which it held its jobs.

    A run counts from its start event: Dagster records no other moment of leaving the queue.
    """
    from dagster import DagsterEventType, DagsterRunStatus, RunsFilter

    with instance_in(folder) as instance:
        for run in instance.get_runs(RunsFilter(statuses=[DagsterRunStatus.SUCCESS])):
            held = _held(log, run.run_id)
            told = {
                each.dagster_event_type: each.timestamp
                for each in instance.all_logs(
                    run.run_id,
                    of_type={DagsterEventType.RUN_STARTING, DagsterEventType.RUN_SUCCESS},
                )
            }
            if held and len(told) == 2:
                took = told[DagsterEventType.RUN_SUCCESS] - told[DagsterEventType.RUN_STARTING]
                yield took - (max(held) - min(held)).total_seconds()


def _held(log: SqlLog, run_id: str) -> list[datetime]:
    """Return when the run's jobs were claimed, and when they were complete."""
    events = {Event.START, Event.COMPLETE}
    history = log.history(most=100_000)
    return [each.at for each in history if each.who == run_id and each.event in events]
