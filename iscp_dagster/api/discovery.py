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

from iscp_dagster.clickhouse.types.declared_types import check_types
from iscp_dagster.model.declared.endpoints import Endpoint
from iscp_dagster.model.declared.linking.attach import DECLARATIONS, Declarations
from iscp_dagster.model.declared.linking.clashes import check_declared_once
from iscp_dagster.model.declared.linking.sound import ConsistentDeclarations, select_consistent
from iscp_dagster.model.declared.tables import SourceTable, expand_shards
from iscp_dagster.model.errors import ConfigError, IscpError
from iscp_dagster.model.imports import ASSETS, describe_import_error, import_user_module
from iscp_dagster.model.variables import STRICT, is_true

if TYPE_CHECKING:
    from dagster import Definitions

DEFAULT_PACKAGE = "assets"
"""The package that declares the location's tables if the environment names none."""
DECLARATIONS_KEY = "iscp_dagster/tables"
"""The metadata key under which Dagster definitions keep the declarations they were built from."""


def load_tables(environ: Mapping[str, str]) -> list[SourceTable]:
    """Every table of the location, for the ClickHouse servers that the environment names.

    Leaves out tables that contradict others, see `select_consistent`. Raises ConfigError for a
    module that cannot be imported, naming its file and line, and as `resolve_declarations` does.
    """
    return resolve_declarations(load_declarations(environ), environ).tables


def load_endpoints(environ: Mapping[str, str]) -> list[Endpoint]:
    """Every endpoint of the location by name, including those that no trigger uses."""
    return resolve_declarations(load_declarations(environ), environ).endpoints


def load_declarations(environ: Mapping[str, str]) -> Declarations:
    """What the modules of the location declare, whether or not it is consistent."""
    pairs = [
        (declaration, _format_file(module))
        for module in import_modules(environ)
        for declaration in _list_declarations(module)
    ]
    files: dict[int, str] = {}
    for declaration, file in pairs:
        files.setdefault(id(declaration), file)
    return Declarations.of((declaration for declaration, _ in pairs), files)


def resolve_declarations(
    declarations: Declarations, environ: Mapping[str, str]
) -> ConsistentDeclarations:
    """The declarations that are consistent on the environment's ClickHouse servers.

    Each sharded index is replaced by one index per shard. Raises ConfigError for a wrong setting,
    and with ISCP_STRICT=true for all that would be left out.
    """
    from iscp_dagster.api.environment import count_shards, get_databases

    shards, databases = count_shards(environ), get_databases(environ)

    def check(tables: Sequence[SourceTable]) -> None:
        check_declared_once([expand_shards(table, shards) for table in tables], databases)
        for table in tables:
            for index in table.indexes:
                check_types(table, index)

    consistent = select_consistent(declarations, check)
    if consistent.mistakes and is_true(environ, STRICT):
        raise ConfigError("\n".join(map(str, consistent.mistakes)))
    expanded = {key: expand_shards(table, shards) for key, table in consistent.declared.items()}
    return replace(consistent, tables=list(expanded.values()), declared=expanded)


@contextmanager
def _explain_missing_package(environ: Mapping[str, str]) -> Iterator[str]:
    """The package that declares the location's tables. Raises ConfigError if there is none."""
    package = environ.get(ASSETS) or DEFAULT_PACKAGE
    try:
        yield package
    except ConfigError as error:
        if _is_missing(package, error.__cause__):
            raise ConfigError(_describe_missing(environ)) from error
        raise


def describe_place(environ: Mapping[str, str]) -> str:
    """What declares the location's tables, as a message names it."""
    package = environ.get(ASSETS)
    return f"the module {package!r} ({ASSETS})" if package else f"{DEFAULT_PACKAGE}/"


def _is_missing(package: str, error: BaseException | None) -> bool:
    """Whether an import failed because the package, or one that contains it, does not exist."""
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    return missing is not None and f"{package}.".startswith(f"{missing}.")


def _describe_missing(environ: Mapping[str, str]) -> str:
    if package := environ.get(ASSETS):
        return (
            f"{ASSETS} names the module {package!r}, which is neither in the working directory nor "
            "installed; name the module that declares your tables."
        )
    return (
        f"There is no module {DEFAULT_PACKAGE!r} that declares tables, in the working directory or "
        f"installed; name yours in the variable {ASSETS}."
    )


def import_modules(environ: Mapping[str, str]) -> list[ModuleType]:
    """The package that declares the location's tables, and its modules. Raises ConfigError."""
    with _explain_missing_package(environ) as package:
        top = import_user_module(package)
        names = sorted(module.name for module in pkgutil.iter_modules(getattr(top, "__path__", ())))
        return [top, *(import_user_module(f"{package}.{name}") for name in names)]


def _list_declarations(module: ModuleType) -> list[object]:
    """The module's declarations, also those behind its Dagster definitions or `defs` folder."""
    declarations = [value for value in vars(module).values() if isinstance(value, DECLARATIONS)]
    return [*declarations, *_list_definition_sources(module)]


def _format_file(module: ModuleType) -> str:
    suffix = "/__init__" if hasattr(module, "__path__") else ""
    return f"{module.__name__.replace('.', '/')}{suffix}.py"


def _list_definition_sources(module: ModuleType) -> Iterator[object]:
    for definitions in find_definitions(module):
        entry = definitions.metadata.get(DECLARATIONS_KEY)
        yield from getattr(entry, "instance", None) or ()


def find_definitions(module: ModuleType) -> Iterator[Definitions]:
    """The module's top-level `Definitions`, also from `@definitions`. Raises ConfigError."""
    if "dagster" not in sys.modules:
        # Dagster takes a second to import, and a module with definitions has imported it.
        return
    from dagster import Definitions
    from dagster.components.definitions import LazyDefinitions

    for value in list(vars(module).values()):
        lazy = isinstance(value, LazyDefinitions) and not value.has_context_arg
        definitions = _load_definitions(value, module.__name__) if lazy else value
        if isinstance(definitions, Definitions):
            yield definitions


def _load_definitions(lazy: Any, module: str) -> Definitions:
    """Raises ConfigError with only the cause, without Dagster's error tree."""
    try:
        definitions: Definitions = lazy()
    except Exception as error:
        cause: BaseException = error
        while cause.__cause__ is not None and not isinstance(cause, IscpError):
            cause = cause.__cause__
        raise ConfigError(_describe_cause(cause, module)) from error
    return definitions


def _describe_cause(cause: BaseException, module: str) -> str:
    if isinstance(cause, IscpError):
        return str(cause)
    if isinstance(cause, ValidationError):
        messages = [
            f"{'.'.join(map(str, error['loc']))}: {error['msg']}, not {error['input']!r}"
            for error in cause.errors()
        ]
        return f"{'; '.join(messages)}."
    return describe_import_error(cause, module)
