"""Following a change of 1,000 rows."""

from __future__ import annotations

from bench import peers
from bench.report import BenchReport
from bench.setting import BenchTable
from iscp_dagster import Mirror

ROWS = 1_000
OURS = "tail of 1,000 rows: this pipeline"
RUST = "tail of 1,000 rows: delta-rs load_cdf -> clickhouse-connect"


def measure(setting: BenchTable, report: BenchReport, rounds: int) -> None:
    source = setting.declare_source(Mirror())
    setting.synchronize(source)
    _, shape = setting.make_peer_table()
    log = setting.deployment.make_delta_log(source)
    for number in range(rounds + 1):
        scratch = report if number else BenchReport("warm-up")
        before = log.get_latest_moment().version
        setting.deployment.spark().sql(
            f"UPDATE delta.`{setting.path}` SET note = 'changed {number}' WHERE id < {ROWS}"
        )
        after = log.get_latest_moment().version
        with scratch.measure_time(OURS):
            delivered = setting.synchronize(source)
        assert delivered == ROWS, delivered
        with scratch.measure_time(RUST):
            peers.follow_with_delta_rs(setting, shape, before, after)
    report.add_rate(OURS, ROWS)
    report.add_rate(RUST, ROWS)
    allowed_seconds = 3 * report.compute_median(RUST) + 0.5
    report.add_ratio(
        "of 3 x delta-rs + 0.5 s", report.compute_median(OURS) / allowed_seconds, "at most 1"
    )
    setting.unregister_jobs(source)
