"""Finds the tables that the modules of a package declare."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from types import ModuleType

from iscp_dagster.core.tables import SourceTable


def declared_tables(package: ModuleType) -> list[SourceTable]:
    """Every SourceTable at the top of a module of `package`, by module name, each once."""
    names = sorted(found.name for found in pkgutil.iter_modules(package.__path__))
    modules = [import_module(f"{package.__name__}.{name}") for name in names]
    found = [value for module in modules for value in vars(module).values()]
    tables = [value for value in found if isinstance(value, SourceTable)]
    return list({id(table): table for table in tables}.values())
