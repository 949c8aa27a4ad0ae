"""`where:` means the same to ClickHouse and to Python, value by value at the types' edges."""

from __future__ import annotations

import pytest
from wherecases import EDGES, ONLY_CLICKHOUSE

from iscp_dagster.clickhouse.connect.endpoint import Endpoint
from iscp_dagster.clickhouse.types.typetext import parsed
from iscp_dagster.serve.columns import column
from iscp_dagster.serve.comparing import OPERATORS
from iscp_dagster.serve.rows import Limits, rows, select_list
from iscp_dagster.serve.sql import Parameters, condition
from iscp_dagster.serve.where import Not, _truth, parse

LIMITS = Limits()


def conditions(name, literals):
    """Return `where` arguments that ask everything there is to ask a column."""
    for literal in literals:
        yield from ({name: {operator: literal}} for operator in OPERATORS)
    yield from ({name: {operator: None}} for operator in OPERATORS)
    some = [literals[0], literals[-1]]
    for listed in ([], some, [*some, None], [None]):
        yield from ({name: {"_in": listed}}, {name: {"_nin": listed}})
    yield from ({name: {"_is_null": True}}, {name: {"_is_null": False}})
    first, unknown = {name: {"_eq": literals[0]}}, {name: {"_eq": None}}
    yield from ({"_or": [first, unknown]}, {"_and": [first, unknown]}, {"_and": []}, {"_or": []})
    yield {"_not": {"_or": [unknown, {name: {"_lt": literals[-1]}}]}}
    yield {name: {"_gte": literals[0], "_lte": literals[-1]}}


@pytest.mark.parametrize("edge", [*EDGES, *ONLY_CLICKHOUSE], ids=lambda edge: edge.name)
def test_python_finds_what_clickhouse_finds(edge, clickhouse_url):
    asked = column(edge.name, parsed(edge.type))
    made = [f"CAST({value}, {quoted(edge.type)})" for value, _ in edge.values]
    made += ["NULL"] if asked.nullable else []
    table = f"(SELECT arrayJoin(CAST([{', '.join(made)}], {quoted(f'Array({edge.type})')})) AS v)"
    wheres = list(conditions(edge.name, [literal for literal, _ in edge.literals]))
    wheres = [each for where in wheres for each in (where, {"_not": where})]
    parameters = Parameters()
    columns = {edge.name: asked}
    parts = [condition(parse(columns, where), parameters) for where in wheres]
    told = [column(f"c{i}", parsed("Nullable(Int64)")) for i in range(len(parts))]
    query = (
        f"SELECT {select_list([asked])}, {', '.join(parts)} "
        f"FROM (SELECT v AS {edge.name} FROM {table})"
    )
    found = rows(Endpoint.parse(clickhouse_url), query, parameters.values, [asked, *told], LIMITS)
    assert len(found) == len(made)
    for row in found:
        for number, where in enumerate(wheres):
            held = row[f"c{number}"]
            clickhouse = None if held is None else bool(int(held))
            assert _truth(parse(columns, where))(row) is clickhouse, (where, row[edge.name])


def quoted(text):
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def test_not_of_unknown_is_unknown():
    columns = {"a": column("a", parsed("Nullable(Int32)"))}
    said = parse(columns, {"_not": {"a": {"_eq": None}}})
    assert isinstance(said, Not)
    assert _truth(said)({"a": 1}) is None
