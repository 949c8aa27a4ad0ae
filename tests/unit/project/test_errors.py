"""The tables of errors: codes are unique, and documented as they are."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib import import_module
from operator import attrgetter
from pkgutil import walk_packages

import iscp_dagster
from iscp_dagster.clickhouse.connect.failures import ROW_CODES, TEMPORARY_CODES
from iscp_dagster.delta.spark_errors import CONDITIONS
from iscp_dagster.model.errors import IscpError
from support.paths import DOCS
from support.project.error_messages import MESSAGES, list_messages

PAGE = DOCS / "errors.md"
NO_JOB_HAS = {"NotPlainError", "EngineError", "DagsterApiError", "OutOfStepError"}
"""Errors that are handled internally, or that commands without a job raise."""


def list_subclasses(root: type[IscpError]) -> Iterator[type[IscpError]]:
    yield root
    for kind in root.__subclasses__():
        yield from list_subclasses(kind)


def list_errors() -> list[type[IscpError]]:
    """Return the errors of the package by their codes."""
    for module in walk_packages(iscp_dagster.__path__, "iscp_dagster."):
        if not module.name.endswith(("__main__", "definitions")):
            import_module(module.name)
    kinds = {kind.__name__: kind for kind in list_subclasses(IscpError) if is_in_package(kind)}
    return sorted(kinds.values(), key=attrgetter("code"))


def is_in_package(kind: type[IscpError]) -> bool:
    return kind.__module__.startswith("iscp_dagster.") and kind.__module__ in sys.modules


def read_table(heading: str) -> list[tuple[str, ...]]:
    table = PAGE.read_text().partition(heading)[2].partition("\n## ")[0]
    lines = [line for line in table.splitlines() if line.startswith("| ")][1:]
    return [tuple(cell.strip(" `") for cell in line.strip("|").split("|")) for line in lines]


def test_every_code_is_of_one_error_and_documented():
    kinds = [kind for kind in list_errors() if kind.__name__ not in NO_JOB_HAS]
    pairs = [(kind.code, kind.__name__) for kind in kinds]
    assert len(dict(pairs)) == len(pairs)
    assert [(int(code), name) for code, name, *_ in read_table("# Errors")] == pairs


def test_a_code_from_ten_thousand_on_waits_for_a_person():
    kinds = [kind for kind in list_errors() if kind.__name__ != "EngineError"]
    pairs = {(kind.code >= 10_000, kind("x").permanent) for kind in kinds}
    assert pairs == {(True, True), (False, False)}


def test_the_codes_of_clickhouse_are_documented():
    assert {
        int(code): name for code, name in read_table("## ClickHouse's codes\n")
    } == TEMPORARY_CODES
    assert {
        int(code): name for code, name in read_table("## ClickHouse's codes of rows")
    } == ROW_CODES
    assert not TEMPORARY_CODES.keys() & ROW_CODES.keys()


def test_the_conditions_of_spark_are_documented():
    conditions = {condition: kind.__name__ for condition, kind in CONDITIONS.items()}
    assert dict(read_table("## Spark's conditions")) == conditions
    assert all(re.fullmatch(r"[A-Z_]+(\.[A-Z_]+)?", condition) for condition in conditions)


def test_the_words_of_each_error_are_those_of_the_golden_table():
    """A new wording is written by `python -m support.project.error_messages`, run in tests/."""
    assert list_messages().splitlines() == MESSAGES.read_text(encoding="utf-8").splitlines()
