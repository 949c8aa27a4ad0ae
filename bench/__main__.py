"""Measure this pipeline beside what a user would pick instead, in one run, as ratios.

    python -m bench                    # 2,000,000 rows, three rounds
    python -m bench --rows 200000      # quicker

Uses the stack that is up, or CLICKHOUSE_URL and SPARK_REMOTE; both must be on this machine.
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
from collections.abc import Mapping
from pathlib import Path

from bench import detection, snapshot, tail
from bench.report import Report
from bench.setting import Setting
from iscp_dagster.engine.environment import engine_of
from iscp_dagster.stack.environment import with_stack


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench")
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tables", type=int, default=200, help="idle tables for detection")
    parser.add_argument("--only", choices=["snapshot", "tail", "detection"], action="append")
    chosen = parser.parse_args()
    parts = chosen.only or ["snapshot", "tail", "detection"]
    report = Report(f"{platform.machine()}, {os.cpu_count()} cores, {chosen.rows:,} rows")
    environ = with_stack(os.environ)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=user_files(environ)) as folder:
        setting = Setting(environ, Path(folder), chosen.rows)
        if "snapshot" in parts:
            snapshot.measure(setting, report, chosen.rounds)
        if "tail" in parts:
            tail.measure(setting, report, chosen.rounds)
        if "detection" in parts:
            detection.measure(setting, report, chosen.tables)
        setting.clean()
    print(report.text())


def user_files(environ: Mapping[str, str]) -> str:
    """The folder that ClickHouse's own Delta reader may read."""
    found = (
        engine_of(environ)
        .endpoint.client()
        .query("SELECT value FROM system.server_settings WHERE name = 'user_files_path'")
    )
    return str(found.result_rows[0][0])


main()
