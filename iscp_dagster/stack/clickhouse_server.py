"""The embedded ClickHouse as a child of the stack."""

from __future__ import annotations

import asyncio
import sys

from iscp_dagster.stack import clickhouse_health
from iscp_dagster.stack.service import Service, http_probe
from iscp_dagster.stack.settings import CLICKHOUSE, HOST, StackSettings, child_environment


def service(settings: StackSettings) -> Service:
    """One process that owns the data path and speaks ClickHouse's HTTP interface."""
    return Service(
        name=CLICKHOUSE,
        command=(
            sys.executable,
            "-m",
            "iscp_dagster.clickhouse.embedded",
            "--path",
            str(settings.home / "clickhouse"),
            "--host",
            HOST,
            "--port",
            str(settings.clickhouse_port),
        ),
        address=settings.clickhouse,
        environment=child_environment(settings),
        folder=settings.home,
        log=settings.logs / "clickhouse.log",
        probe=http_probe(settings.clickhouse_port, "/ping"),
        check=lambda _: asyncio.to_thread(clickhouse_health.problem, settings.clickhouse),
        stop_seconds=30.0,
    )
