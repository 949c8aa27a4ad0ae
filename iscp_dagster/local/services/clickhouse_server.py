"""The embedded ClickHouse as a child of the stack."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator, Mapping

from iscp_dagster.local.services import clickhouse_health
from iscp_dagster.local.services.service import Service, make_http_probe
from iscp_dagster.local.services.settings import (
    ADDRESS_VARIABLES,
    CLICKHOUSE,
    HOST,
    StackSettings,
    build_child_environment,
    redact_address,
)
from iscp_dagster.model.variables import ALLOWED_HOSTS, HOME, LOG_URL

PASSWORD_VARIABLE = "ISCP_EMBEDDED_CLICKHOUSE_PASSWORD"  # noqa: S105
_OPTIONS = {
    ALLOWED_HOSTS: "--allowed-host",
    "ISCP_CLICKHOUSE_ORIGINS": "--allowed-origin",
    "ISCP_CLICKHOUSE_REMOTE_HOSTS": "--remote-host",
}
_PATHS = "ISCP_CLICKHOUSE_PATHS"


def build_service(settings: StackSettings) -> Service:
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
            # The variable by which a stack finds its processes.
            *("--shown-variable", HOME),
            *_list_access_options(os.environ),
        ),
        address=redact_address(settings.clickhouse_address_with_password),
        environment=_build_environment(settings),
        folder=settings.home,
        log=settings.logs / "clickhouse.log",
        probe=make_http_probe(settings.clickhouse_port, "/ping"),
        check=lambda _: asyncio.to_thread(
            clickhouse_health.find_problem, settings.clickhouse_address_with_password
        ),
        stop_seconds=30.0,
    )


def _list_access_options(environ: Mapping[str, str]) -> Iterator[str]:
    """The access options that these variables set."""
    for variable, option in _OPTIONS.items():
        if names := environ.get(variable):
            yield from (option, names)
    for folder in filter(None, environ.get(_PATHS, "").split(os.pathsep)):
        yield from ("--allowed-path", folder)


def _build_environment(settings: StackSettings) -> dict[str, str]:
    """The child's environment: the server's password, but no addresses, which may hold secrets."""
    environment = build_child_environment(settings)
    for name in (*ADDRESS_VARIABLES, LOG_URL):
        environment.pop(name, None)
    return environment | {PASSWORD_VARIABLE: settings.secrets.password}
