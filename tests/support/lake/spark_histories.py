"""Histories of Delta tables: statements in, and Spark's rows compared with ClickHouse's.

Neither `verify` nor any other code of the package compares them: Spark's rows are read as Arrow,
those of an index's view by clickhouse-connect, and `plain_values` makes both plain Python.
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from clickhouse_connect.driver.client import Client
from pyarrow import feather

from iscp_dagster import Mirror, SourceTable
from iscp_dagster.clickhouse.connect.quoting import quote_identifier
from iscp_dagster.model.declared.tables import Index
from iscp_dagster.sync.deployment import Deployment
from iscp_dagster.sync.iteration.outcomes import RowDelivery
from iscp_dagster.upkeep.position import read_positions
from support.lake.delta_tables import FEED, Table
from support.lake.golden_histories import WRITE, archive_of, read_archive, write_archive
from support.lake.plain_values import as_bytes, plain

NUMBERS = itertools.count()
LOOK = "look"
"""A step: what was committed is synchronized and compared; so it is after the last step too."""
SAMPLES = 3
OF_SPARK = ("columnMapping", "DeletionVectors", "TypeWidening", "VARIANT", "checkpointPolicy")


@dataclass(frozen=True)
class IndexStep:
    """A step that changes the index, not the Delta table."""

    run: Callable[[Table], object]


Step = str | IndexStep | Callable[[Table], object]


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
    soak: bool = False
    """Whether it is left to soaks, since a shorter history takes the same path."""
    movable: bool = True
    """Whether the table may be kept; else its files name others by absolute paths."""

    @property
    def archive(self) -> Path:
        return archive_of(f"nasty/{self.name}")

    @property
    def is_kept(self) -> bool:
        return self.movable and self.archive.exists()

    @property
    def is_for_spark(self) -> bool:
        """Whether the table has what only Spark itself can read, or compare."""
        return self.verified or any(each in text for each in OF_SPARK for text in self.statements)

    @property
    def statements(self) -> list[str]:
        """What made the table; another text makes another table."""
        created = [self.columns, self.properties, self.by or "", self.where]
        return [*created, *map(_describe, self.steps)]


def history(name: str, *steps: Step, **options: Any) -> History:
    """A history; options that are not the history's own are the source table's.

    `more` are the columns after the tenant and the id.
    """
    if more := options.pop("more", ""):
        options["columns"] = f"tenant STRING, id BIGINT, {more}"
    own = {each: options.pop(each) for each in [*options] if each in History.__annotations__}
    return History(name=name, steps=steps, declared=options, **own)


def live_through(history: History, deployment: Deployment, writer: Any) -> None:
    """Run the steps; raise AssertionError where an index differs from what Spark reads."""
    table = Table(deployment, declare(history), writer=writer)
    for step in write_steps(history, table):
        rows, count = read_spark(history, table)
        stop_at(step, history, table, rows, count)
    finish(history, table)


def record(history: History, deployment: Deployment, writer: Any, folder: Path) -> None:
    """Run the steps without an index; keep the table and Spark's rows at each stop."""
    table = Table(deployment, declare(history), writer=writer)
    counts = []
    for number, _ in enumerate(write_steps(history, table)):
        rows, count = read_spark(history, table)
        stop = folder / str(number)
        checksums = shutil.ignore_patterns(".*.crc")
        shutil.copytree(table.path, stop / "table", copy_function=_link, ignore=checksums)
        feather.write_feather(rows, stop / "rows.arrow", compression="uncompressed")
        counts.append(count)
    write_archive(history.archive, folder, statements=history.statements, counts=counts)


def write_steps(history: History, table: Table) -> Iterator[Step]:
    """Make the table; yield each step where its writer stops."""
    properties = f"TBLPROPERTIES ({history.properties})" if history.properties else ""
    by = history.by if table.source.tenant else ""
    table.sql(f"CREATE TABLE {{t}} ({history.columns}) USING delta {by or ''} {properties}")
    for step in list_steps(history):
        if is_stop(step):
            yield step
        elif callable(step):
            step(table)
        else:
            table.sql(step)


def replay(history: History, deployment: Deployment, folder: Path) -> None:
    """Put the kept tables in place one after the other; compare with what Spark read of them."""
    content = read_archive(history.archive, folder)
    kept, made = content["statements"], history.statements
    if kept != made:
        pytest.fail(f"{history.archive} has {kept}, not {made}; {WRITE}=1 -m soak")
    table = Table(deployment, declare(history))
    stops = [step for step in list_steps(history) if is_stop(step)]
    for number, (step, count) in enumerate(zip(stops, content["counts"], strict=True)):
        kept = folder / str(number)
        shutil.rmtree(table.path, ignore_errors=True)
        shutil.copytree(kept / "table", table.path, copy_function=_link)
        stop_at(step, history, table, feather.read_table(kept / "rows.arrow"), count)
    finish(history, table)


def declare(history: History) -> SourceTable:
    options = {"key": "id", "tenant": "tenant", "indexes": history.indexes} | history.declared
    return SourceTable(f"nasty{next(NUMBERS)}.rows", **options)


def list_steps(history: History) -> list[Step]:
    """The steps, and a stop after the last of them: what was committed is read there."""
    last = IndexStep(lambda _: None) if history.refused else LOOK
    return [*history.steps, last]


def is_stop(step: Step) -> bool:
    return step == LOOK or isinstance(step, IndexStep)


def stop_at(step: Step, history: History, table: Table, rows: pa.Table, count: int) -> None:
    if isinstance(step, IndexStep):
        step.run(table)
    else:
        synchronize(table)
        compare(history, table, rows, count)


def finish(history: History, table: Table) -> None:
    if history.refused:
        assert [outcome.code for outcome in table.follow()] == [history.refused]
    if history.verified:
        verdicts = table.verdicts()
        assert all(each.agrees for each in verdicts), verdicts


def _link(source: str, target: str) -> None:
    """Link a file that never changes, which the archive then has once; copy any other."""
    if Path(source).name == "_last_checkpoint":
        shutil.copy2(source, target)
    else:
        os.link(source, target)


def _describe(step: Step) -> str:
    """A text that differs for different steps."""
    if isinstance(step, str):
        return step
    function = step.run if isinstance(step, IndexStep) else step
    values = [cell.cell_contents for cell in function.__closure__ or ()]
    return f"{function.__qualname__} {values}"


def synchronize(table: Table) -> None:
    """Follow the table until nothing is due; every job must then be at its last version."""
    failed = [each for each in table.follow() if not isinstance(each, RowDelivery)]
    assert not failed, failed
    late = [each for each in read_positions(table.deployment, table.source) if not each.in_step]
    assert not late, late


def compare(history: History, table: Table, spark: pa.Table, count: int) -> None:
    """Compare each index's columns, number of rows and values with what Spark read."""
    for index in table.source.indexes:
        view, client = table.view(index), table.deployment.endpoint.get_client()
        kept = {*(index.columns or spark.schema.names), *table.identity}
        columns = [name for name in list_columns(client, view) if name in kept]
        assert len(columns) == len(kept), (index.name, columns)
        assert not find_lost_values(client, view, columns), index.name
        number = table.query(f"SELECT count() FROM {view}")[0][0]
        assert number == count, (index.name, number, count)
        chosen = spark.select(columns)
        clickhouse = Counter(read_clickhouse(client, view, chosen.schema, history))
        rows = Counter(make_plain_rows(chosen, history, table.identity))
        only = {"Spark": rows - clickhouse, index.name: clickhouse - rows}
        samples = {name: list(some.elements())[:SAMPLES] for name, some in only.items()}
        assert not any(samples.values()), samples


def read_spark(history: History, table: Table) -> tuple[pa.Table, int]:
    """The source's rows to be compared, and the number of all.

    Texts are bytes, since they need not be UTF-8, and variants JSON.
    """
    frame = table.writer.sql(f"SELECT * FROM delta.`{table.path}` WHERE {history.where}")
    for column in frame.schema.fields:
        if column.dataType.typeName() == "variant":
            frame = frame.withColumn(column.name, _to_json(column.name))
    rows = as_bytes(frame.toArrow())
    if history.where == "true":
        return rows, rows.num_rows
    return rows, table.sql("SELECT count(*) FROM {t}")[0][0]


def _to_json(name: str) -> Any:
    from pyspark.sql import functions

    return functions.to_json(functions.col(name))


def make_plain_rows(
    rows: pa.Table, history: History, keys: Collection[str]
) -> list[tuple[Any, ...]]:
    """The rows as plain values; a zero in a key has no sign, since it would be the same key."""
    columns = [
        [plain(column.type, value.as_py(), nulls=history.nulls) for value in column]
        for column in rows.columns
    ]
    for name in set(keys).intersection(rows.column_names):
        at = rows.column_names.index(name)
        columns[at] = ["0.0" if value == "-0.0" else value for value in columns[at]]
    return list(zip(*columns, strict=True))


def list_columns(client: Client, view: str) -> list[str]:
    """The view's columns, in its order."""
    return [row[0] for row in client.query(f"DESCRIBE TABLE {view}").result_rows]


def find_lost_values(client: Client, view: str, columns: list[str]) -> list[str]:
    """The columns that the source lost, which a view keeps without values, but that have some."""
    lost = [name for name in list_columns(client, view) if name not in columns]
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
    sql = f"SELECT {chosen} FROM {view} WHERE {history.where}"
    found = client.query(sql, query_formats={"String": "bytes"})
    rows = (zip(schema.types, row, strict=True) for row in found.result_rows)
    return [tuple(plain(*each, nulls=history.nulls) for each in row) for row in rows]
