"""Snapshots of tables with nested columns, deletion vectors or mapped columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from bench import peers
from bench.report import BenchReport
from bench.setting import BenchTable, Shape
from iscp_dagster import Mirror
from iscp_dagster.clickhouse.tables.ddl import IndexShape

Peer = Callable[[BenchTable, IndexShape], None]
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
        statement_after="DELETE FROM {t} WHERE id % 10 = 0",
        kept_fraction=0.9,
    ),
    Shape(name="mapped columns", properties=", delta.columnMapping.mode = 'name'"),
)


def measure(
    environ: Mapping[str, str], folder: Path, report: BenchReport, rows: int, rounds: int
) -> None:
    for shape in SHAPES:
        setting = BenchTable(environ, folder / shape.name.replace(" ", "_"), rows, shape)
        compare_with_peer(setting, report, shape.name, rounds, peers.scan_with_delta_rs)
        setting.clean()


def compare_with_peer(
    setting: BenchTable, report: BenchReport, name: str, rounds: int, peer: Peer
) -> None:
    """Time first synchronizations of one mirror by this pipeline and the peer in turn.

    Each warms up with one run; reports the ratio of the two.
    """
    own_label, peer_label = f"{name}: this pipeline", f"{name}: delta-rs"
    for number in range(rounds + 1):
        scratch = report if number else BenchReport("warm-up")
        source = setting.declare_source(Mirror())
        with scratch.measure_time(own_label):
            delivered = setting.synchronize(source)
        assert delivered == setting.rows, delivered
        setting.unregister_jobs(source)
        table, shape = setting.make_peer_table()
        with scratch.measure_time(peer_label):
            peer(setting, shape)
        assert setting.count(table) == setting.rows
    report.add_rate(own_label, setting.rows)
    report.add_rate(peer_label, setting.rows)
    ratio = report.compute_median(peer_label) / report.compute_median(own_label)
    report.add_ratio(f"{name} against delta-rs", ratio, "at least 1")
