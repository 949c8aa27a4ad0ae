"""A stand-in for Spark: does in this process what an iteration and a comparison ask of it.

It is for tests of the code around Spark: claims, tokens, staging, fences, shards. delta-rs writes
and reads the Delta tables, frames are Arrow's, and a partition's function is pickled and run here.
`acceptance/spark/test_near_spark.py` compares it with Spark. It refuses calls that it does not
know. Tests of Spark itself, or of its sessions and workers, do not use it.
"""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote
from zlib import crc32

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder, Schema, write_deltalake

from iscp_dagster.delta.arrow import to_arrow_type
from iscp_dagster.delta.checks import CHANGE_TYPE, FRESH, REPEATS
from iscp_dagster.delta.log.deltalog import DeltaLog
from iscp_dagster.delta.reader import UPSERTS, TableSelection
from iscp_dagster.model.declared.schema import DELETED, TIMESTAMP, VERSION, DeltaType, Map
from iscp_dagster.model.declared.tables import DEFAULT_TENANT, SourceTable
from iscp_dagster.model.moment import Moment
from iscp_dagster.spark.session import CORES
from iscp_dagster.sync.deployment import Deployment
from iscp_dagster.upkeep.verify_indexes import SAMPLES

ROWS_PER_BATCH = 20_000
_KINDS = {"add": "insert", "remove": "delete"}
Table = list[dict[str, Any]]


@dataclass(eq=False)
class NearSpark:
    """A session; each has its own settings."""

    settings: dict[str, str] = field(default_factory=dict)
    cores: int = 2

    @property
    def conf(self) -> Any:
        return SimpleNamespace(get=self.settings.get, set=self.settings.__setitem__)

    def addTag(self, _tag: str) -> None:  # noqa: N802 - Spark's name
        """Do nothing: no work runs elsewhere that could be interrupted."""

    removeTag = interruptTag = addTag  # noqa: N815 - Spark's names

    def stop(self) -> None:
        """Do nothing: there is nothing to end."""

    def range(self, start: int, end: int, step: int, partitions: int) -> Frame:
        numbers = range(start, end, step)
        tables = [pa.table({"id": pa.array(numbers[n::partitions])}) for n in range(partitions)]
        return Frame([each.to_batches() for each in tables], tables[0].schema)

    def sql(self, statement: str) -> Any:
        if statement == CORES:
            return SimpleNamespace(collect=lambda: [(self.cores,)])
        rows = [tuple(row.values()) for row in run_sql(statement)]
        return SimpleNamespace(collect=lambda: rows)


@dataclass(frozen=True)
class Frame:
    """Partitions of batches, read when the frame is collected."""

    partitions: Sequence[Iterable[pa.RecordBatch]]
    arrow: pa.Schema | None

    @property
    def columns(self) -> list[str]:
        return list(self.arrow.names)

    @property
    def schema(self) -> Any:
        from pyspark.sql.pandas.types import from_arrow_schema

        return from_arrow_schema(self.arrow, prefer_timestamp_ntz=True)

    def drop(self, *names: str) -> Frame:
        kept = [name for name in self.columns if name not in names]
        schema = pa.schema([self.arrow.field(name) for name in kept])
        return Frame([[b.select(kept) for b in each] for each in self.partitions], schema)

    def coalesce(self, number: int) -> Frame:
        assert number == 1
        return Frame([[b for each in self.partitions for b in each]], self.arrow)

    def toDF(self, *names: str) -> Frame:  # noqa: N802 - Spark's name
        renamed = [[b.rename_columns(list(names)) for b in each] for each in self.partitions]
        fields = [each.with_name(name) for each, name in zip(self.arrow, names, strict=True)]
        return Frame(renamed, pa.schema(fields))

    def to(self, schema: Any) -> Frame:
        arrow = _arrow(schema)
        assert arrow is not None
        return Frame([[b.cast(arrow) for b in each] for each in self.partitions], arrow)

    def mapInArrow(self, function: Any, schema: Any) -> Frame:  # noqa: N802 - Spark's name
        from pyspark import cloudpickle

        pickled = cloudpickle.dumps(function)
        tasks = [
            _Task(number, cloudpickle.loads(pickled), batches)
            for number, batches in enumerate(self.partitions)
        ]
        return Frame(tasks, _arrow(schema))

    def collect(self) -> list[Any]:
        return list(self.toLocalIterator())

    def toLocalIterator(self) -> Iterator[Any]:  # noqa: N802 - Spark's name
        from pyspark.sql import Row

        for each in self.partitions:
            for batch in each:
                yield from (Row(**row) for row in batch.to_pylist())

    def toArrow(self) -> pa.Table:  # noqa: N802 - Spark's name
        batches = [batch.cast(self.arrow) for each in self.partitions for batch in each]
        return pa.Table.from_batches(batches, self.arrow)


@dataclass(frozen=True)
class _Task:
    """A partition whose function will run as the task of that number."""

    number: int
    function: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
    batches: Iterable[pa.RecordBatch]

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        outer = TaskContext._taskContext
        own = SimpleNamespace(partitionId=lambda: self.number, attemptNumber=lambda: 0)
        results = self.function(iter(self.batches))
        while True:
            TaskContext._taskContext = own
            try:
                batch = next(results, None)
            finally:
                TaskContext._taskContext = outer
            if batch is None:
                return
            yield batch


def _arrow(schema: Any) -> pa.Schema | None:
    """Return the Arrow schema; None for receipts, whose schema is SQL text that nobody reads."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return None if isinstance(schema, str) else to_arrow_schema(schema, timezone="UTC")


def snapshot(_spark: NearSpark, selection: TableSelection, at: Moment) -> Frame:
    """Do what `reader.read_snapshot` does."""
    table = DeltaTable(selection.path, version=at.version).to_pyarrow_table()
    rows = _of_tenants(pa.table(table).to_pylist(), selection)
    stamps = {VERSION: at.version, TIMESTAMP: at.micros, DELETED: False}
    return _frame([[row | stamps for row in rows]], selection)


def changes(
    _spark: NearSpark,
    selection: TableSelection,
    after: Moment,
    upto: Moment,
    *,
    partitions: int = 1,
) -> Frame:
    """Do what `reader.read_changes` does."""
    if selection.folded:
        pytest.fail("Keys whose case makes no difference are for Spark itself.")
    log = DeltaLog(selection.path, selection.tenant_column)
    rows: Table = []
    for version in range(after.version + 1, upto.version + 1):
        stamps = {VERSION: version, TIMESTAMP: log.get_moment(version).micros}
        rows += [row | stamps for row in _read_feed(selection, version)]
    identity = selection.identity if selection.keys else selection.output
    spread: list[Table] = [[] for _ in range(partitions)]
    for row in keep_latest(rows, identity) if selection.keys else _list_additions(rows, selection):
        key = repr([row[name] for name in identity]).encode()
        spread[crc32(key) % partitions].append(row)
    extra = [REPEATS, FRESH] if selection.keys else [REPEATS]
    return _frame(spread, selection, extra)


def _read_feed(selection: TableSelection, version: int) -> Iterator[dict[str, Any]]:
    """Yield a version's feed, from its files of changes or those it adds and removes.

    Like Spark it opens no file of other tenants. It reads the files here, since `load_cdf` finds
    none in a folder with a blank in its name.
    """
    path = selection.path
    commit = Path(path, "_delta_log", f"{version:020}.json").read_text(encoding="utf-8")
    actions = [json.loads(line) for line in commit.splitlines()]
    kinds = {"cdc": None} if any("cdc" in each for each in actions) else _KINDS
    schema = pa.schema(DeltaTable(path).schema().to_arrow())
    absent = dict.fromkeys(schema.names)
    for kind, action in ((k, each[k]) for each in actions for k in each if k in kinds):
        if kind != "cdc" and not action["dataChange"]:
            continue
        assert not action.get("deletionVector"), "Deletion vectors are for Spark itself."
        beside = {
            name: None if value is None else pa.scalar(value).cast(schema.field(name).type).as_py()
            for name, value in action["partitionValues"].items()
        }
        if not _of_tenants([beside], selection):
            continue
        with pq.ParquetFile(Path(path, unquote(action["path"]))) as file:
            for row in file.read().to_pylist():
                yield absent | {CHANGE_TYPE: kinds[kind]} | row | beside


def make_sort_key(row: Mapping[str, Any], names: Iterable[str]) -> list[tuple[bool, Any]]:
    """Return a key that sorts as Spark does: nulls first."""
    values = (row[name] for name in names)
    return [(value is not None, 0 if value is None else value) for value in values]


def keep_latest(
    rows: Iterable[dict[str, Any]], identity: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """Yield the last change of each key, sorted by key and marked as `reader.read_changes` does."""

    def make_key(row: dict[str, Any]) -> Any:
        return make_sort_key(row, identity)

    def is_upsert(row: dict[str, Any]) -> bool:
        return row[CHANGE_TYPE] in UPSERTS

    for _, changes_of_key in groupby(sorted(rows, key=make_key), key=make_key):
        newest_first = sorted(changes_of_key, key=lambda row: (-row[VERSION], not is_upsert(row)))
        latest, oldest = newest_first[0], newest_first[-1]
        repeats = any(
            is_upsert(newer)
            and is_upsert(older)
            and (newer[VERSION] == older[VERSION] or newer[CHANGE_TYPE] == "insert")
            for newer, older in pairwise(newest_first)
        )
        yield latest | {DELETED: not is_upsert(latest), REPEATS: repeats, FRESH: is_upsert(oldest)}


def _list_additions(rows: Table, selection: TableSelection) -> Iterator[dict[str, Any]]:
    ordering = list(selection.order) or selection.output

    def place(row: dict[str, Any]) -> Any:
        tenant = str(row[selection.tenant_column]) if selection.tenant_column else ""
        return tenant, row[VERSION], [repr(row[name]) for name in ordering]

    for row in sorted(rows, key=place):
        yield row | {DELETED: False, REPEATS: row[CHANGE_TYPE] != "insert"}


def _of_tenants(rows: Table, selection: TableSelection) -> Table:
    if selection.tenant_column is None:
        wanted = selection.tenants is None or DEFAULT_TENANT in selection.tenants
        return rows if wanted else []
    column, tenants = selection.tenant_column, selection.tenants
    owned = [row for row in rows if row[column] is not None]
    return owned if tenants is None else [row for row in owned if str(row[column]) in tenants]


def _frame(
    partitions: Sequence[Table], selection: TableSelection, extra: Sequence[str] = ()
) -> Frame:
    types = {f.name: f.type for f in DeltaLog(selection.path, None).get_facts().fields}
    types |= selection.types
    schema = pa.schema(
        [
            *((name, _arrow_of(types[name])) for name in selection.output),
            (VERSION, pa.int64()),
            (TIMESTAMP, pa.int64()),
            (DELETED, pa.bool_()),
            *((name, pa.bool_()) for name in extra),
        ]
    )

    def make_batches(rows: Table) -> list[pa.RecordBatch]:
        columns = [{name: row[name] for name in schema.names} for row in rows]
        return pa.Table.from_pylist(columns, schema).to_batches(max_chunksize=ROWS_PER_BATCH)

    return Frame([make_batches(rows) for rows in partitions], schema)


def _arrow_of(type_: DeltaType) -> pa.DataType:
    """Return the Arrow type in which Spark passes a column."""
    if isinstance(type_, Map):
        return pa.map_(_arrow_of(type_.key), _arrow_of(type_.value))
    return to_arrow_type(type_)


def compare_by_key(
    source_rows: Frame, index_rows: Frame, source: SourceTable, selection: TableSelection
) -> Any:
    """Compare rows by key, as verify does."""
    from pyspark.sql import Row

    def by_key(frame: Frame) -> dict[tuple[str, ...], dict[str, Any]]:
        rows = frame.toArrow().to_pylist()
        return {tuple(str(row[name]) for name in selection.identity): row for row in rows}

    in_source, in_index = by_key(source_rows), by_key(index_rows)
    counts: dict[str, dict[str, Any]] = defaultdict(_make_counts)
    for key in sorted({*in_source, *in_index}):
        row, other = in_source.get(key), in_index.get(key)
        totals = counts[key[0] if source.tenant else DEFAULT_TENANT]
        totals["rows"] += row is not None
        totals["missing"] += other is None
        totals["extra"] += row is None
        if repr(row) == repr(other):
            continue
        names = None
        if row is not None and other is not None:
            names = [name for name in row if repr(row[name]) != repr(other.get(name))]
            totals["different"] += 1
        sides = {"in_source": row is not None, "in_index": other is not None}
        totals["samples"].append(Row(identity=list(key), **sides, different=names))
    return _collect(counts)


def compare_by_count(
    source_rows: Frame, index_rows: Frame, source: SourceTable, _selection: TableSelection
) -> Any:
    """Compare rows without a key, as verify does."""
    from pyspark.sql import Row

    def count(frame: Frame) -> Counter[tuple[str, str]]:
        rows, by = frame.toArrow().to_pylist(), source.tenant
        return Counter((str(row[by]) if by else DEFAULT_TENANT, repr(row)) for row in rows)

    in_source, in_index = count(source_rows), count(index_rows)
    counts: dict[str, dict[str, Any]] = defaultdict(_make_counts)
    for tenant, row in sorted({*in_source, *in_index}):
        times, other_times = in_source[tenant, row], in_index[tenant, row]
        totals = counts[tenant]
        totals["rows"] += times
        totals["missing"] += max(times - other_times, 0)
        totals["extra"] += max(other_times - times, 0)
        if times != other_times:
            totals["samples"].append(Row(row=row, in_source=times, in_index=other_times))
    return _collect(counts)


def _make_counts() -> dict[str, Any]:
    return {"rows": 0, "missing": 0, "extra": 0, "different": 0, "samples": []}


def _collect(counts: dict[str, dict[str, Any]]) -> Any:
    from pyspark.sql import Row

    rows = [
        Row(tenant=tenant, **totals | {"samples": totals["samples"][:SAMPLES]})
        for tenant, totals in counts.items()
    ]
    return SimpleNamespace(collect=lambda: rows)


_NAMED = r"delta\.`(?P<path>[^`]+)`"
_STATEMENTS: dict[str, Callable[..., None]] = {}


def _statement(pattern: str) -> Any:
    def register(function: Callable[..., None]) -> Callable[..., None]:
        _STATEMENTS[pattern.replace("{t}", _NAMED)] = function
        return function

    return register


def run_sql(statement: str) -> Table:
    """Run a statement that tests send to Spark and return its rows; any other fails the test."""
    for pattern, function in _STATEMENTS.items():
        if (match := re.fullmatch(pattern, statement.strip(), re.DOTALL)) is not None:
            function(**match.groupdict())
            return []
    if not statement.startswith("SELECT"):
        pytest.fail(f"Only Spark itself runs {statement!r}.")
    (path,) = set(re.findall(_NAMED, statement))
    return _select(re.sub(_NAMED, "source", statement), path)


def _select(query: str, path: str | None = None) -> Table:
    builder = QueryBuilder()
    if path is not None:
        builder = builder.register("source", DeltaTable(path))
    return pa.table(builder.execute(_to_datafusion(query)).read_all()).to_pylist()


def _to_datafusion(expression: str) -> str:
    """Translate Spark's SQL into DataFusion's."""
    expression = re.sub(r"'((?:[^'\\]|\\.)*)'", _literal, expression)
    expression = re.sub(r"\barray\(", "make_array(", expression)
    expression = re.sub(r"\bmap\(([^(),]+), ([^(),]+)\)", r"MAP {\1: \2}", expression)
    return re.sub(r"\bfloat\(([^()]*)\)", r"CAST(\1 AS FLOAT)", expression)


def _literal(match: re.Match[str]) -> str:
    return "'" + re.sub(r"\\(.)", r"\1", match[1]).replace("'", "''") + "'"


@_statement(
    r"CREATE TABLE (?P<lenient>IF NOT EXISTS )?{t} \((?P<columns>.+?)\) USING delta "
    r"(?:PARTITIONED BY \((?P<by>.+?)\))? ?"
    r"TBLPROPERTIES \((?P<properties>.*)\)"
)
def _create(path: str, columns: str, by: str | None, properties: str, lenient: str | None) -> None:
    if lenient and DeltaTable.is_deltatable(path):
        return
    configuration = _parse_properties(properties)
    # Only Spark writes in-commit timestamps; delta-rs does not.
    configuration.pop("delta.enableInCommitTimestamps", None)
    Path(path).mkdir(parents=True)
    options = {"partition_by": [by.strip("`")] if by else None, "configuration": configuration}
    DeltaTable.create(path, schema=_parse_columns(columns), **options)


def _parse_properties(text: str) -> dict[str, str]:
    return dict(re.findall(r"'?([\w.]+)'? = '?([\w.]+)'?", text))


_TYPES = {
    "STRING": pa.string(),
    "TINYINT": pa.int8(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "DATE": pa.date32(),
}


def _parse_columns(text: str) -> pa.Schema:
    """Parse SQL column definitions."""
    columns = (re.fullmatch(r"`?(\w+)`? (.+?)( NOT NULL)?", part) for part in _split(text))
    return pa.schema([pa.field(c[1], _parse_type(c[2]), nullable=not c[3]) for c in columns if c])


def _parse_type(text: str) -> pa.DataType:
    if text.startswith("ARRAY<"):
        return pa.list_(_parse_type(text[6:-1]))
    if text.startswith("MAP<"):
        return pa.map_(*map(_parse_type, _split(text[4:-1])))
    return _TYPES[text]


def _split(text: str) -> list[str]:
    """Split at commas outside angle brackets."""
    return [part.strip() for part in re.split(r",(?![^<]*>)", text)]


@_statement(r"INSERT INTO {t} (?P<rows>VALUES .+)")
def _insert(path: str, rows: str) -> None:
    table = DeltaTable(path)
    schema = pa.schema(table.schema().to_arrow())
    values = _select(f"SELECT * FROM ({rows})")
    columns = [dict(zip(schema.names, row.values(), strict=True)) for row in values]
    write_deltalake(path, pa.Table.from_pylist(columns, schema), mode="append")


@_statement(r"UPDATE {t} SET (?P<values>.+?)(?: WHERE (?P<where>.+))?")
def _update(path: str, values: str, where: str | None) -> None:
    pairs = (each.split(" = ", 1) for each in re.split(r", (?=\w+ = )", values))
    DeltaTable(path).update(
        updates={column: _to_datafusion(value) for column, value in pairs},
        predicate=where and _to_datafusion(where),
    )


@_statement(r"DELETE FROM {t}(?: WHERE (?P<where>.+))?")
def _delete(path: str, where: str | None) -> None:
    DeltaTable(path).delete(where and _to_datafusion(where))


@_statement(r"OPTIMIZE {t}(?: ZORDER BY \((?P<column>\w+)\))?")
def _optimize(path: str, column: str | None) -> None:
    optimizer = DeltaTable(path).optimize
    if column:
        optimizer.z_order([column])
    else:
        optimizer.compact()


@_statement(r"VACUUM {t} RETAIN 0 HOURS")
def _vacuum(path: str) -> None:
    """Remove files as Spark does: unlike delta-rs also those of changes."""
    DeltaTable(path).vacuum(0, enforce_retention_duration=False, dry_run=False)
    shutil.rmtree(Path(path, "_change_data"), ignore_errors=True)


@_statement(r"ALTER TABLE {t} ADD COLUMNS? \(?(?P<columns>.+?)\)?")
def _add_columns(path: str, columns: str) -> None:
    DeltaTable(path).alter.add_columns(Schema.from_arrow(_parse_columns(columns)).fields)


@_statement(r"ALTER TABLE {t} DROP COLUMN (?P<column>\w+)")
def _drop_column(path: str, column: str) -> None:
    """Commit the columns that are left, as Spark does where columns are mapped."""
    logs = sorted(Path(path, "_delta_log").glob("*.json"))
    actions = (json.loads(line) for log in logs for line in log.read_text("utf-8").splitlines())
    *_, metadata = (each["metaData"] for each in actions if "metaData" in each)
    schema = json.loads(metadata["schemaString"])
    schema["fields"] = [each for each in schema["fields"] if each["name"] != column]
    changed = {"metaData": metadata | {"schemaString": json.dumps(schema)}}
    logs[-1].with_name(f"{len(logs):020}.json").write_text(json.dumps(changed), encoding="utf-8")


@_statement(r"ALTER TABLE {t} SET TBLPROPERTIES \((?P<properties>.+)\)")
def _set_properties(path: str, properties: str) -> None:
    DeltaTable(path).alter.set_table_properties(_parse_properties(properties))


@_statement(r"RESTORE TABLE {t} TO VERSION AS OF (?P<version>\d+)")
def _restore(path: str, version: str) -> None:
    DeltaTable(path).restore(int(version))


@_statement(
    r"CREATE OR REPLACE TABLE {t} USING delta PARTITIONED BY \(`(?P<by>\w+)`\) "
    r"TBLPROPERTIES \((?P<name>[\w.]+) = (?P<value>\w+)\) AS SELECT \* FROM delta.`.+`"
)
def _replace(path: str, by: str, name: str, value: str) -> None:
    """Write the rows to a new table, which here has a log of its own too."""
    rows = DeltaTable(path).to_pyarrow_table()
    shutil.rmtree(path)
    write_deltalake(path, rows, partition_by=[by], configuration={name: value})


@contextmanager
def near() -> Iterator[NearSpark]:
    """Give a session; until it ends, the product reads and compares through it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("iscp_dagster.delta.reader.read_changes", changes)
        patch.setattr("iscp_dagster.delta.reader.read_snapshot", snapshot)
        patch.setattr("iscp_dagster.upkeep.verify_indexes.read_snapshot", snapshot)
        patch.setattr("iscp_dagster.upkeep.verify_indexes._compare_by_key", compare_by_key)
        patch.setattr("iscp_dagster.upkeep.verify_indexes._compare_by_count", compare_by_count)
        session = NearSpark()
        for name in ("get_shared_session", "create_private_session"):
            patch.setattr(f"iscp_dagster.location.resources.spark.{name}", lambda *_: session)
        yield session


def served(deployment: Deployment, session: NearSpark) -> Deployment:
    """Return the deployment with this session as its Spark."""
    return replace(deployment, spark=lambda: session, private_spark=lambda: session)
