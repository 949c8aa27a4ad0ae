"""The embedded ClickHouse as a child of the stack."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator, Mapping

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
from iscp_dagster.model.variables import ALLOWED_HOSTS, HOME, LOG_URL

PASSWORD_VARIABLE = "ISCP_EMBEDDED_CLICKHOUSE_PASSWORD"  # noqa: S105
_OPTIONS = {
    ALLOWED_HOSTS: "--allowed-host",
    "ISCP_CLICKHOUSE_ORIGINS": "--allowed-origin",
    "ISCP_CLICKHOUSE_REMOTE_HOSTS": "--remote-host",
}
_PATHS = "ISCP_CLICKHOUSE_PATHS"


def service(settings: StackSettings) -> Service:
    """One process that owns the data path and speaks ClickHouse's HTTP interface."""
    return Service(
        name=CLICKHOUSE,
        command=(
            sys.executable,
            "-m",
            "chdb_http",
            "--path",
            str(settings.home / "clickhouse"),
            "--host",
            HOST,
            "--port",
            str(settings.clickhouse_port),
            *(("--password-env", PASSWORD_VARIABLE) if settings.secrets.password else ()),
            # By which a stack finds its processes.
            *("--shown-variable", HOME),
            *_allowed(os.environ),
        ),
        address=without_password(settings.clickhouse),
        environment=_environment(settings),
        folder=settings.home,
        log=settings.logs / "clickhouse.log",
        probe=http_probe(settings.clickhouse_port, "/ping"),
        check=lambda _: asyncio.to_thread(clickhouse_health.problem, settings.clickhouse),
        stop_seconds=30.0,
    )


def _allowed(environ: Mapping[str, str]) -> Iterator[str]:
    """The options for what these variables let requests and queries reach."""
    for variable, option in _OPTIONS.items():
        if names := environ.get(variable):
            yield from (option, names)
    for folder in filter(None, environ.get(_PATHS, "").split(os.pathsep)):
        yield from ("--allowed-path", folder)


def _environment(settings: StackSettings) -> dict[str, str]:
    """The child's environment: the server's password, but no addresses, which may hold secrets."""
    kept = child_environment(settings)
    for name in (*ADDRESS_VARIABLES, LOG_URL):
        kept.pop(name, None)
    return kept | {PASSWORD_VARIABLE: settings.secrets.password}
