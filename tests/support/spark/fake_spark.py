"""A stand-in for Spark: does in this process what an iteration and a comparison ask of it.

It is for tests of what surrounds Spark: claims, tokens, staging, fences, shards. delta-rs writes
and reads the Delta tables, frames are Arrow's, and a partition's function is pickled and run here.
`acceptance/spark/test_near_spark.py` compares it with Spark. It refuses calls that it does not
know. Tests of what Spark itself does, or of its sessions and workers, do not use it.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import groupby
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
from iscp_dagster.upkeep.verify import SAMPLES

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
        found = [tuple(row.values()) for row in run_sql(statement)]
        return SimpleNamespace(collect=lambda: found)


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

        shipped = cloudpickle.dumps(function)
        found = [
            _Task(number, cloudpickle.loads(shipped), each)
            for number, each in enumerate(self.partitions)
        ]
        return Frame(found, _arrow(schema))

    def collect(self) -> list[Any]:
        return list(self.toLocalIterator())

    def toLocalIterator(self) -> Iterator[Any]:  # noqa: N802 - Spark's name
        from pyspark.sql import Row

        for each in self.partitions:
            for batch in each:
                yield from (Row(**row) for row in batch.to_pylist())

    def toArrow(self) -> pa.Table:  # noqa: N802 - Spark's name
        return self.table()

    def table(self) -> pa.Table:
        found = [batch for each in self.partitions for batch in each]
        return pa.Table.from_batches([b.cast(self.arrow) for b in found], self.arrow)


@dataclass(frozen=True)
class _Task:
    """A partition whose function will run as the task of that number."""

    number: int
    function: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
    batches: Iterable[pa.RecordBatch]

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        outer = TaskContext._taskContext
        told = SimpleNamespace(partitionId=lambda: self.number, attemptNumber=lambda: 0)
        found = self.function(iter(self.batches))
        while True:
            TaskContext._taskContext = told
            try:
                batch = next(found, None)
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
    """Do what `reader.snapshot` does."""
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
    """Do what `reader.changes` does."""
    if selection.folded:
        pytest.fail("Keys whose case makes no difference are for Spark itself.")
    log = DeltaLog(selection.path, selection.tenant_column)
    rows: Table = []
    for version in range(after.version + 1, upto.version + 1):
        stamps = {VERSION: version, TIMESTAMP: log.get_moment(version).micros}
        rows += [row | stamps for row in _changed(selection, version)]
    found = _latest(rows, selection) if selection.keys else _added(rows, selection)
    identity = selection.identity if selection.keys else selection.output
    spread: list[Table] = [[] for _ in range(partitions)]
    for row in found:
        told = repr([row[name] for name in identity]).encode()
        spread[crc32(told) % partitions].append(row)
    extra = [REPEATS, FRESH] if selection.keys else [REPEATS]
    return _frame(spread, selection, extra)


def _changed(selection: TableSelection, version: int) -> Iterator[dict[str, Any]]:
    """Yield a version's feed, from its files of changes or those it adds and removes.

    Like Spark it opens no file of other tenants. It reads the files here, since `load_cdf` finds
    none in a folder with a blank in its name.
    """
    path = selection.path
    commit = Path(path, "_delta_log", f"{version:020}.json").read_text(encoding="utf-8")
    actions = [json.loads(line) for line in commit.splitlines()]
    kinds = {"cdc": None} if any("cdc" in each for each in actions) else _KINDS
    schema = pa.schema(DeltaTable(path).schema().to_arrow())
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
                yield {CHANGE_TYPE: kinds[kind]} | row | beside


def _latest(rows: Table, selection: TableSelection) -> Iterator[dict[str, Any]]:
    def identity(row: dict[str, Any]) -> list[tuple[bool, Any]]:
        values = [row[name] for name in selection.identity]
        return [(value is not None, 0 if value is None else value) for value in values]

    def newest_first(row: dict[str, Any]) -> Any:
        return (-row[VERSION], row[CHANGE_TYPE] not in UPSERTS)

    for _, some in groupby(sorted(rows, key=identity), key=identity):
        group = sorted(some, key=newest_first)
        upserts = [row[CHANGE_TYPE] in UPSERTS for row in group]
        twin = any(
            upserts[n]
            and upserts[n - 1]
            and (
                group[n - 1][VERSION] == group[n][VERSION] or group[n - 1][CHANGE_TYPE] == "insert"
            )
            for n in range(1, len(group))
        )
        yield group[0] | {DELETED: not upserts[0], REPEATS: twin, FRESH: upserts[-1]}


def _added(rows: Table, selection: TableSelection) -> Iterator[dict[str, Any]]:
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
    held = [row for row in rows if row[column] is not None]
    return held if tenants is None else [row for row in held if str(row[column]) in tenants]


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

    def batches(rows: Table) -> list[pa.RecordBatch]:
        listed = [{name: row[name] for name in schema.names} for row in rows]
        return pa.Table.from_pylist(listed, schema).to_batches(max_chunksize=ROWS_PER_BATCH)

    return Frame([batches(each) for each in partitions], schema)


def _arrow_of(type_: DeltaType) -> pa.DataType:
    """Return the Arrow type in which Spark passes a column."""
    if isinstance(type_, Map):
        return pa.map_(_arrow_of(type_.key), _arrow_of(type_.value))
    return to_arrow_type(type_)


def joined(held: Frame, served: Frame, source: SourceTable, selection: TableSelection) -> Any:
    """Compare rows by key, as verify does."""
    from pyspark.sql import Row

    sides = []
    for frame in (held, served):
        rows = frame.table().to_pylist()
        sides.append({tuple(str(row[n]) for n in selection.identity): row for row in rows})
    of_source, of_index = sides
    counts: dict[str, dict[str, Any]] = {}
    for key in sorted({*of_source, *of_index}):
        row, other = of_source.get(key), of_index.get(key)
        tenant = key[0] if source.tenant else DEFAULT_TENANT
        found = counts.setdefault(tenant, _nothing(tenant))
        found["rows"] += row is not None
        found["missing"] += other is None
        found["extra"] += row is None
        differs = row is not None and other is not None and repr(row) != repr(other)
        found["different"] += differs
        if row is None or other is None or differs:
            both = row or {}, other or {}
            names = [name for name in both[0] if repr(both[0][name]) != repr(both[1].get(name))]
            found["samples"].append(
                Row(
                    identity=list(key),
                    in_source=row is not None,
                    in_index=other is not None,
                    different=names if differs else None,
                )
            )
    return _collected(counts)


def counted(held: Frame, served: Frame, source: SourceTable, _selection: TableSelection) -> Any:
    """Compare rows without a key, as verify does."""
    from pyspark.sql import Row

    def times(frame: Frame) -> Counter[tuple[str, str]]:
        rows = frame.table().to_pylist()
        by = source.tenant
        return Counter((str(row[by]) if by else DEFAULT_TENANT, repr(row)) for row in rows)

    of_source, of_index = times(held), times(served)
    counts: dict[str, dict[str, Any]] = {}
    for tenant, row in sorted({*of_source, *of_index}):
        found = counts.setdefault(tenant, _nothing(tenant))
        more = of_source[tenant, row] - of_index[tenant, row]
        found["rows"] += of_source[tenant, row]
        found["missing"] += max(more, 0)
        found["extra"] += max(-more, 0)
        if more:
            found["samples"].append(
                Row(row=row, in_source=of_source[tenant, row], in_index=of_index[tenant, row])
            )
    return _collected(counts)


def _nothing(tenant: str) -> dict[str, Any]:
    numbers = dict.fromkeys(("rows", "missing", "extra", "different"), 0)
    return {"tenant": tenant, **numbers, "samples": []}


def _collected(counts: dict[str, dict[str, Any]]) -> Any:
    from pyspark.sql import Row

    found = [Row(**each | {"samples": each["samples"][:SAMPLES]}) for each in counts.values()]
    return SimpleNamespace(collect=lambda: found)


_NAMED = r"delta\.`(?P<path>[^`]+)`"
_STATEMENTS: dict[str, Callable[..., None]] = {}


def _statement(pattern: str) -> Any:
    def made(function: Callable[..., None]) -> Callable[..., None]:
        _STATEMENTS[pattern.replace("{t}", _NAMED)] = function
        return function

    return made


def run_sql(statement: str) -> Table:
    """Run a statement that tests send to Spark and return its rows; any other fails the test."""
    for pattern, function in _STATEMENTS.items():
        if (found := re.fullmatch(pattern, statement.strip(), re.DOTALL)) is not None:
            function(**found.groupdict())
            return []
    if not statement.startswith("SELECT"):
        pytest.fail(f"Only Spark itself runs {statement!r}.")
    (path,) = set(re.findall(_NAMED, statement))
    return _selected(re.sub(_NAMED, "source", statement), path)


def _selected(query: str, path: str | None = None) -> Table:
    asked = QueryBuilder()
    if path is not None:
        asked = asked.register("source", DeltaTable(path))
    return pa.table(asked.execute(_in_datafusion(query)).read_all()).to_pylist()


def _in_datafusion(expression: str) -> str:
    """Translate Spark's SQL into DataFusion's."""
    expression = re.sub(r"'((?:[^'\\]|\\.)*)'", _literal, expression)
    expression = re.sub(r"\barray\(", "make_array(", expression)
    expression = re.sub(r"\bmap\(([^(),]+), ([^(),]+)\)", r"MAP {\1: \2}", expression)
    return re.sub(r"\bfloat\(([^()]*)\)", r"CAST(\1 AS FLOAT)", expression)


def _literal(found: re.Match[str]) -> str:
    return "'" + re.sub(r"\\(.)", r"\1", found[1]).replace("'", "''") + "'"


@_statement(
    r"CREATE TABLE (?P<lenient>IF NOT EXISTS )?{t} \((?P<columns>.+?)\) USING delta "
    r"(?:PARTITIONED BY \((?P<by>.+?)\))? ?"
    r"TBLPROPERTIES \((?P<properties>.*)\)"
)
def _create(path: str, columns: str, by: str | None, properties: str, lenient: str | None) -> None:
    if lenient and DeltaTable.is_deltatable(path):
        return
    schema = _declared(columns)
    pairs = re.findall(r"'?([\w.]+)'? = '?([\w.]+)'?", properties)
    # Only Spark writes in-commit timestamps; delta-rs does not.
    told = {name: value for name, value in pairs if name != "delta.enableInCommitTimestamps"}
    Path(path).mkdir(parents=True)
    DeltaTable.create(
        path,
        schema=schema,
        partition_by=[by.strip("`")] if by else None,
        configuration=told,
    )


_TYPES = {
    "STRING": pa.string(),
    "TINYINT": pa.int8(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "DATE": pa.date32(),
}


def _declared(columns: str) -> pa.Schema:
    """Parse SQL column definitions."""
    found = (re.fullmatch(r"`?(\w+)`? (.+?)( NOT NULL)?", each) for each in _parts(columns))
    return pa.schema([pa.field(f[1], _type(f[2]), nullable=not f[3]) for f in found if f])


def _type(told: str) -> pa.DataType:
    if told.startswith("ARRAY<"):
        return pa.list_(_type(told[6:-1]))
    if told.startswith("MAP<"):
        return pa.map_(*map(_type, _parts(told[4:-1])))
    return _TYPES[told]


def _parts(told: str) -> list[str]:
    """Split at commas outside angle brackets."""
    return [each.strip() for each in re.split(r",(?![^<]*>)", told)]


@_statement(r"INSERT INTO {t} (?P<rows>VALUES .+)")
def _insert(path: str, rows: str) -> None:
    table = DeltaTable(path)
    schema = pa.schema(table.schema().to_arrow())
    found = _selected(f"SELECT * FROM ({rows})")
    listed = [dict(zip(schema.names, row.values(), strict=True)) for row in found]
    write_deltalake(path, pa.Table.from_pylist(listed, schema), mode="append")


@_statement(r"UPDATE {t} SET (?P<column>\w+) = (?P<value>.+?)(?: WHERE (?P<where>.+))?")
def _update(path: str, column: str, value: str, where: str | None) -> None:
    DeltaTable(path).update(
        updates={column: _in_datafusion(value)}, predicate=where and _in_datafusion(where)
    )


@_statement(r"DELETE FROM {t}(?: WHERE (?P<where>.+))?")
def _delete(path: str, where: str | None) -> None:
    DeltaTable(path).delete(where and _in_datafusion(where))


@_statement(r"OPTIMIZE {t}")
def _optimize(path: str) -> None:
    DeltaTable(path).optimize.compact()


@_statement(r"OPTIMIZE {t} ZORDER BY \((?P<column>\w+)\)")
def _zorder(path: str, column: str) -> None:
    DeltaTable(path).optimize.z_order([column])


@_statement(r"VACUUM {t} RETAIN 0 HOURS")
def _vacuum(path: str) -> None:
    DeltaTable(path).vacuum(0, enforce_retention_duration=False, dry_run=False)


@_statement(r"ALTER TABLE {t} ADD COLUMNS? \(?(?P<columns>.+?)\)?")
def _add_columns(path: str, columns: str) -> None:
    DeltaTable(path).alter.add_columns(Schema.from_arrow(_declared(columns)).fields)


@contextmanager
def near() -> Iterator[NearSpark]:
    """Give a session; until it ends, the product reads and compares through it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("iscp_dagster.delta.reader.read_changes", changes)
        patch.setattr("iscp_dagster.delta.reader.read_snapshot", snapshot)
        patch.setattr("iscp_dagster.upkeep.verify.read_snapshot", snapshot)
        patch.setattr("iscp_dagster.upkeep.verify._compare_by_key", joined)
        patch.setattr("iscp_dagster.upkeep.verify._compare_by_count", counted)
        session = NearSpark()
        for name in ("get_shared_session", "create_private_session"):
            patch.setattr(f"iscp_dagster.location.resources.spark.{name}", lambda *_: session)
        yield session


def served(deployment: Deployment, session: NearSpark) -> Deployment:
    """Return the deployment with this session as its Spark."""
    return replace(deployment, spark=lambda: session, private_spark=lambda: session)
