"""The setting `state_store`: which store keeps the batch states."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from iscp_dagster.core.errors import ConfigError

if TYPE_CHECKING:
    from iscp_dagster.clickhouse.endpoint import Endpoint
    from iscp_dagster.states.protocol import StateStore


KINDS = ("sql", "keepermap", "memory")
KEEPERMAP = re.compile(r"keepermap(?::(?P<database>[^/:]*)(?P<path>/[^:]*[^:/]))?")
"""`keepermap`, or with the database of its table and its path in Keeper."""
_KNOWN = f"{', '.join(KINDS)}, keepermap:/path, keepermap:database/path"
TOLERATE = "ISCP_TOLERATE_STATE_MISMATCH"


def state_store(
    kind: str, *, log_url: str | None = None, endpoint: Endpoint | None = None
) -> StateStore:
    """The store that `sql`, `keepermap` or `memory` names; `ensure` it before its first use.

    `sql` lives in the ISCP log's database, `keepermap` in the Keeper behind ClickHouse, where
    `keepermap:database/path` says. Raises ConfigError for another kind, and where the kind's place
    is not given.
    """
    makers: dict[str, Callable[[], StateStore]] = {
        "sql": lambda: _sql(log_url),
        "keepermap": lambda: _keepermap(kind, endpoint),
        "memory": _memory,
    }
    named = "keepermap" if KEEPERMAP.fullmatch(kind) else kind
    if named not in makers:
        raise ConfigError(f"state_store {kind!r} is none of: {_KNOWN}.")
    return makers[named]()


def opener(setting: str, *, log_url: str, endpoint: Endpoint) -> Callable[[], StateStore] | None:
    """What opens the store of a deployment at its first use, made ready; None for `sql`.

    `sql` needs none: the job's row holds the state, in one transaction with the watermark. A
    database URL is a database of the states' own. Raises ConfigError for another setting.
    """
    if setting == "sql":
        return None
    kind, url = ("sql", setting) if "://" in setting else (setting, log_url)
    if kind not in KINDS and not KEEPERMAP.fullmatch(kind):
        raise ConfigError(f"ISCP_STATE_STORE {setting!r} is none of: {_KNOWN}, or a URL.")
    return partial(_opened, kind, url, endpoint)


def tolerates_mismatch(environ: Mapping[str, str]) -> bool:
    """Whether ranges before the recorded batch are passed over. Raises ConfigError."""
    said = environ.get(TOLERATE, "false").lower()
    if said not in ("true", "false"):
        raise ConfigError(f"{TOLERATE} is {said!r}; say true or false.")
    return said == "true"


@lru_cache(maxsize=4)
def _opened(kind: str, url: str, endpoint: Endpoint) -> StateStore:
    store = state_store(kind, log_url=url, endpoint=endpoint)
    store.ensure()
    return store


def _sql(log_url: str | None) -> StateStore:
    from iscp_dagster.states.sql import SqlStates

    if log_url is None:
        raise ConfigError("state_store 'sql' lives in the ISCP log's database; set ISCP_LOG_URL.")
    return SqlStates(log_url)


def _keepermap(setting: str, endpoint: Endpoint | None) -> StateStore:
    from iscp_dagster.states.keepermap import KeeperMapStates

    if endpoint is None:
        raise ConfigError("state_store 'keepermap' lives behind ClickHouse; set CLICKHOUSE_URL.")
    found = KEEPERMAP.fullmatch(setting)
    place = {name: said for name, said in found.groupdict().items() if said} if found else {}
    return KeeperMapStates(endpoint, **place)


def _memory() -> StateStore:
    from iscp_dagster.states.memory import MemoryStates

    return MemoryStates()
