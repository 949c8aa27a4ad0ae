"""`where:` means the same to ClickHouse and to Python, value by value at the types' edges."""

import pytest

from iscp_dagster.clickhouse.connect.endpoint import ClickHouseEndpoint
from iscp_dagster.clickhouse.types.type_parser import parse_type
from iscp_dagster.serve.columns import build_column
from iscp_dagster.serve.where import (
    MOST_TERMS,
    BadValueError,
    _compile_expression,
    compile_predicate,
    parse_where,
)
from support.errors import raises_naming
from support.lake.condition_cases import EDGES, ONLY_CLICKHOUSE, clickhouse_says, conditions


@pytest.mark.parametrize("edge", [*EDGES, *ONLY_CLICKHOUSE], ids=lambda edge: edge.name)
def test_python_finds_what_clickhouse_finds(edge, clickhouse_url):
    columns = {edge.name: build_column(edge.name, parse_type(edge.type))}
    python = [_compile_expression(parse_where(columns, where)) for where in conditions(edge)]
    for row, answers in clickhouse_says(ClickHouseEndpoint.parse(clickhouse_url), edge):
        for where, predicate, clickhouse in zip(conditions(edge), python, answers, strict=True):
            assert predicate(row) is clickhouse, (where, row[edge.name])


def test_unknown_selects_no_row_and_neither_does_its_negation():
    columns = {"a": build_column("a", parse_type("Nullable(Int32)"))}
    for where in ({"a": {"_eq": None}}, {"_not": {"a": {"_eq": None}}}):
        assert not compile_predicate(parse_where(columns, where))({"a": 1})


@pytest.mark.parametrize(
    ("where", "values"),
    [
        ({"b": {"_eq": 1}}, ["'b'", "a"]),
        ({"a": {"_like": 1}}, ["_like", 1]),
        ({"a": 1}, ["a: 1", "{_eq: 1}"]),
        ({"a": {"_in": list(range(MOST_TERMS))}}, ["2,000"]),
        ({"_or": [{}] * (MOST_TERMS + 1)}, ["2,000"]),
        ({"_and": [{"_or": []}] * (MOST_TERMS + 1)}, ["2,000"]),
        ({"_and": [{"a": {}}] * (MOST_TERMS + 1)}, ["2,000"]),
        ({"_not": None}, ["None"]),
        ({"bytes": {"_eq": "x"}}, ["bytes", "_eq", "'x'"]),
    ],
)
def test_a_malformed_condition_is_refused(where, values):
    columns = {
        "a": build_column("a", parse_type("Int32")),
        "bytes": build_column("bytes", parse_type("String"), binary=True),
    }
    with raises_naming(BadValueError, *values):
        parse_where(columns, where)
