"""Histories of Delta tables: statements in, and Spark's rows compared with ClickHouse's.

Neither `verify` nor any other code of the package compares them: Spark's rows are read as Arrow,
those of an index's view by clickhouse-connect, and `plainvalues` makes both plain Python.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from clickhouse_connect.driver.client import Client

from iscp_dagster import Mirror, SourceTable
from iscp_dagster.clickhouse.connect.quoting import quote_identifier
from iscp_dagster.model.declared.tables import Index
from iscp_dagster.sync.deployment import Deployment
from iscp_dagster.sync.iteration.outcomes import RowDelivery
from iscp_dagster.upkeep.position import read_positions
from support.lake.delta_tables import FEED, Table
from support.lake.plain_values import as_bytes, plain

NUMBERS = itertools.count()
LOOK = "look"
"""A step: what was committed is synchronized and compared; so it is after the last step too."""
SAMPLES = 3
Step = str | Callable[[Table], object]


@dataclass(frozen=True, kw_only=True)
class History:
    """A table's columns and the steps of its life: `LOOK`, SQL with `{t}`, or functions."""

    name: str
    steps: tuple[Step, ...]
    columns: str = "tenant STRING, id BIGINT, v STRING"
    properties: str = FEED
    by: str | None = "PARTITIONED BY (tenant)"
    indexes: tuple[Index, ...] = (Mirror(),)
    where: str = "true"
    """Which rows are compared by value, where there are very many; all of them are counted."""
    verified: bool = False
    """Whether `verify` must agree too."""
    nulls: bool = True
    """Whether a null array, map or struct comes back as one; else it comes as an empty value."""
    declared: dict[str, Any] = field(default_factory=dict)
    refused: int = 0
    """The code by which what was committed last is refused, for each index."""


def history(name: str, *steps: Step, **options: Any) -> History:
    """A history; options that are not the history's own are the source table's.

    `more` are the columns after the tenant and the id.
    """
    if more := options.pop("more", ""):
        options["columns"] = f"tenant STRING, id BIGINT, {more}"
    own = {each: options.pop(each) for each in [*options] if each in History.__annotations__}
    return History(name=name, steps=steps, declared=options, **own)


def live(history: History, deployment: Deployment, writer: Any) -> None:
    """Run the steps; raise AssertionError where an index differs from what Spark reads."""
    options = {"key": "id", "tenant": "tenant", "indexes": history.indexes} | history.declared
    source = SourceTable(f"nasty{next(NUMBERS)}.rows", **options)
    table = Table(deployment, source, writer=writer)
    properties = f"TBLPROPERTIES ({history.properties})" if history.properties else ""
    by = history.by if source.tenant else ""
    table.sql(f"CREATE TABLE {{t}} ({history.columns}) USING delta {by or ''} {properties}")
    last = () if history.refused else (LOOK,)
    for step in (*history.steps, *last):
        if step == LOOK:
            synchronize(table)
            compare(history, table)
        elif callable(step):
            step(table)
        else:
            table.sql(step)
    if history.refused:
        assert [outcome.code for outcome in table.follow()] == [history.refused]
    if history.verified:
        verdicts = table.verdicts()
        assert all(each.agrees for each in verdicts), verdicts


def synchronize(table: Table) -> None:
    """Follow the table until nothing is due; every job must then be at its last version."""
    failed = [each for each in table.follow() if not isinstance(each, RowDelivery)]
    assert not failed, failed
    late = [each for each in read_positions(table.deployment, table.source) if not each.in_step]
    assert not late, late


def compare(history: History, table: Table) -> None:
    """Compare each index's columns, number of rows and values with the source's."""
    source = table.writer.sql(f"SELECT * FROM delta.`{table.path}` WHERE {history.where}")
    spark = read_spark(source, history)
    count = spark.num_rows
    if history.where != "true":
        count = table.sql("SELECT count(*) FROM {t}")[0][0]
    for index in table.source.indexes:
        view, client = table.view(index), table.deployment.endpoint.get_client()
        kept = {*(index.columns or spark.schema.names), *table.identity}
        columns = [name for name in column_names(client, view) if name in kept]
        assert len(columns) == len(kept), (index.name, columns)
        assert not lost_values(client, view, columns), index.name
        held = table.query(f"SELECT count() FROM {view}")[0][0]
        assert held == count, (index.name, held, count)
        chosen = spark.select(columns)
        clickhouse = read_clickhouse(client, view, chosen.schema, history)
        rows = spark_rows(chosen, history, table.identity)
        compare_rows(index.name, Counter(rows), Counter(clickhouse))


def compare_rows(index: str, spark: Counter[Any], clickhouse: Counter[Any]) -> None:
    """Raise AssertionError with some of the rows that only one of the two has."""
    only = {"Spark": spark - clickhouse, index: clickhouse - spark}
    samples = {name: list(rows.elements())[:SAMPLES] for name, rows in only.items()}
    assert not any(samples.values()), samples


def read_spark(frame: Any, history: History) -> pa.Table:
    """The source's rows; texts as bytes, since they need not be UTF-8, and variants as JSON."""
    for column in frame.schema.fields:
        if column.dataType.typeName() == "variant":
            frame = frame.withColumn(column.name, _to_json(column.name))
    return as_bytes(frame.toArrow())


def _to_json(name: str) -> Any:
    from pyspark.sql import functions

    return functions.to_json(functions.col(name))


def spark_rows(rows: pa.Table, history: History, keys: Collection[str]) -> list[tuple[Any, ...]]:
    """The rows as plain values; a zero in a key has no sign, since it would be the same key."""
    columns = [
        [plain(column.type, value.as_py(), nulls=history.nulls) for value in column]
        for column in rows.columns
    ]
    for name in set(keys).intersection(rows.column_names):
        at = rows.column_names.index(name)
        columns[at] = ["0.0" if value == "-0.0" else value for value in columns[at]]
    return list(zip(*columns, strict=True))


def column_names(client: Client, view: str) -> list[str]:
    """The view's columns, in its order."""
    return [row[0] for row in client.query(f"DESCRIBE TABLE {view}").result_rows]


def lost_values(client: Client, view: str, columns: list[str]) -> list[str]:
    """The columns that the source lost, which a view keeps without values, but that have some."""
    lost = [name for name in column_names(client, view) if name not in columns]
    return [
        name
        for name in lost
        if client.query(f"SELECT count({quote_identifier(name)}) FROM {view}").result_rows[0][0]
    ]


def read_clickhouse(
    client: Client, view: str, schema: pa.Schema, history: History
) -> list[tuple[Any, ...]]:
    """The view's rows as plain values of the source's types."""
    maps = [each.name for each in schema if pa.types.is_map(each.type)]
    # A map's keys may be what Python cannot hash.
    zipped = {
        name: f"arrayZip(mapKeys({quote_identifier(name)}), mapValues({quote_identifier(name)}))"
        for name in maps
    }
    chosen = ", ".join(zipped.get(name, quote_identifier(name)) for name in schema.names)
    found = client.query(
        f"SELECT {chosen} FROM {view} WHERE {history.where}", query_formats={"String": "bytes"}
    )
    return [
        tuple(
            plain(column.type, value, nulls=history.nulls)
            for column, value in zip(schema, row, strict=True)
        )
        for row in found.result_rows
    ]
