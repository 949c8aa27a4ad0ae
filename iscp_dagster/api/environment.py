"""The deployment that environment variables name, for the command line."""

from __future__ import annotations

import getpass
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TypeVar

from iscp_dagster.api.wiring import wire_deployment
from iscp_dagster.batchstates.factory import is_mismatch_tolerated
from iscp_dagster.clickhouse.connect.endpoint import ClickHouseEndpoint, parse_endpoints, split_urls
from iscp_dagster.events.ids import IdScheme
from iscp_dagster.joblog.sql.log import SqlLog
from iscp_dagster.model.errors import ConfigError
from iscp_dagster.model.variables import (
    CLICKHOUSE_URL,
    CLICKHOUSE_URLS,
    INVOCATIONS_TOKEN,
    INVOCATIONS_URL,
    KEEP_RUNS_DAYS,
    LAKE,
    LOG_URL,
    SPARK_REMOTE,
    STATE_STORE,
)
from iscp_dagster.spark.session import create_private_session, get_shared_session
from iscp_dagster.sync.bounds import IterationBounds
from iscp_dagster.sync.deployment import Deployment

_Number = TypeVar("_Number", int, float)
_BOUNDS = {"versions": "ISCP_MAX_VERSIONS", "bytes": "ISCP_MAX_BYTES"}
DEFAULT_RUN_RETENTION = timedelta(days=7)
_MOST_DAYS = 36_500
REQUIRED_VARIABLES = (CLICKHOUSE_URL, SPARK_REMOTE, LOG_URL, LAKE)


def get_user() -> str:
    """The user who runs this process: the name, or the id if there is none."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return f"user {os.getuid()}"


def count_shards(environ: Mapping[str, str]) -> int:
    """How many servers a sharded index is spread over."""
    return max(len(split_urls(environ.get(CLICKHOUSE_URLS, ""))), 1)


def parse_clickhouse_endpoints(
    environ: Mapping[str, str], **timeouts: float
) -> tuple[ClickHouseEndpoint, ...]:
    """The ClickHouse servers by shard. Raises ConfigError if settings contradict each other."""
    url, urls = environ.get(CLICKHOUSE_URL, ""), environ.get(CLICKHOUSE_URLS, "")
    return parse_endpoints(url, urls, **timeouts)


def get_databases(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The database that each shard's URL names; empty without servers. Raises ConfigError."""
    urls = environ.get(CLICKHOUSE_URL) or split_urls(environ.get(CLICKHOUSE_URLS, ""))
    return (
        tuple(endpoint.database for endpoint in parse_clickhouse_endpoints(environ)) if urls else ()
    )


def _is_set_by_urls(name: str, environ: Mapping[str, str]) -> bool:
    return name == CLICKHOUSE_URL and bool(split_urls(environ.get(CLICKHOUSE_URLS, "")))


def _describe_unset(names: Sequence[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last} are" if others else f"{last} is"


def parse_bounds(environ: Mapping[str, str]) -> IterationBounds:
    """The bounds of one iteration: ISCP_MAX_VERSIONS, ISCP_MAX_BYTES. Raises ConfigError."""
    limits: dict[str, int] = {}
    for name, variable in _BOUNDS.items():
        if value := environ.get(variable):
            if not value.isdecimal():
                raise ConfigError(f"{variable} is {value!r}; set a whole number.")
            limits[name] = int(value)
    return IterationBounds(**limits)


def parse_run_retention(environ: Mapping[str, str]) -> timedelta:
    """How long successful runs stay: ISCP_KEEP_RUNS_DAYS, or a week. Raises ConfigError."""
    bounds = (0, _MOST_DAYS)
    days = parse_number(environ, KEEP_RUNS_DAYS, float, bounds, unit="days", example=", as in 0.5")
    return DEFAULT_RUN_RETENTION if days is None else timedelta(days=days)


def parse_number(
    environ: Mapping[str, str],
    variable: str,
    read: Callable[[str], _Number],
    bounds: tuple[int, int],
    *,
    unit: str,
    example: str = "",
) -> _Number | None:
    """The variable's number within the bounds; None if it is unset. Raises ConfigError."""
    value, (least, most) = environ.get(variable), bounds
    if not value:
        return None
    with suppress(ValueError):
        if least <= read(value) <= most:
            return read(value)
    raise ConfigError(f"{variable} is {value!r}; set {unit} from {least} to {most}{example}.")


def open_deployment(environ: Mapping[str, str]) -> Deployment:
    """The deployment; Spark connects at first use. Raises ConfigError naming unset variables."""
    missing = [
        name
        for name in REQUIRED_VARIABLES
        if not (environ.get(name) or _is_set_by_urls(name, environ))
    ]
    if missing:
        raise ConfigError(
            f"{_describe_unset(missing)} not set, and no stack is up. Start one with `iscp up`, or "
            "name the "
            "services of your deployment."
        )
    log = SqlLog(environ[LOG_URL], actor=get_user())
    log.ensure()
    remote = environ[SPARK_REMOTE]
    return wire_deployment(
        shards=parse_clickhouse_endpoints(environ),
        log=log,
        log_url=environ[LOG_URL],
        state_store=environ.get(STATE_STORE, "sql"),
        tolerate_state_mismatch=is_mismatch_tolerated(environ),
        shared=lambda: get_shared_session(remote),
        private=lambda: create_private_session(remote),
        lake=environ[LAKE],
        bounds=parse_bounds(environ),
        event_ids=IdScheme.from_environment(environ),
        invocations=(environ.get(INVOCATIONS_URL, ""), environ.get(INVOCATIONS_TOKEN, "")),
    )
