"""Compare this pipeline with what a user would pick instead, in one run, as ratios.

    python -m bench                    # 2,000,000 rows, three rounds
    python -m bench --rows 200000      # quicker
    python -m bench --only scale       # an idle look over 3,000,000 jobs; takes minutes to fill
    python -m bench --only fleet       # 500 tenants through Dagster, on a stack of its own
    python -m bench --only fleet --apart 50  # and with their watermarks at 50 different commits
    python -m bench --only fleet --buckets 64 --tenants 100000 --singles 20  # sharing partitions
    python -m bench --only latency     # 50 commits of a tenant at random moments, on its own stack
    python -m bench --only ids         # ids of events per second, by algorithm
    python -m bench --only subscriptions  # 200 subscribers at 20 changes/s, 1,000 idle ones
    python -m bench --only triggers    # from a commit to its event's receiver, on its own stack
    python -m bench --only neighbours --rows 100000 --dimension 64 --parts 4
    python -m bench --only invocations # of services: only the endpoint, then with the runtime

It needs the extra `local`, and the parts store and invocations the extra `test`. Other parts use
the running stack, or CLICKHOUSE_URL and SPARK_REMOTE; both on this machine.
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from bench import (
    detection,
    eventids,
    fleet,
    invocations,
    latency,
    neighbours,
    scale,
    shapes,
    snapshot,
    store,
    subscriptions,
    tail,
    triggers,
    webhooks,
)
from bench.report import BenchReport
from bench.setting import BenchTable
from iscp_dagster.api.environment import open_deployment
from iscp_dagster.local.stack.environment import add_stack_variables

STACK_PARTS = ["snapshot", "tail", "detection", "shapes", "store"]
TEST_EXTRA_MODULES = {"store": "moto", "invocations": "psutil"}
"""The parts that need a module of the extra `test`."""
STANDALONE_PARTS = [
    "scale",
    "fleet",
    "latency",
    "ids",
    "webhooks",
    "subscriptions",
    "triggers",
    "invocations",
    "neighbours",
]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench")
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tables", type=int, default=200, help="idle tables of the detection part")
    parser.add_argument("--only", choices=[*STACK_PARTS, *STANDALONE_PARTS], action="append")
    parser.add_argument("--scale-tables", type=int, default=1_000)
    parser.add_argument("--scale-tenants", type=int, default=1_000)
    parser.add_argument("--tenants", type=int, default=500, help="tenants of the fleet part")
    parser.add_argument(
        "--buckets", type=int, default=None, help="in the fleet part, the tenants share so many"
    )
    parser.add_argument(
        "--apart",
        type=int,
        default=0,
        help="in the fleet part, spread the tenants over this many commits, then add a round",
    )
    parser.add_argument(
        "--singles", type=int, default=0, help="in the fleet part, commits of one tenant each"
    )
    parser.add_argument("--commits", type=int, default=50, help="commits of latency and triggers")
    parser.add_argument("--events", type=int, default=3_000, help="events of the webhooks part")
    parser.add_argument("--dimension", type=int, default=64, help="of the vectors of neighbours")
    parser.add_argument("--parts", type=int, default=1, help="of the rows of neighbours")
    options = parser.parse_args()
    parts = options.only or STACK_PARTS
    for part, module in TEST_EXTRA_MODULES.items():
        if part in parts and find_spec(module) is None:
            parser.error(f"the part {part} needs {module}; install the extra `test`, or use --only")
    report = BenchReport(f"{platform.machine()}, {os.cpu_count()} cores, {options.rows:,} rows")
    try:
        for part in (part for part in STANDALONE_PARTS if part in parts):
            with tempfile.TemporaryDirectory(prefix="bench-") as folder:
                _run_standalone(options, part, Path(folder), report)
        if set(parts) & set(STACK_PARTS):
            _run_with_stack(options, parts, report)
    finally:
        print(report.render_text())


def _run_standalone(
    options: argparse.Namespace, part: str, folder: Path, report: BenchReport
) -> None:
    if part == "scale":
        scale.measure(folder, report, options.scale_tables, options.scale_tenants)
    elif part == "fleet":
        commits = fleet.Commits(options.rounds, options.apart, options.singles)
        fleet.measure(folder, report, options.tenants, commits, options.buckets)
    elif part == "ids":
        eventids.measure(report, options.rounds)
    elif part == "triggers":
        triggers.measure(folder, report, options.commits)
    elif part == "invocations":
        invocations.measure(report, options.rounds)
    elif part == "neighbours":
        size = (options.rows, options.dimension, options.parts)
        neighbours.measure(folder, report, size, options.rounds)
    elif part == "webhooks":
        webhooks.measure(folder, report, options.events)
    elif part == "subscriptions":
        subscriptions.measure(folder, report)
    else:
        latency.measure(folder, report, options.commits)


def _run_with_stack(options: argparse.Namespace, parts: Sequence[str], report: BenchReport) -> None:
    environ = add_stack_variables(os.environ)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=find_user_files(environ)) as folder:
        setting = BenchTable(environ, Path(folder), options.rows)
        if "snapshot" in parts:
            snapshot.measure(setting, report, options.rounds)
        if "tail" in parts:
            tail.measure(setting, report, options.rounds)
        if "detection" in parts:
            detection.measure(setting, report, options.tables)
        setting.clean()
        if "shapes" in parts:
            shapes.measure(environ, Path(folder), report, options.rows // 4, options.rounds)
        if "store" in parts:
            store.measure(environ, Path(folder), report, options.rows, options.rounds)


def find_user_files(environ: Mapping[str, str]) -> str:
    """Return the folder that ClickHouse's own Delta reader may read."""
    result = (
        open_deployment(environ)
        .endpoint.get_client()
        .query("SELECT value FROM system.server_settings WHERE name = 'user_files_path'")
    )
    return str(result.result_rows[0][0])


main()
