"""What a user would pick instead: delta-rs with clickhouse-connect, and the engine's own reader."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from bench.setting import BenchTable
from iscp_dagster.clickhouse.tables.ddl import IndexShape

BATCH = 100_000
COLUMNS = ["id", "tenant", "name", "amount", "note", "at"]


def snapshot_with_delta_rs(setting: BenchTable, shape: IndexShape) -> None:
    """Scan with delta-rs, insert batches of 100,000 rows with clickhouse-connect."""
    from deltalake import DeltaTable

    table = DeltaTable(setting.path)
    reader = table.to_pyarrow_dataset().scanner(columns=COLUMNS, batch_size=BATCH).to_reader()
    _insert(setting, shape, reader, version=table.version())


def scan_with_delta_rs(setting: BenchTable, shape: IndexShape) -> None:
    """Like `delta_rs_snapshot`, but scan with its own engine, which reads more kinds of tables."""
    from deltalake import DeltaTable, QueryBuilder

    table = DeltaTable(setting.path)
    result = QueryBuilder().register("t", table).execute("SELECT * FROM t")
    for batch in pa.RecordBatchReader.from_stream(result):
        _insert(setting, shape, [_cast_strings(pa.table(batch))], version=table.version())


def follow_with_delta_rs(setting: BenchTable, shape: IndexShape, after: int, upto: int) -> None:
    """Read the change feed with delta-rs; keep the last change of each key; insert."""
    from deltalake import DeltaTable

    table = DeltaTable(setting.path)
    reader = table.load_cdf(starting_version=after + 1, ending_version=upto)
    changes = _cast_strings(pa.table(reader))
    latest = changes.filter(pc.not_equal(changes["_change_type"], "update_preimage"))
    latest = latest.sort_by([("_commit_version", "ascending")])
    _insert(setting, shape, latest.select(COLUMNS).to_reader(), version=upto)


PASSES = {"log_comment": str(2**62)}
"""The setting by which the benchmark's writes pass the barrier of an index's table."""


def snapshot_with_engine(setting: BenchTable, table: str) -> None:
    """INSERT … SELECT FROM deltaLakeLocal, all inside ClickHouse."""
    columns = ", ".join(COLUMNS)
    setting.run_command(
        f"INSERT INTO {table} ({columns}, _version, _timestamp, _deleted) "
        f"SETTINGS log_comment = '{PASSES['log_comment']}' "
        f"SELECT {columns}, 1, now64(6), 0 FROM deltaLakeLocal('{setting.path}')"
    )


def _cast_strings(table: pa.Table) -> pa.Table:
    """Return the table with plain strings, since ClickHouse and most kernels reject views."""
    fields = [
        field.with_type(pa.string()) if field.type == pa.string_view() else field
        for field in table.schema
    ]
    return table.cast(pa.schema(fields))


def _insert(setting: BenchTable, shape: IndexShape, reader: Any, *, version: int) -> None:
    client = setting.deployment.endpoint.get_client()
    for batch in reader:
        table = pa.table(batch)
        if not table.num_rows:
            continue
        rows = pa.Table.from_batches(table.to_batches())
        rows = rows.append_column("_version", pa.array([version] * rows.num_rows, pa.int64()))
        client.insert_arrow(shape.rows, rows, database=shape.database, settings=PASSES)
