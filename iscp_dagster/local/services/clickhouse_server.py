"""The embedded ClickHouse as a child of the stack."""

from __future__ import annotations

import asyncio
import sys

from iscp_dagster.local.services import clickhouse_health
from iscp_dagster.local.services.service import Service, http_probe
from iscp_dagster.local.services.settings import (
    ADDRESS_VARIABLES,
    CLICKHOUSE,
    HOST,
    StackSettings,
    child_environment,
    without_password,
)
from iscp_dagster.model.variables import LOG_URL

PASSWORD_VARIABLE = "ISCP_EMBEDDED_CLICKHOUSE_PASSWORD"  # noqa: S105


def service(settings: StackSettings) -> Service:
    """One process that owns the data path and speaks ClickHouse's HTTP interface."""
    return Service(
        name=CLICKHOUSE,
        command=(
            sys.executable,
            "-m",
            "iscp_dagster.local.clickhouse",
            "--path",
            str(settings.home / "clickhouse"),
            "--host",
            HOST,
            "--port",
            str(settings.clickhouse_port),
            *(("--password-env", PASSWORD_VARIABLE) if settings.secrets.password else ()),
        ),
        address=without_password(settings.clickhouse),
        environment=_environment(settings),
        folder=settings.home,
        log=settings.logs / "clickhouse.log",
        probe=http_probe(settings.clickhouse_port, "/ping"),
        check=lambda _: asyncio.to_thread(clickhouse_health.problem, settings.clickhouse),
        stop_seconds=30.0,
    )


def _environment(settings: StackSettings) -> dict[str, str]:
    """The child's environment: the server's password, but no addresses, which may hold secrets."""
    kept = child_environment(settings)
    for name in (*ADDRESS_VARIABLES, LOG_URL):
        kept.pop(name, None)
    return kept | {PASSWORD_VARIABLE: settings.secrets.password}
