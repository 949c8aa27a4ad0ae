"""`where:` of queries and subscriptions means what Spark's SQL of views means."""

from iscp_dagster.clickhouse.connect.endpoint import ClickHouseEndpoint
from iscp_dagster.serve.comparing import SQL_OPERATORS
from iscp_dagster.spark.session import get_shared_session
from support.lake.condition_cases import EDGES, clickhouse_says, conditions

OURS_ALONE = ({"_in": []}, {"_nin": []})
"""What SQL cannot say."""


def spark_sql(edge, where):
    """Return the condition as a person writes it for a view; None if SQL cannot say it."""
    (name, said), *more = where.items() or [("_and", [])]
    assert not more
    if name == "_not":
        inner = spark_sql(edge, said)
        return inner and f"(NOT {inner})"
    if name in {"_and", "_or"}:
        parts = [spark_sql(edge, each) for each in said]
        word = " AND " if name == "_and" else " OR "
        return f"({word.join(parts)})" if parts and None not in parts else None
    if said in OURS_ALONE:
        return None
    return f"({' AND '.join(compared(edge, *each) for each in said.items())})"


def compared(edge, operator, given):
    if operator == "_is_null":
        return f"v IS {'' if given else 'NOT '}NULL"
    if operator in SQL_OPERATORS:
        return f"v {SQL_OPERATORS[operator]} {literal(edge, given)}"
    listed = ", ".join(literal(edge, each) for each in given)
    return f"v {'IN' if operator == '_in' else 'NOT IN'} ({listed})"


def literal(edge, given):
    if given is None:
        return f"CAST(NULL AS {edge.spark})"
    same = (spark for mine, spark in edge.literals if repr(mine) == repr(given))
    return next(same)


def question(edge):
    """Return a query of each value's place, and what Spark says to the conditions that it knows."""
    known = [sql for where in conditions(edge) if (sql := spark_sql(edge, where))]
    values = ", ".join(f"CAST({spark} AS {edge.spark})" for _, spark in edge.values)
    source = f"SELECT posexplode(array({values}, NULL)) AS (place, v)"
    return f"SELECT '{edge.name}' AS edge, place, array({', '.join(known)}) AS said FROM ({source})"


def test_spark_finds_what_clickhouse_finds(spark_remote, clickhouse_url):
    spark, endpoint = get_shared_session(spark_remote), ClickHouseEndpoint.parse(clickhouse_url)
    rows = spark.sql(" UNION ALL ".join(map(question, EDGES))).collect()
    found = {(row["edge"], row["place"]): row["said"] for row in rows}
    for edge in EDGES:
        asked = conditions(edge)
        known = [number for number, where in enumerate(asked) if spark_sql(edge, where)]
        assert len(known) > len(asked) / 2
        for place, (row, said) in enumerate(clickhouse_says(endpoint, edge)):
            for number, spark_said in zip(known, found[edge.name, place], strict=True):
                assert said[number] is spark_said, (asked[number], row[edge.name])
