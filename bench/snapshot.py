"""The initial synchronization: rows a second of this pipeline and its peers."""

from __future__ import annotations

from bench import peers
from bench.report import Report
from bench.setting import Setting
from iscp_dagster import Mirror

OURS = "snapshot: this pipeline, one mirror"
THREE = "snapshot: this pipeline, three mirrors, one scan"
RUST = "snapshot: delta-rs scan -> clickhouse-connect"
ENGINE = "snapshot: INSERT SELECT deltaLakeLocal"


def measure(setting: Setting, report: Report, rounds: int) -> None:
    """Measure in turn, so that a drift in speed affects all alike; the first round warms up."""
    for number in range(rounds + 1):
        scratch = report if number else Report("warm-up")
        _ours(setting, scratch, OURS, 1)
        _peer(setting, scratch, RUST)
        _peer(setting, scratch, ENGINE)
        _ours(setting, scratch, THREE, 3)
    for what, rows in ((OURS, 1), (RUST, 1), (ENGINE, 1), (THREE, 3)):
        report.row(what, rows * setting.rows)
    ours = report.median(OURS)
    report.ratio("rows/s against delta-rs", report.median(RUST) / ours, "at least 0.9")
    report.ratio("rows/s against deltaLakeLocal", report.median(ENGINE) / ours, "none")
    report.ratio("three indexes against one", report.median(THREE) / ours, "at most 2.5")


def _ours(setting: Setting, report: Report, what: str, indexes: int) -> None:
    source = setting.source(*(Mirror(name=f"m{number}") for number in range(indexes)))
    with report.timed(what):
        delivered = setting.synchronize(source)
    assert delivered == indexes * setting.rows, delivered
    setting.forget(source)


def _peer(setting: Setting, report: Report, what: str) -> None:
    table, shape = setting.peer_table()
    with report.timed(what):
        if what == RUST:
            peers.delta_rs_snapshot(setting, shape)
        else:
            peers.engine_snapshot(setting, table)
    assert setting.count(table) == setting.rows
