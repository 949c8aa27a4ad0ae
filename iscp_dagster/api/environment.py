"""The deployment that environment variables name, for the command line."""

from __future__ import annotations

import getpass
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TypeVar

from iscp_dagster.api.wiring import wired
from iscp_dagster.batches.factory import tolerates_mismatch
from iscp_dagster.clickhouse.connect.endpoint import Endpoint, endpoints, urls_of
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
from iscp_dagster.spark.session import private, shared
from iscp_dagster.sync.bounds import Bounds
from iscp_dagster.sync.deployment import Deployment

_Number = TypeVar("_Number", int, float)
_BOUNDS = {"versions": "ISCP_MAX_VERSIONS", "bytes": "ISCP_MAX_BYTES"}
RUNS_KEPT = timedelta(days=7)
_MOST_DAYS = 36_500
NEEDED = (CLICKHOUSE_URL, SPARK_REMOTE, LOG_URL, LAKE)


def user() -> str:
    """The user who runs this process: the name, or the id if there is none."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return f"user {os.getuid()}"


def shards_of(environ: Mapping[str, str]) -> int:
    """How many servers a sharded index is spread over."""
    return max(len(urls_of(environ.get(CLICKHOUSE_URLS, ""))), 1)


def endpoints_of(environ: Mapping[str, str], **timeouts: float) -> tuple[Endpoint, ...]:
    """The ClickHouse servers by shard. Raises ConfigError if settings contradict each other."""
    url, urls = environ.get(CLICKHOUSE_URL, ""), environ.get(CLICKHOUSE_URLS, "")
    return endpoints(url, urls, **timeouts)


def databases_of(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The database that each shard's URL names; empty without servers. Raises ConfigError."""
    named = environ.get(CLICKHOUSE_URL) or urls_of(environ.get(CLICKHOUSE_URLS, ""))
    return tuple(each.database for each in endpoints_of(environ)) if named else ()


def _by_urls(name: str, environ: Mapping[str, str]) -> bool:
    return name == CLICKHOUSE_URL and bool(urls_of(environ.get(CLICKHOUSE_URLS, "")))


def _unset(names: Sequence[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last} are" if others else f"{last} is"


def bounds_of(environ: Mapping[str, str]) -> Bounds:
    """How much one iteration takes on: ISCP_MAX_VERSIONS, ISCP_MAX_BYTES. Raises ConfigError."""
    asked: dict[str, int] = {}
    for name, variable in _BOUNDS.items():
        if said := environ.get(variable):
            if not said.isdecimal():
                raise ConfigError(f"{variable} is {said!r}; set a whole number.")
            asked[name] = int(said)
    return Bounds(**asked)


def runs_kept_of(environ: Mapping[str, str]) -> timedelta:
    """How long successful runs stay: ISCP_KEEP_RUNS_DAYS, or a week. Raises ConfigError."""
    bounds = (0, _MOST_DAYS)
    days = number_of(environ, KEEP_RUNS_DAYS, float, bounds, unit="days", example=", as in 0.5")
    return RUNS_KEPT if days is None else timedelta(days=days)


def number_of(
    environ: Mapping[str, str],
    variable: str,
    read: Callable[[str], _Number],
    bounds: tuple[int, int],
    *,
    unit: str,
    example: str = "",
) -> _Number | None:
    """The variable's number within the bounds; None if it is unset. Raises ConfigError."""
    said, (least, most) = environ.get(variable), bounds
    if not said:
        return None
    with suppress(ValueError):
        if least <= read(said) <= most:
            return read(said)
    raise ConfigError(f"{variable} is {said!r}; set {unit} from {least} to {most}{example}.")


def deployment_of(environ: Mapping[str, str]) -> Deployment:
    """The deployment; Spark connects at first use. Raises ConfigError naming unset variables."""
    missing = [name for name in NEEDED if not (environ.get(name) or _by_urls(name, environ))]
    if missing:
        raise ConfigError(
            f"{_unset(missing)} not set, and no stack is up. Start one with `iscp up`, or name the "
            "services of your deployment."
        )
    log = SqlLog(environ[LOG_URL], who=user())
    log.ensure()
    remote = environ[SPARK_REMOTE]
    return wired(
        shards=endpoints_of(environ),
        log=log,
        log_url=environ[LOG_URL],
        state_store=environ.get(STATE_STORE, "sql"),
        tolerate_state_mismatch=tolerates_mismatch(environ),
        shared=lambda: shared(remote),
        private=lambda: private(remote),
        lake=environ[LAKE],
        bounds=bounds_of(environ),
        event_ids=IdScheme.from_environment(environ),
        invocations=(environ.get(INVOCATIONS_URL, ""), environ.get(INVOCATIONS_TOKEN, "")),
    )
