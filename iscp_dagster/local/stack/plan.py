"""Turns the options and environment of `iscp up` into the settings of a stack."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from iscp_dagster.clickhouse.connect.endpoint import endpoints, urls_of
from iscp_dagster.local.services import credentials
from iscp_dagster.local.services.settings import (
    CLICKHOUSE,
    DAGSTER,
    GRAPHQL,
    INVOCATIONS,
    SERVICES,
    SPARK,
    StackSettings,
    is_clone,
)
from iscp_dagster.local.services.state import StackState
from iscp_dagster.local.stack import show
from iscp_dagster.local.stack.ports import USUAL, ChosenPort, choose
from iscp_dagster.model import variables
from iscp_dagster.model.errors import ConfigError, SetupError


def resolve(
    home: Path,
    ports: Mapping[str, int | None],
    environ: Mapping[str, str],
    services: tuple[str, ...] = SERVICES,
) -> StackSettings:
    """The settings for a home; makes its secrets if they are missing.

    Raises ConfigError when a requested port is invalid or taken, or when the ClickHouse variables
    contradict each other; SetupError when other users may read a secret.
    """
    environ = _less_own(environ, credentials.read(home))
    chosen: dict[str, ChosenPort] = {}
    for service in SERVICES:
        taken = frozenset(other.port for other in chosen.values())
        chosen[service] = choose(service, ports.get(service), environ, taken)
    settings = StackSettings(
        home=home,
        clickhouse_port=chosen[CLICKHOUSE].port,
        spark_port=chosen[SPARK].port,
        dagster_port=chosen[DAGSTER].port,
        graphql_port=chosen[GRAPHQL].port,
        invocations_port=chosen[INVOCATIONS].port,
        clickhouse_url=_clickhouse_url(environ),
        clickhouse_urls=environ.get(variables.CLICKHOUSE_URLS, ""),
        spark_remote=environ.get(variables.SPARK_REMOTE) or None,
        log_url=environ.get(variables.LOG_URL) or None,
        services=services,
        asked=frozenset(each.service for each in chosen.values() if each.asked),
    )
    return replace(settings, secrets=credentials.ensured(home))


def moved(settings: StackSettings, now: StackState) -> list[str]:
    """Messages about services that got another port because their usual one was taken."""
    ports = {each.name: urlsplit(each.address).port for each in now.services if each.address}
    return [
        f"Port {USUAL[name]} is taken: {name} gets port {ports[name]} instead."
        for name in embedded(settings)
        if name not in settings.asked and ports[name] != USUAL[name]
    ]


def _less_own(environ: Mapping[str, str], held: credentials.Secrets) -> dict[str, str]:
    """`environ` without the addresses of this very stack, which `iscp env` set."""
    kept = dict(environ)
    own = {variables.CLICKHOUSE_URL: held.password, variables.SPARK_REMOTE: held.spark_token}
    for variable, secret in own.items():
        if secret and secret in environ.get(variable, ""):
            del kept[variable]
    return kept


def _clickhouse_url(environ: Mapping[str, str]) -> str | None:
    """The URL of the user's own ClickHouse; the first if there are several.

    Raises ConfigError when the two variables contradict each other.
    """
    url, urls = (
        environ.get(variables.CLICKHOUSE_URL, ""),
        environ.get(variables.CLICKHOUSE_URLS, ""),
    )
    if urls_of(urls):
        endpoints(url, urls)
        return urls_of(urls)[0]
    return url or None


def embedded(settings: StackSettings) -> tuple[str, ...]:
    """The services that the stack starts itself."""
    elsewhere = {CLICKHOUSE: settings.clickhouse_url, SPARK: settings.spark_remote}
    return tuple(name for name in settings.services if not elsewhere.get(name))


def own_ports(settings: StackSettings) -> dict[str, int]:
    """The ports of the services that the stack starts itself."""
    ports = {
        CLICKHOUSE: settings.clickhouse_port,
        SPARK: settings.spark_port,
        DAGSTER: settings.dagster_port,
        GRAPHQL: settings.graphql_port,
        INVOCATIONS: settings.invocations_port,
    }
    return {name: ports[name] for name in embedded(settings)}


def wanted(only: Sequence[str]) -> tuple[str, ...]:
    """The services to run: those named, or all.

    Raises ConfigError for an unknown name, and SetupError for those that need the tables or
    Dagster's settings if the package was installed without the repository, which has them.
    """
    for name in only:
        if name not in SERVICES:
            raise ConfigError(f"there is no service {name!r}; name one of {', '.join(SERVICES)}")
    found = tuple(name for name in SERVICES if name in only) or SERVICES
    if {DAGSTER, GRAPHQL, INVOCATIONS}.intersection(found) and not is_clone():
        others = " ".join(f"--service {name}" for name in (CLICKHOUSE, SPARK))
        raise SetupError(
            "`iscp up` starts Dagster, the GraphQL server and the runtime of invocations only in a "
            f"clone of the repository. Start the other services with `iscp up {others}`, then run "
            '`eval "$(iscp env)"` and `dagster dev` in a shell, and `iscp serve` and `iscp '
            "invocations serve` in others."
        )
    return found


def options(settings: StackSettings) -> list[str]:
    """The options of `iscp up` that select these services and the requested ports."""
    services = [part for name in settings.services for part in ("--service", name)]
    ports = {name: port for name, port in own_ports(settings).items() if name in settings.asked}
    return services + [
        part for name, port in ports.items() for part in (f"--{name}-port", str(port))
    ]


def fetch(settings: StackSettings, paths: Callable[[], Iterable[str | None]]) -> None:
    """Fetch the jars that Spark needs for tables at these paths, unless they are there."""
    from iscp_dagster.local.services import spark_server
    from iscp_dagster.local.spark import s3a

    if SPARK not in embedded(settings):
        return
    for name in spark_server.lacking(settings, os.environ):
        lakes = [os.environ.get(variables.LAKE)]
        if name == spark_server.DELTA or s3a.in_store(lakes) or s3a.in_store(paths()):
            with show.doing(f"Fetching the jars of {name}"):
                spark_server.fetch(settings, name, os.environ)
