"""The setting `state_store`: which store keeps the batch states."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, cast

from iscp_dagster.model.errors import ConfigError
from iscp_dagster.model.imports import load_object
from iscp_dagster.model.variables import is_true

if TYPE_CHECKING:
    from iscp_dagster.batchstates.protocol import StateStore
    from iscp_dagster.clickhouse.connect.endpoint import ClickHouseEndpoint


GROUP = "iscp_dagster.state_stores"
"""The entry point group that packages offer state stores in."""
KEEPERMAP = re.compile(r"keepermap(?::(?P<database>[^/:]*)(?P<path>/[^:]*[^:/]))?")
"""`keepermap`, optionally with its table's database and its path in Keeper."""
TOLERATE = "ISCP_TOLERATE_STATE_MISMATCH"


@dataclass(frozen=True, kw_only=True)
class StatePlaces:
    """Where a store may keep states: in the ISCP log's database, or behind a ClickHouse."""

    database_url: str | None = field(default=None, repr=False)
    endpoint: ClickHouseEndpoint | None = None


Maker = Callable[[str, StatePlaces], "StateStore"]
"""Makes the store from the full setting, such as `keepermap:/path`. Raises ConfigError."""


def make_state_store(
    setting: str, *, log_url: str | None = None, endpoint: ClickHouseEndpoint | None = None
) -> StateStore:
    """The store that the setting names; `ensure` it before its first use.

    `sql` keeps states in the ISCP log's database, `keepermap` in the Keeper behind ClickHouse,
    `keepermap:database/path` at that path. Others are an entry point of `GROUP`, named by the part
    of the setting before a colon, or `package.module:Name`; each is called as a `Maker`. Raises
    ConfigError for a setting that names no store, or if the store's place is not given.
    """
    return _find_factory(setting)(setting, StatePlaces(database_url=log_url, endpoint=endpoint))


def make_opener(
    setting: str, *, log_url: str, endpoint: ClickHouseEndpoint
) -> Callable[[], StateStore] | None:
    """A function that opens a deployment's store, ready for use; None for `sql`.

    `sql` needs none: the job's row holds the state, in one transaction with the watermark. A
    database URL gives the states a database of their own. Raises ConfigError for a setting
    that names no store.
    """
    if setting == "sql":
        return None
    kind, url = ("sql", setting) if _is_database(setting) else (setting, log_url)
    _find_factory(kind)
    return partial(_open_store, kind, url, endpoint)


def is_mismatch_tolerated(environ: Mapping[str, str]) -> bool:
    """Whether ranges before the recorded batch are skipped. Raises ConfigError."""
    return is_true(environ, TOLERATE)


@lru_cache(maxsize=4)
def _open_store(kind: str, url: str, endpoint: ClickHouseEndpoint) -> StateStore:
    store = make_state_store(kind, log_url=url, endpoint=endpoint)
    store.ensure()
    return store


def _find_factory(setting: str) -> Maker:
    kind = setting.partition(":")[0]
    if kind in BUILT_IN:
        forms, maker = BUILT_IN[kind]
        if forms.fullmatch(setting) is None:
            raise ConfigError(f"state_store {setting!r} is malformed; use one of: {KNOWN}.")
        return maker
    name = kind if kind in _list_entry_points() else setting
    factory = load_object(name, GROUP, "state store", f"{KNOWN}, a database URL")
    if not callable(factory):
        raise ConfigError(f"The state store {setting!r} is {factory!r}, which cannot be called.")
    return cast("Maker", factory)


def _list_entry_points() -> set[str]:
    return {entry_point.name for entry_point in entry_points(group=GROUP)}


def _is_database(setting: str) -> bool:
    """Whether it is a database's URL rather than a package's store. Raises ConfigError."""
    scheme, separator, _ = setting.partition("://")
    if not separator or scheme in _list_entry_points():
        return False
    from sql_transactions.engine import DRIVERS

    if scheme.partition("+")[0] not in DRIVERS:
        raise ConfigError(
            f"The state store {scheme}://… is neither a database ({', '.join(DRIVERS)}) nor an "
            f"entry point of {GROUP} (known: {', '.join(sorted(_list_entry_points())) or 'none'})."
        )
    return True


def _make_sql_store(_: str, backing: StatePlaces) -> StateStore:
    from iscp_dagster.batchstates.sql import SqlStates

    if backing.database_url is None:
        raise ConfigError("state_store 'sql' needs the ISCP log's database; set ISCP_LOG_URL.")
    return SqlStates(backing.database_url)


def _make_keepermap_store(setting: str, backing: StatePlaces) -> StateStore:
    from iscp_dagster.batchstates.keepermap import KeeperMapStates

    if backing.endpoint is None:
        raise ConfigError("state_store 'keepermap' needs ClickHouse; set CLICKHOUSE_URL.")
    match = KEEPERMAP.fullmatch(setting)
    options = {name: value for name, value in match.groupdict().items() if value} if match else {}
    return KeeperMapStates(backing.endpoint, **options)


def _make_memory_store(_: str, __: StatePlaces) -> StateStore:
    from iscp_dagster.batchstates.memory import MemoryStates

    return MemoryStates()


BUILT_IN: Mapping[str, tuple[re.Pattern[str], Maker]] = {
    "sql": (re.compile("sql"), _make_sql_store),
    "keepermap": (KEEPERMAP, _make_keepermap_store),
    "memory": (re.compile("memory"), _make_memory_store),
}
"""By the first word of a setting: its pattern and the factory of its store."""
KNOWN = f"{', '.join(BUILT_IN)}, keepermap:/path, keepermap:database/path"
