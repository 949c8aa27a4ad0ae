"""Finds the tables that the modules of a package declare."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from types import ModuleType

from iscp_dagster.clickhouse.types.asked import check_types
from iscp_dagster.model.errors import ConfigError
from iscp_dagster.model.imports import ASSETS, imported
from iscp_dagster.model.tables import SourceTable, spread


def declared(environ: Mapping[str, str]) -> list[SourceTable]:
    """Every table of the location, for the ClickHouse servers that the environment names."""
    from iscp_dagster.api.environment import shards_of

    return declared_tables(environ.get(ASSETS) or "assets", shards_of(environ))


def declared_tables(package: str, shards: int = 1) -> list[SourceTable]:
    """Every SourceTable at the top of `package` and its modules, by module name, each once.

    A sharded index of it is as many as there are `shards`. Raises ConfigError for a module that
    cannot be imported, naming its file and line, or that asks for types that are none.
    """
    top = imported(package)
    names = sorted(found.name for found in pkgutil.iter_modules(getattr(top, "__path__", ())))
    modules = [top, *(imported(f"{package}.{name}") for name in names)]
    tables = [table for module in modules for table in _tables(module)]
    return [spread(table, shards) for table in {id(table): table for table in tables}.values()]


def _tables(module: ModuleType) -> list[SourceTable]:
    found = [value for value in vars(module).values() if isinstance(value, SourceTable)]
    try:
        for table in found:
            for index in table.indexes:
                check_types(table, index)
    except ConfigError as error:
        raise ConfigError(f"{module.__name__.replace('.', '/')}.py: {error}") from error
    return found
