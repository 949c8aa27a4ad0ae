"""`where:` means the same to ClickHouse and to Python, value by value at the types' edges."""

import pytest

from iscp_dagster.clickhouse.connect.endpoint import Endpoint
from iscp_dagster.clickhouse.types.type_parser import parse_type
from iscp_dagster.serve.columns import build_column
from iscp_dagster.serve.where import (
    MOST_TERMS,
    BadValueError,
    _compile_expression,
    compile_predicate,
    parse_where,
)
from support.lake.condition_cases import EDGES, ONLY_CLICKHOUSE, clickhouse_says, conditions


@pytest.mark.parametrize("edge", [*EDGES, *ONLY_CLICKHOUSE], ids=lambda edge: edge.name)
def test_python_finds_what_clickhouse_finds(edge, clickhouse_url):
    columns = {edge.name: build_column(edge.name, parse_type(edge.type))}
    python = [_compile_expression(parse_where(columns, where)) for where in conditions(edge)]
    for row, said in clickhouse_says(Endpoint.parse(clickhouse_url), edge):
        for where, truth, clickhouse in zip(conditions(edge), python, said, strict=True):
            assert truth(row) is clickhouse, (where, row[edge.name])


def test_unknown_selects_no_row_and_its_opposite_none_either():
    columns = {"a": build_column("a", parse_type("Nullable(Int32)"))}
    for where in ({"a": {"_eq": None}}, {"_not": {"a": {"_eq": None}}}):
        assert not compile_predicate(parse_where(columns, where))({"a": 1})


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ({"b": {"_eq": 1}}, "there is no column 'b' to filter by; use a"),
        ({"a": {"_like": 1}}, "_like"),
        ({"a": 1}, "write {_eq: 1}"),
        ({"a": {"_in": list(range(MOST_TERMS))}}, "more than 2,000 comparisons"),
        ({"_or": [{}] * (MOST_TERMS + 1)}, "more than 2,000 comparisons"),
        ({"_and": [{"_or": []}] * (MOST_TERMS + 1)}, "more than 2,000 comparisons"),
        ({"_and": [{"a": {}}] * (MOST_TERMS + 1)}, "more than 2,000 comparisons"),
        ({"_not": None}, "is not a condition"),
        ({"bytes": {"_eq": "x"}}, "_eq: 'x' is not a condition of this column"),
    ],
)
def test_a_condition_that_is_none_is_refused(where, said):
    columns = {
        "a": build_column("a", parse_type("Int32")),
        "bytes": build_column("bytes", parse_type("String"), binary=True),
    }
    with pytest.raises(BadValueError, match=said):
        parse_where(columns, where)
