"""Finds what the modules of a package declare: tables, views, triggers and endpoints."""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from iscp_dagster.clickhouse.types.asked import check_types
from iscp_dagster.model.declared.endpoints import Endpoint
from iscp_dagster.model.declared.tables import SourceTable, spread
from iscp_dagster.model.declared.together.attach import DECLARATIONS, Declared
from iscp_dagster.model.declared.together.clashes import check_declared_once
from iscp_dagster.model.declared.together.sound import Sound, sound
from iscp_dagster.model.errors import ConfigError, IscpError
from iscp_dagster.model.imports import ASSETS, imported, mistake
from iscp_dagster.model.variables import STRICT, is_true

if TYPE_CHECKING:
    from dagster import Definitions

DEFAULT = "assets"
"""The package that declares the location's tables if the environment names none."""
TABLES = "iscp_dagster/tables"
"""The metadata key under which Dagster definitions keep the declarations they were built from."""


def declared(environ: Mapping[str, str]) -> list[SourceTable]:
    """Every table of the location, for the ClickHouse servers that the environment names.

    Those that cannot stand beside the others are left out, see `sound`. Raises ConfigError for a
    module that cannot be imported, naming its file and line, and as `stands` does.
    """
    return stands(declarations(environ), environ).tables


def declared_endpoints(environ: Mapping[str, str]) -> list[Endpoint]:
    """Every endpoint of the location, also those that no trigger names, by name."""
    return stands(declarations(environ), environ).endpoints


def declarations(environ: Mapping[str, str]) -> Declared:
    """What the modules of the location declare, whether or not it can stand together."""
    found = [
        (each, _file_of(module)) for module in modules_of(environ) for each in _declared_in(module)
    ]
    files: dict[int, str] = {}
    for each, file in found:
        files.setdefault(id(each), file)
    return Declared.of((each for each, _ in found), files)


def stands(given: Declared, environ: Mapping[str, str]) -> Sound:
    """What of the declarations stands together at the environment's ClickHouse servers.

    Each sharded index is replaced by one index per shard. Raises ConfigError for a setting that is
    wrong, and with ISCP_STRICT=true for all that would be left out.
    """
    from iscp_dagster.api.environment import databases_of, shards_of

    shards, databases = shards_of(environ), databases_of(environ)

    def check(tables: Sequence[SourceTable]) -> None:
        check_declared_once([spread(table, shards) for table in tables], databases)
        for table in tables:
            for index in table.indexes:
                check_types(table, index)

    found = sound(given, check)
    if found.mistakes and is_true(environ, STRICT):
        raise ConfigError("\n".join(map(str, found.mistakes)))
    spread_out = {key: spread(table, shards) for key, table in found.declared.items()}
    return replace(found, tables=list(spread_out.values()), declared=spread_out)


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


def modules_of(environ: Mapping[str, str]) -> list[ModuleType]:
    """The package that declares the location's tables, and its modules. Raises ConfigError."""
    with _package_of(environ) as package:
        top = imported(package)
        names = sorted(found.name for found in pkgutil.iter_modules(getattr(top, "__path__", ())))
        return [top, *(imported(f"{package}.{name}") for name in names)]


def _declared_in(module: ModuleType) -> list[object]:
    """Also what Dagster definitions there were built from, and those of a `defs` folder."""
    named = [value for value in vars(module).values() if isinstance(value, DECLARATIONS)]
    return [*named, *_built_of(module)]


def _file_of(module: ModuleType) -> str:
    inside = "/__init__" if hasattr(module, "__path__") else ""
    return f"{module.__name__.replace('.', '/')}{inside}.py"


def _built_of(module: ModuleType) -> Iterator[object]:
    for definitions in definitions_in(module):
        held = definitions.metadata.get(TABLES)
        yield from getattr(held, "instance", None) or ()


def definitions_in(module: ModuleType) -> Iterator[Definitions]:
    """The `Definitions` at the module's top, also by `@definitions`. Raises ConfigError."""
    if "dagster" not in sys.modules:
        # Dagster takes a second to import, and a module with definitions has imported it.
        return
    from dagster import Definitions
    from dagster.components.definitions import LazyDefinitions

    for value in list(vars(module).values()):
        lazy = isinstance(value, LazyDefinitions) and not value.has_context_arg
        definitions = _loaded(value, module.__name__) if lazy else value
        if isinstance(definitions, Definitions):
            yield definitions


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
