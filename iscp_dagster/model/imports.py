"""Objects of the user's by entry point or import path."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any

from iscp_dagster.model.errors import ConfigError
from iscp_dagster.model.mistakes import mistake

ASSETS = "ISCP_ASSETS"
"""Names the package whose modules declare tables, or the one module that does; else `assets`."""


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
    module, colon, attribute = name.partition(":")
    if not (module and colon and attribute):
        known = ", ".join(sorted(offered)) or "none"
        raise ConfigError(
            f"The {what} {name!r} is unknown: it is neither built in nor an entry point of "
            f"{group} (there: {known}) nor an import path such as package.module:Name."
        )
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
