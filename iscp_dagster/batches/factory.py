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
    from iscp_dagster.batches.protocol import StateStore
    from iscp_dagster.clickhouse.connect.endpoint import Endpoint


GROUP = "iscp_dagster.state_stores"
"""The entry point group that packages offer state stores in."""
KEEPERMAP = re.compile(r"keepermap(?::(?P<database>[^/:]*)(?P<path>/[^:]*[^:/]))?")
"""`keepermap`, optionally with its table's database and its path in Keeper."""
TOLERATE = "ISCP_TOLERATE_STATE_MISMATCH"


@dataclass(frozen=True, kw_only=True)
class Backing:
    """Where a store may keep states: in the ISCP log's database, or behind a ClickHouse."""

    log_url: str | None = field(default=None, repr=False)
    endpoint: Endpoint | None = None


Maker = Callable[[str, Backing], "StateStore"]
"""Makes the store from a whole setting, such as `keepermap:/path`. Raises ConfigError."""


def state_store(
    setting: str, *, log_url: str | None = None, endpoint: Endpoint | None = None
) -> StateStore:
    """The store that the setting names; `ensure` it before its first use.

    `sql` keeps states in the ISCP log's database, `keepermap` in the Keeper behind ClickHouse,
    `keepermap:database/path` at that path. Others are an entry point of `GROUP`, named by the part
    of the setting before a colon, or `package.module:Name`; each is called as a `Maker`. Raises
    ConfigError for a setting that names no store, or if the store's place is not given.
    """
    return _maker(setting)(setting, Backing(log_url=log_url, endpoint=endpoint))


def opener(setting: str, *, log_url: str, endpoint: Endpoint) -> Callable[[], StateStore] | None:
    """A function that opens a deployment's store, ready for use; None for `sql`.

    `sql` needs none: the job's row holds the state, in one transaction with the watermark. A
    database URL gives the states a database of their own. Raises ConfigError for other settings.
    """
    if setting == "sql":
        return None
    kind, url = ("sql", setting) if _is_database(setting) else (setting, log_url)
    _maker(kind)
    return partial(_opened, kind, url, endpoint)


def tolerates_mismatch(environ: Mapping[str, str]) -> bool:
    """Whether ranges before the recorded batch are skipped. Raises ConfigError."""
    return is_true(environ, TOLERATE)


@lru_cache(maxsize=4)
def _opened(kind: str, url: str, endpoint: Endpoint) -> StateStore:
    store = state_store(kind, log_url=url, endpoint=endpoint)
    store.ensure()
    return store


def _maker(setting: str) -> Maker:
    kind = setting.partition(":")[0]
    if kind in BUILT_IN:
        forms, maker = BUILT_IN[kind]
        if forms.fullmatch(setting) is None:
            raise ConfigError(f"state_store {setting!r} is malformed; use one of: {KNOWN}.")
        return maker
    named = kind if kind in _offered() else setting
    found = load_object(named, GROUP, "state store", f"{KNOWN}, a database URL")
    if not callable(found):
        raise ConfigError(f"The state store {setting!r} is {found!r}, which cannot be called.")
    return cast("Maker", found)


def _offered() -> set[str]:
    return {each.name for each in entry_points(group=GROUP)}


def _is_database(setting: str) -> bool:
    """Whether it is a database's URL, and not for a package's store. Raises ConfigError."""
    scheme, separator, _ = setting.partition("://")
    if not separator or scheme in _offered():
        return False
    from sql_transactions.engine import DRIVERS

    if scheme.partition("+")[0] not in DRIVERS:
        raise ConfigError(
            f"The state store {scheme}://… is neither a database ({', '.join(DRIVERS)}) nor an "
            f"entry point of {GROUP} (known: {', '.join(sorted(_offered())) or 'none'})."
        )
    return True


def _sql(_: str, backing: Backing) -> StateStore:
    from iscp_dagster.batches.sql import SqlStates

    if backing.log_url is None:
        raise ConfigError("state_store 'sql' needs the ISCP log's database; set ISCP_LOG_URL.")
    return SqlStates(backing.log_url)


def _keepermap(setting: str, backing: Backing) -> StateStore:
    from iscp_dagster.batches.keepermap import KeeperMapStates

    if backing.endpoint is None:
        raise ConfigError("state_store 'keepermap' needs ClickHouse; set CLICKHOUSE_URL.")
    found = KEEPERMAP.fullmatch(setting)
    place = {name: said for name, said in found.groupdict().items() if said} if found else {}
    return KeeperMapStates(backing.endpoint, **place)


def _memory(_: str, __: Backing) -> StateStore:
    from iscp_dagster.batches.memory import MemoryStates

    return MemoryStates()


BUILT_IN: Mapping[str, tuple[re.Pattern[str], Maker]] = {
    "sql": (re.compile("sql"), _sql),
    "keepermap": (KEEPERMAP, _keepermap),
    "memory": (re.compile("memory"), _memory),
}
"""By the first word of a setting: how it is written, and what makes the store."""
KNOWN = f"{', '.join(BUILT_IN)}, keepermap:/path, keepermap:database/path"
