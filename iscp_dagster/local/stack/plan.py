"""Turns the options and environment of `iscp up` into the settings of a stack."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from iscp_dagster.clickhouse.connect.endpoint import parse_endpoints, split_urls
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
    environ = _drop_own_addresses(environ, credentials.read(home))
    chosen_ports: dict[str, ChosenPort] = {}
    for service in SERVICES:
        taken = frozenset(port.port for port in chosen_ports.values())
        chosen_ports[service] = choose(service, ports.get(service), environ, taken)
    settings = StackSettings(
        home=home,
        clickhouse_port=chosen_ports[CLICKHOUSE].port,
        spark_port=chosen_ports[SPARK].port,
        dagster_port=chosen_ports[DAGSTER].port,
        graphql_port=chosen_ports[GRAPHQL].port,
        invocations_port=chosen_ports[INVOCATIONS].port,
        clickhouse_url=_get_clickhouse_url(environ),
        clickhouse_urls=environ.get(variables.CLICKHOUSE_URLS, ""),
        spark_remote=environ.get(variables.SPARK_REMOTE) or None,
        log_url=environ.get(variables.LOG_URL) or None,
        services=services,
        requested=frozenset(port.service for port in chosen_ports.values() if port.requested),
    )
    return replace(settings, secrets=credentials.ensure_secrets(home))


def describe_moved_ports(settings: StackSettings, now: StackState) -> list[str]:
    """Messages about services that got another port because their usual one was taken."""
    ports = {
        service.name: urlsplit(service.address).port for service in now.services if service.address
    }
    return [
        f"Port {USUAL[name]} is taken: {name} gets port {ports[name]} instead."
        for name in list_embedded_services(settings)
        if name not in settings.requested and ports[name] != USUAL[name]
    ]


def _drop_own_addresses(environ: Mapping[str, str], secrets: credentials.Secrets) -> dict[str, str]:
    """`environ` without the addresses of this very stack, which `iscp env` set."""
    remaining = dict(environ)
    own_secrets = {
        variables.CLICKHOUSE_URL: secrets.password,
        variables.SPARK_REMOTE: secrets.spark_token,
    }
    for variable, secret in own_secrets.items():
        if secret and secret in environ.get(variable, ""):
            del remaining[variable]
    return remaining


def _get_clickhouse_url(environ: Mapping[str, str]) -> str | None:
    """The URL of the user's own ClickHouse; the first if there are several.

    Raises ConfigError when the two variables contradict each other.
    """
    url, urls = (
        environ.get(variables.CLICKHOUSE_URL, ""),
        environ.get(variables.CLICKHOUSE_URLS, ""),
    )
    if split_urls(urls):
        parse_endpoints(url, urls)
        return split_urls(urls)[0]
    return url or None


def list_embedded_services(settings: StackSettings) -> tuple[str, ...]:
    """The services that the stack starts itself."""
    elsewhere = {CLICKHOUSE: settings.clickhouse_url, SPARK: settings.spark_remote}
    return tuple(name for name in settings.services if not elsewhere.get(name))


def get_own_ports(settings: StackSettings) -> dict[str, int]:
    """The ports of the services that the stack starts itself."""
    ports = {
        CLICKHOUSE: settings.clickhouse_port,
        SPARK: settings.spark_port,
        DAGSTER: settings.dagster_port,
        GRAPHQL: settings.graphql_port,
        INVOCATIONS: settings.invocations_port,
    }
    return {name: ports[name] for name in list_embedded_services(settings)}


def select_services(only: Sequence[str]) -> tuple[str, ...]:
    """The services to run: those named, or all.

    Raises ConfigError for an unknown name, and SetupError for those that need the tables or
    Dagster's settings if the package was installed without the repository, which has them.
    """
    for name in only:
        if name not in SERVICES:
            raise ConfigError(f"there is no service {name!r}; name one of {', '.join(SERVICES)}")
    services = tuple(name for name in SERVICES if name in only) or SERVICES
    if {DAGSTER, GRAPHQL, INVOCATIONS}.intersection(services) and not is_clone():
        others = " ".join(f"--service {name}" for name in (CLICKHOUSE, SPARK))
        raise SetupError(
            "`iscp up` starts Dagster, the GraphQL server and the runtime of invocations only in a "
            f"clone of the repository. Start the other services with `iscp up {others}`, then run "
            '`eval "$(iscp env)"` and `dagster dev` in a shell, and `iscp serve` and `iscp '
            "invocations serve` in others."
        )
    return services


def format_options(settings: StackSettings) -> list[str]:
    """The options of `iscp up` that select these services and the requested ports."""
    services = [part for name in settings.services for part in ("--service", name)]
    ports = {
        name: port for name, port in get_own_ports(settings).items() if name in settings.requested
    }
    return services + [
        part for name, port in ports.items() for part in (f"--{name}-port", str(port))
    ]


def fetch_missing_jars(settings: StackSettings, paths: Callable[[], Iterable[str | None]]) -> None:
    """Fetch the jars that Spark needs for tables at these paths, unless they are there."""
    from iscp_dagster.local.services import spark_server
    from iscp_dagster.local.spark import s3a

    if SPARK not in list_embedded_services(settings):
        return
    for name in spark_server.find_missing_modules(settings, os.environ):
        lakes = [os.environ.get(variables.LAKE)]
        if name == spark_server.DELTA or s3a.has_store_path(lakes) or s3a.has_store_path(paths()):
            with show.show_progress(f"Fetching the jars of {name}"):
                spark_server.fetch(settings, name, os.environ)
