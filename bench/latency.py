"""From a commit of one tenant to its row in the index, at random moments of an idle stack."""

from __future__ import annotations

import random
import time
from pathlib import Path
from statistics import quantiles

from bench.deployed import deployed
from bench.report import Report

WHAT = "one tenant: commit -> searchable"
LONGEST_PAUSE = 12.0
"""Seconds; more than a round of Dagster's sensors, so that a commit meets any moment of one."""


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
    seconds = report.seconds[WHAT]
    cuts = quantiles(seconds, n=20) if len(seconds) > 1 else seconds * 20
    report.row(WHAT, 1)
    report.fact("  p50, p95, worst", f"{cuts[9]:.1f} s, {cuts[18]:.1f} s, {max(seconds):.1f} s")
