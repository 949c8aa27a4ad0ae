"""The tables of errors: codes are unique, and documented as they are."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pkgutil import walk_packages

import iscp_dagster
from iscp_dagster.clickhouse.connect.failures import ROW_CODES, TEMPORARY_CODES
from iscp_dagster.delta.failures import CONDITIONS
from iscp_dagster.model.errors import IscpError
from support.errors import MESSAGES, list_messages
from support.paths import DOCS

PAGE = DOCS / "errors.md"
NO_JOB_HAS = {"NotPlainError", "EngineError", "DagsterApiError", "OutOfStepError"}
"""Errors that are handled internally, or that commands without a job raise."""


def tree(root: type[IscpError]) -> Iterator[type[IscpError]]:
    yield root
    for each in root.__subclasses__():
        yield from tree(each)


def classes() -> list[type[IscpError]]:
    for module in walk_packages(iscp_dagster.__path__, "iscp_dagster."):
        if not module.name.endswith(("__main__", "definitions")):
            import_module(module.name)
    found = {each.__name__: each for each in tree(IscpError) if in_package(each)}
    return sorted(found.values(), key=lambda each: each.code)


def in_package(each: type[IscpError]) -> bool:
    return each.__module__.startswith("iscp_dagster.") and each.__module__ in sys.modules


def rows(heading: str) -> list[tuple[str, ...]]:
    table = PAGE.read_text().partition(heading)[2].partition("\n## ")[0]
    lines = [line for line in table.splitlines() if line.startswith("| ")][1:]
    return [tuple(cell.strip(" `") for cell in line.strip("|").split("|")) for line in lines]


def test_every_code_is_of_one_error_and_documented():
    found = [each for each in classes() if each.__name__ not in NO_JOB_HAS]
    codes = [each.code for each in found]
    assert len(set(codes)) == len(codes)
    documented = [(int(code), name) for code, name, *_ in rows("# Errors")]
    assert documented == [(each.code, each.__name__) for each in found]


def test_a_code_from_ten_thousand_on_waits_for_a_person():
    made = [each for each in classes() if each.__name__ != "EngineError"]
    assert {each("x").permanent for each in made if each.code >= 10_000} == {True}
    assert {each("x").permanent for each in made if each.code < 10_000} == {False}


def test_the_codes_of_clickhouse_are_documented():
    assert {int(code): name for code, name in rows("## ClickHouse's codes\n")} == TEMPORARY_CODES
    assert {int(code): name for code, name in rows("## ClickHouse's codes of rows")} == ROW_CODES
    assert not TEMPORARY_CODES.keys() & ROW_CODES.keys()


def test_the_conditions_of_spark_are_documented():
    held = {condition: kind.__name__ for condition, kind in CONDITIONS.items()}
    assert dict(rows("## Spark's conditions")) == held
    assert all(re.fullmatch(r"[A-Z_]+(\.[A-Z_]+)?", condition) for condition in held)


def test_the_words_of_each_error_are_those_of_the_golden_table():
    """A new wording is written by `python -m support.errors`, run in tests/."""
    assert list_messages().splitlines() == MESSAGES.read_text(encoding="utf-8").splitlines()
