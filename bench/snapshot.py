"""The initial synchronization: rows a second of this pipeline and its peers."""

from __future__ import annotations

from bench import peers
from bench.report import BenchReport
from bench.setting import BenchTable
from iscp_dagster import Mirror

OURS = "snapshot: this pipeline, one mirror"
THREE = "snapshot: this pipeline, three mirrors, one scan"
RUST = "snapshot: delta-rs scan -> clickhouse-connect"
ENGINE = "snapshot: INSERT SELECT deltaLakeLocal"


def measure(setting: BenchTable, report: BenchReport, rounds: int) -> None:
    """Measure in turn, so that a drift in speed affects all alike; the first round warms up."""
    for number in range(rounds + 1):
        scratch = report if number else BenchReport("warm-up")
        _time_pipeline(setting, scratch, OURS, 1)
        _time_peer(setting, scratch, RUST)
        _time_peer(setting, scratch, ENGINE)
        _time_pipeline(setting, scratch, THREE, 3)
    for label, rows in ((OURS, 1), (RUST, 1), (ENGINE, 1), (THREE, 3)):
        report.add_rate(label, rows * setting.rows)
    own_seconds = report.compute_median(OURS)
    report.add_ratio(
        "rows/s against delta-rs", report.compute_median(RUST) / own_seconds, "at least 0.9"
    )
    report.add_ratio(
        "rows/s against deltaLakeLocal", report.compute_median(ENGINE) / own_seconds, "none"
    )
    report.add_ratio(
        "three indexes against one", report.compute_median(THREE) / own_seconds, "at most 2.5"
    )


def _time_pipeline(setting: BenchTable, report: BenchReport, label: str, indexes: int) -> None:
    source = setting.declare_source(*(Mirror(name=f"m{number}") for number in range(indexes)))
    with report.measure_time(label):
        delivered = setting.synchronize(source)
    assert delivered == indexes * setting.rows, delivered
    setting.unregister_jobs(source)


def _time_peer(setting: BenchTable, report: BenchReport, label: str) -> None:
    table, shape = setting.make_peer_table()
    with report.measure_time(label):
        if label == RUST:
            peers.snapshot_with_delta_rs(setting, shape)
        else:
            peers.snapshot_with_engine(setting, table)
    assert setting.count(table) == setting.rows
