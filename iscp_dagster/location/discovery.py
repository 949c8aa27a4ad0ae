"""Finds the tables that the modules of a package declare."""

from __future__ import annotations

import pkgutil

from iscp_dagster.core.imports import imported
from iscp_dagster.core.tables import SourceTable, spread


def declared_tables(package: str, shards: int = 1) -> list[SourceTable]:
    """Every SourceTable at the top of a module of `package`, by module name, each once.

    A sharded index of it is as many as there are `shards`. Raises ConfigError for a module that
    cannot be imported, naming its file and line.
    """
    names = sorted(found.name for found in pkgutil.iter_modules(imported(package).__path__))
    modules = [imported(f"{package}.{name}") for name in names]
    found = [value for module in modules for value in vars(module).values()]
    tables = [value for value in found if isinstance(value, SourceTable)]
    return [spread(table, shards) for table in {id(table): table for table in tables}.values()]
