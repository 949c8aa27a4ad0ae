"""What the modules of a source tree import, and what requirements bring."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Collection, Iterable
from functools import cache
from graphlib import TopologicalSorter
from importlib.metadata import packages_distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

# Packages that a dependency always brings, and that modules import by name.
WITH = {
    "clickhouse-connect": {"lz4", "zstandard"},
    "dagster-webserver": {"graphql"},
    "pandas": {"numpy"},
    "pydantic": {"pydantic_core"},
    "pyspark": {"grpc", "py4j"},
    "starlette": {"anyio"},
    # Installed as editable, so that their metadata names no modules.
    "asgi-guards": {"asgi_guards"},
    "chdb-http": {"chdb_http"},
    "durable-invocations": {"durable_invocations"},
    "idempotent-receiver": {"idempotent_receiver"},
    "sql-transactions": {"sql_transactions"},
}


def find_modules(package: Path) -> dict[str, Path]:
    """Return the modules of a package by name."""
    return {_name(path, package.parent): path for path in sorted(package.rglob("*.py"))}


def _name(path: Path, root: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def find_imports(path: Path, modules: Collection[str] = ()) -> set[str]:
    """Return what a file imports, at its top or inside functions; names of `modules` in full."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names = {f"{node.module}.{each.name}" for each in node.names}
            found |= {name if name in modules else node.module for name in names}
    return found


def check_beside(folder: str, arrows: Iterable[tuple[str, str]]) -> None:
    """Raise CycleError if a module or folder reaches itself through another in the same folder."""
    beside = defaultdict(set)
    for module, target in arrows:
        if module.startswith(f"{folder}.") and target.startswith(f"{folder}."):
            names = (name.removeprefix(f"{folder}.") for name in (module, target))
            one, other = (name.split(".")[0] for name in names)
            if one != other:
                beside[one].add(other)
    TopologicalSorter(beside).prepare()


def list_brought(requirements: Iterable[str]) -> set[str]:
    """Return the top-level modules of the requirements."""
    names = {canonicalize_name(Requirement(each).name) for each in requirements}
    return set().union(*(_modules_of()[name] | WITH.get(name, set()) for name in names))


@cache
def _modules_of() -> dict[str, set[str]]:
    found = defaultdict(set)
    for top, distributions in packages_distributions().items():
        for each in distributions:
            found[canonicalize_name(each)].add(top)
    return found
