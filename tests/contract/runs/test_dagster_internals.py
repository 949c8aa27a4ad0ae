"""The private names of Dagster that the package uses, compared with the pinned version's."""

from __future__ import annotations

import inspect
from enum import EnumType
from types import ModuleType

from iscp_dagster.location import internals as of_location
from iscp_dagster.runs import internals as of_runs
from support.paths import GOLDEN, ROOT

MEMBERS = {
    of_runs.LocalComputeLogManager: ["complete_artifact_path", "get_captured_local_path"],
    of_runs.SqliteEventLogStorage: [
        *("_connect", "_event_to_row", "_has_asset_key_col_on_connection", "_initdb"),
        *("_store_asset_event", "_store_asset_event_tags", "conn_string_for_shard", "has_table"),
        *("index_transaction", "run_connection", "store_event_batch"),
    ],
    of_runs.SqliteRunStorage: ["connect", "from_local"],
    of_runs.SqliteScheduleStorage: ["connect", "from_local"],
}
"""The methods that the package overrides or calls."""


def describe(name: str, value: object) -> str:
    """Return the name with its parameters, its members or its value."""
    if isinstance(value, ModuleType):
        return f"{name}: {value.__name__}"
    if isinstance(value, EnumType):
        return f"{name}: {', '.join(value.__members__)}"
    if isinstance(value, type) and issubclass(value, Exception):
        return f"{name}: {', '.join(base.__name__ for base in value.__bases__)}"
    if hasattr(value, "__record_annotations__"):
        # A record of Dagster's gets its signature when it is first made.
        return f"{name}({', '.join(value._fields)})"
    if inspect.isroutine(value) or inspect.isclass(value):
        return f"{name}({', '.join(inspect.signature(value).parameters)})"
    return f"{name} = {str(value)!r}"


def test_the_names_are_what_they_were_when_the_version_was_pinned():
    names = {
        name: value
        for module in (of_location, of_runs)
        for name, value in vars(module).items()
        if not name.startswith("__")
    }
    names |= {
        f"{kind.__name__}.{name}": getattr(kind, name)
        for kind, members in MEMBERS.items()
        for name in members
    }
    lines = [describe(name, value) for name, value in sorted(names.items())]
    assert lines == (GOLDEN / "dagster_internals.txt").read_text(encoding="utf-8").splitlines()


def test_no_other_module_imports_private_names():
    importing = {
        file.relative_to(ROOT).as_posix()
        for file in (ROOT / "iscp_dagster").rglob("*.py")
        if "from dagster._" in file.read_text(encoding="utf-8")
    }
    assert importing == {"iscp_dagster/location/internals.py", "iscp_dagster/runs/internals.py"}
