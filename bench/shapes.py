"""Snapshots of tables with nested columns, deletion vectors or mapped columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from bench import peers
from bench.report import Report
from bench.setting import Setting, Shape
from iscp_dagster import Mirror
from iscp_dagster.clickhouse.tables.ddl import IndexTable

Peer = Callable[[Setting, IndexTable], None]
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
        beside(setting, report, shape.name, rounds, peers.delta_rs_scan)
        setting.clean()


def beside(setting: Setting, report: Report, name: str, rounds: int, peer: Peer) -> None:
    """Time first synchronizations of one mirror by this pipeline and the peer in turn.

    Each warms up with one run; reports the ratio of the two.
    """
    ours, theirs = f"{name}: this pipeline", f"{name}: delta-rs"
    for number in range(rounds + 1):
        scratch = report if number else Report("warm-up")
        source = setting.source(Mirror())
        with scratch.timed(ours):
            delivered = setting.synchronize(source)
        assert delivered == setting.rows, delivered
        setting.forget(source)
        table, shape = setting.peer_table()
        with scratch.timed(theirs):
            peer(setting, shape)
        assert setting.count(table) == setting.rows
    report.row(ours, setting.rows)
    report.row(theirs, setting.rows)
    ratio = report.median(theirs) / report.median(ours)
    report.ratio(f"{name} against delta-rs", ratio, "at least 1")
