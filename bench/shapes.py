"""Snapshots of tables that are not plain: nested columns, deletion vectors, mapped columns."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from bench import peers
from bench.report import Report
from bench.setting import Setting, Shape
from iscp_dagster import Mirror

SHAPES = (
    Shape(
        name="structs and maps",
        columns=(
            ", named_struct('x', id, 'y', cast(id AS string)) AS place"
            ", map('a', id, 'b', id + 1) AS counts"
        ),
    ),
    Shape(
        name="deletion vectors",
        properties=", delta.enableDeletionVectors = true",
        then="DELETE FROM {t} WHERE id % 10 = 0",
        kept=0.9,
    ),
    Shape(name="mapped columns", properties=", delta.columnMapping.mode = 'name'"),
)


def measure(
    environ: Mapping[str, str], folder: Path, report: Report, rows: int, rounds: int
) -> None:
    for shape in SHAPES:
        setting = Setting(environ, folder / shape.name.replace(" ", "_"), rows, shape)
        ours, rust = (f"{shape.name}: {whose}" for whose in ("this pipeline", "delta-rs"))
        for number in range(rounds + 1):
            scratch = report if number else Report("warm-up")
            _ours(setting, scratch, ours)
            _peer(setting, scratch, rust)
        report.row(ours, setting.rows)
        report.row(rust, setting.rows)
        ratio = report.median(rust) / report.median(ours)
        report.ratio(f"{shape.name} against delta-rs", ratio, "at least 1")
        setting.clean()


def _ours(setting: Setting, report: Report, what: str) -> None:
    source = setting.source(Mirror())
    with report.timed(what):
        delivered = setting.synchronize(source)
    assert delivered == setting.rows, delivered
    setting.forget(source)


def _peer(setting: Setting, report: Report, what: str) -> None:
    table, shape = setting.peer_table()
    with report.timed(what):
        peers.delta_rs_scan(setting, shape)
    assert setting.count(table) == setting.rows
