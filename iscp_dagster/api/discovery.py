"""Finds the tables that the modules of a package declare."""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from iscp_dagster.clickhouse.types.asked import check_types
from iscp_dagster.model.declared.tables import SourceTable, spread
from iscp_dagster.model.errors import ConfigError, IscpError
from iscp_dagster.model.imports import ASSETS, imported, mistake

if TYPE_CHECKING:
    from dagster import Definitions

DEFAULT = "assets"
"""The package that declares the location's tables if the environment names none."""
TABLES = "iscp_dagster/tables"
"""The metadata key under which Dagster definitions keep the tables they were built from."""


def declared(environ: Mapping[str, str]) -> list[SourceTable]:
    """Every table of the location, for the ClickHouse servers that the environment names."""
    from iscp_dagster.api.environment import shards_of

    package = environ.get(ASSETS) or DEFAULT
    try:
        return declared_tables(package, shards_of(environ))
    except ConfigError as error:
        if _is_missing(package, error.__cause__):
            raise ConfigError(_not_found(environ)) from error
        raise


def place_of(environ: Mapping[str, str]) -> str:
    """What declares the location's tables, as a message names it."""
    package = environ.get(ASSETS)
    return f"the module {package!r} ({ASSETS})" if package else f"{DEFAULT}/"


def _is_missing(package: str, error: BaseException | None) -> bool:
    """Whether an import failed because the package, or one that contains it, does not exist."""
    gone = error.name if isinstance(error, ModuleNotFoundError) else None
    return gone is not None and f"{package}.".startswith(f"{gone}.")


def _not_found(environ: Mapping[str, str]) -> str:
    if package := environ.get(ASSETS):
        return (
            f"{ASSETS} names the module {package!r}, which is neither in the working directory nor "
            "installed; name the module that declares your tables."
        )
    return (
        f"There is no module {DEFAULT!r} that declares tables; name yours in the variable {ASSETS}."
    )


def declared_tables(package: str, shards: int = 1) -> list[SourceTable]:
    """Every SourceTable at the top of `package` and its modules, by module name, each once.

    Includes the tables behind Dagster definitions there, also those of a `defs` folder.
    Each sharded index is replaced by one index per shard. Raises ConfigError for a module that
    cannot be imported, naming its file and line, or that asks for types that do not exist.
    """
    top = imported(package)
    names = sorted(found.name for found in pkgutil.iter_modules(getattr(top, "__path__", ())))
    modules = [top, *(imported(f"{package}.{name}") for name in names)]
    tables = [table for module in modules for table in _tables(module)]
    return [spread(table, shards) for table in {id(table): table for table in tables}.values()]


def _tables(module: ModuleType) -> list[SourceTable]:
    named = [value for value in vars(module).values() if isinstance(value, SourceTable)]
    found = [*named, *_built_of(module)]
    try:
        for table in found:
            for index in table.indexes:
                check_types(table, index)
    except ConfigError as error:
        raise ConfigError(f"{module.__name__.replace('.', '/')}.py: {error}") from error
    return found


def _built_of(module: ModuleType) -> Iterator[SourceTable]:
    if "dagster" not in sys.modules:
        # Dagster takes a second to import, and a module with definitions has imported it.
        return
    from dagster import Definitions
    from dagster.components.definitions import LazyDefinitions

    for value in list(vars(module).values()):
        lazy = isinstance(value, LazyDefinitions) and not value.has_context_arg
        definitions = _loaded(value, module.__name__) if lazy else value
        if isinstance(definitions, Definitions):
            held = definitions.metadata.get(TABLES)
            yield from getattr(held, "instance", None) or ()


def _loaded(lazy: Any, module: str) -> Definitions:
    """Raises ConfigError with the cause alone, without the tree that Dagster draws."""
    try:
        definitions: Definitions = lazy()
    except Exception as error:
        cause: BaseException = error
        while cause.__cause__ is not None and not isinstance(cause, IscpError):
            cause = cause.__cause__
        raise ConfigError(_told(cause, module)) from error
    return definitions


def _told(cause: BaseException, module: str) -> str:
    if isinstance(cause, IscpError):
        return str(cause)
    if isinstance(cause, ValidationError):
        said = [
            f"{'.'.join(map(str, each['loc']))}: {each['msg']}, not {each['input']!r}"
            for each in cause.errors()
        ]
        return f"{'; '.join(said)}."
    return mistake(cause, module)
