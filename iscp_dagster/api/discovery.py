"""Finds what the modules of a package declare: tables, views, triggers and endpoints."""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from iscp_dagster.clickhouse.types.asked import check_types
from iscp_dagster.model.declared.attach import DECLARATIONS, Declared, UnfitError
from iscp_dagster.model.declared.endpoints import Endpoint
from iscp_dagster.model.declared.tables import SourceTable, spread
from iscp_dagster.model.declared.views import View
from iscp_dagster.model.errors import ConfigError, IscpError
from iscp_dagster.model.imports import ASSETS, imported, mistake

if TYPE_CHECKING:
    from dagster import Definitions

DEFAULT = "assets"
"""The package that declares the location's tables if the environment names none."""
TABLES = "iscp_dagster/tables"
"""The metadata key under which Dagster definitions keep the declarations they were built from."""


def declared(environ: Mapping[str, str]) -> list[SourceTable]:
    """Every table of the location, for the ClickHouse servers that the environment names."""
    from iscp_dagster.api.environment import shards_of

    with _package_of(environ) as package:
        return declared_tables(package, shards_of(environ))


def declared_endpoints(environ: Mapping[str, str]) -> list[Endpoint]:
    """Every endpoint of the location, also those that no trigger names, by name."""
    with _package_of(environ) as package:
        modules = found_in(package)
        return Declared.of(each for its in modules.values() for each in its).all_endpoints()


@contextmanager
def _package_of(environ: Mapping[str, str]) -> Iterator[str]:
    """The package that declares the location's tables. Raises ConfigError if there is none."""
    package = environ.get(ASSETS) or DEFAULT
    try:
        yield package
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
        f"There is no module {DEFAULT!r} that declares tables, in the working directory or "
        f"installed; name yours in the variable {ASSETS}."
    )


def declared_tables(package: str, shards: int = 1) -> list[SourceTable]:
    """The tables that `found_in` finds, with the indexes and triggers of the views found there.

    Each sharded index is replaced by one index per shard. Raises ConfigError for a module that
    cannot be imported, naming its file and line; for types that do not exist, and for a view or
    trigger that does not fit the others, naming the file.
    """
    modules = found_in(package)
    given = Declared.of(each for its in modules.values() for each in its)
    try:
        tables = given.attached()
    except UnfitError as error:
        place = _module_of(modules, error.culprit)
        raise (_in_file(place, error) if place else error) from error
    for module, its in modules.items():
        _check_types(module, its, tables)
    return [spread(table, shards) for table in tables]


def found_in(package: str) -> dict[str, list[object]]:
    """By module, what `package` and its modules declare at their top, and in their definitions.

    Includes what Dagster definitions there were built from, also those of a `defs` folder. The same
    declaration may be in several. Raises ConfigError.
    """
    top = imported(package)
    names = sorted(found.name for found in pkgutil.iter_modules(getattr(top, "__path__", ())))
    modules = [top, *(imported(f"{package}.{name}") for name in names)]
    return {module.__name__: _declared_in(module) for module in modules}


def _declared_in(module: ModuleType) -> list[object]:
    named = [value for value in vars(module).values() if isinstance(value, DECLARATIONS)]
    return [*named, *_built_of(module)]


def _check_types(module: str, its: Sequence[object], tables: Sequence[SourceTable]) -> None:
    by_name = {table.name: table for table in tables}
    try:
        for each in its:
            if isinstance(each, SourceTable):
                for index in each.indexes:
                    check_types(each, index)
            elif isinstance(each, View):
                check_types(each.source, by_name[each.source.name].index(each.name))
    except ConfigError as error:
        raise _in_file(module, error) from error


def _module_of(modules: Mapping[str, Sequence[object]], culprit: object) -> str | None:
    """The first module that has the culprit; None for an endpoint that a trigger alone has."""
    held = (name for name, its in modules.items() if any(each is culprit for each in its))
    return next(held, None)


def _in_file(module: str, error: ConfigError) -> ConfigError:
    inside = "/__init__" if hasattr(sys.modules.get(module), "__path__") else ""
    return ConfigError(f"{module.replace('.', '/')}{inside}.py: {error}")


def _built_of(module: ModuleType) -> Iterator[object]:
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
