"""Following a change of 1,000 rows."""

from __future__ import annotations

from bench import peers
from bench.report import Report
from bench.setting import Setting
from iscp_dagster import Mirror

ROWS = 1_000
OURS = "tail of 1,000 rows: this pipeline"
RUST = "tail of 1,000 rows: delta-rs load_cdf -> clickhouse-connect"


def measure(setting: Setting, report: Report, rounds: int) -> None:
    source = setting.source(Mirror())
    setting.synchronize(source)
    _, shape = setting.peer_table()
    log = setting.deployment.delta_log(source)
    for number in range(rounds + 1):
        scratch = report if number else Report("warm-up")
        before = log.latest().version
        setting.deployment.spark().sql(
            f"UPDATE delta.`{setting.path}` SET note = 'changed {number}' WHERE id < {ROWS}"
        )
        after = log.latest().version
        with scratch.timed(OURS):
            delivered = setting.synchronize(source)
        assert delivered == ROWS, delivered
        with scratch.timed(RUST):
            peers.delta_rs_changes(setting, shape, before, after)
    report.row(OURS, ROWS)
    report.row(RUST, ROWS)
    allowed = 3 * report.median(RUST) + 0.5
    report.ratio("of 3 x delta-rs + 0.5 s", report.median(OURS) / allowed, "at most 1")
    setting.forget(source)
