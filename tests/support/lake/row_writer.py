"""Write rows to an index as a Spark task does, but without Spark, and query what it holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count as count_up
from typing import Any

import pyarrow as pa

from iscp_dagster.clickhouse.connect.endpoint import ClickHouseEndpoint
from iscp_dagster.clickhouse.tables.ddl import IndexShape
from iscp_dagster.clickhouse.tables.index_store import IndexStore
from iscp_dagster.clickhouse.write.consumer import IndexConsumer
from iscp_dagster.model.batch import Range
from iscp_dagster.model.consumers.protocol import DataType
from iscp_dagster.model.declared.schema import (
    DELETED,
    TIMESTAMP,
    VERSION,
    DeltaField,
    DeltaType,
    parse_name,
)
from iscp_dagster.model.declared.tables import DEFAULT_TENANT, Index, SourceTable
from iscp_dagster.model.errors import IscpError
from iscp_dagster.model.moment import Moment
from iscp_dagster.sync.executors.retriever import ConsumerScan
from iscp_dagster.sync.executors.writer import Receipt, TaskWriter

ANYWAY = {"log_comment": f"by hand {2**62}"}
"""The setting by which a test's own INSERT passes every barrier."""
MICROS = 1_700_000_000_000_000
"""The time of the commits, in microseconds."""
NUMBERS = count_up()


def make_fields(**types: str | DeltaType) -> tuple[DeltaField, ...]:
    """Return fields of these types, or of the plain types of these names."""
    return tuple(
        DeltaField(name=name, type=parse_name(type_) if isinstance(type_, str) else type_)
        for name, type_ in types.items()
    )


def make_source(
    database: str, *, key: str | Sequence[str] = "id", tenant: str | None = "tenant", **options: Any
) -> SourceTable:
    """Declare a table under a new name."""
    return SourceTable(f"{database}.t{next(NUMBERS)}", key=key, tenant=tenant, **options)


def build_store(
    endpoint: ClickHouseEndpoint, source: SourceTable, index: Index, fields: Any, **shape: Any
):
    """Return the store of an index whose tables and views have been made."""
    table = IndexShape(source=source, index=index, fields=fields, **shape)
    store = IndexStore(endpoint=endpoint, shape=table)
    store.ensure()
    store.ensure_views()
    return store


def add_system_columns(
    rows: pa.Table | Mapping[str, Any],
    *,
    version: int | Sequence[int] = 1,
    micros: int = MICROS,
    deleted: bool | Sequence[bool] = False,
) -> pa.Table:
    """Add version, timestamp and deletion mark, each for all rows or listed for each one."""
    table = rows if isinstance(rows, pa.Table) else pa.table(rows)
    for name, value, type_ in (
        (VERSION, version, pa.int64()),
        (TIMESTAMP, micros, pa.int64()),
        (DELETED, deleted, pa.bool_()),
    ):
        values = [value] * table.num_rows if isinstance(value, int) else value
        table = table.append_column(name, pa.array(values, type_))
    return table


def make_scan(
    store: IndexStore, *, staged: bool = False, since: int = 0, upto: int = 1, **changes: Any
) -> ConsumerScan:
    """Return the store's consumer as a scan of (since, upto] ships it; `changes` alter its target.

    Staged rows go to a table that `store.create_staging_table` has made.
    """
    target = replace(store.refresh_epochs().make_target(staged=staged), **changes)
    return ConsumerScan(
        job=target.job,
        registrations={DEFAULT_TENANT if target.tenant is None else "a": 7},
        range=Range(from_=Moment(since), to=Moment(upto)),
        data_type=DataType.SNAPSHOT if staged else DataType.TAIL,
        columns=target.columns,
        delete_columns=target.columns,
        tenant_column=target.tenant,
        consumer=IndexConsumer(
            endpoint=store.endpoint, target=target, placement=store.placement, sleep=lambda _: None
        ),
    )


def write(
    store: IndexStore,
    table: pa.Table,
    *,
    rows_per_chunk: int = 10,
    rows_per_batch: int = 3,
    **named: Any,
) -> list[Receipt]:
    """Write these rows as one task; return its receipts."""
    scan = make_scan(store, **named)
    if scan.tenant_column:
        tenants = table[scan.tenant_column].cast(pa.string()).unique().drop_null().to_pylist()
        scan = replace(scan, registrations=dict.fromkeys(tenants or ["a"], 7))
    writer = TaskWriter(
        scans=[scan],
        keys=scan.consumer.target.keys,
        rows_per_chunk=rows_per_chunk,
        sleep=lambda _: None,
    )
    return writer(0, table.to_batches(max_chunksize=rows_per_batch))


def query(store: IndexStore, sql: str, **parameters: Any) -> list[tuple[Any, ...]]:
    """Query ClickHouse; `{rows}` and `{view}` stand for the index's table and its view."""
    for place, name in (("{rows}", store.shape.rows), ("{view}", store.shape.view)):
        sql = sql.replace(place, store.shape.qualify_name(name))
    found = store.endpoint.get_client().query(sql, parameters=parameters)
    return [tuple(row) for row in found.result_rows]


def count_stored(store: IndexStore) -> int:
    """Count the rows of the index's table, also those that no reader sees."""
    return int(query(store, "SELECT count() FROM {rows}")[0][0])


def count(store: IndexStore, tenant: str) -> int:
    """Count the rows that the tenant's readers see."""
    sql = f"SELECT count() FROM {store.shape.final} {store._render_where()}"
    return int(store._read_first_row(sql, tenant)[0])


def check_staged(store: IndexStore, tenant: str, *, version: int, rows: int) -> None:
    """Raise the error of one staged tenant, if any, as the next two do."""
    _raise_first(store.find_staged_errors({tenant: rows}, version=version))


def check_appended(store: IndexStore, tenant: str, *, range_: Range, rows: int) -> None:
    _raise_first(store.find_appended_errors({tenant: rows}, range_=range_))


def put_in_place(
    store: IndexStore, tenant: str, *, rows: int, version: int, registration: int = 7
) -> None:
    registrations = {tenant: registration}
    _raise_first(
        store.publish_tenants({tenant: rows}, version=version, registrations=registrations)
    )


def _raise_first(errors: Mapping[str, IscpError]) -> None:
    for error in errors.values():
        raise error
