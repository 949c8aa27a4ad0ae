"""Write rows to an index as a Spark task does, but without Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from iscp_dagster.clickhouse.connect.endpoint import Endpoint
from iscp_dagster.clickhouse.tables.ddl import IndexTable
from iscp_dagster.clickhouse.tables.indexes import IndexStore
from iscp_dagster.clickhouse.write.consumer import IndexConsumer
from iscp_dagster.model.batch import Range
from iscp_dagster.model.consumers.protocol import DataType
from iscp_dagster.model.declared.tables import DEFAULT_TENANT, Index, SourceTable
from iscp_dagster.model.errors import IscpError
from iscp_dagster.model.moment import Moment
from iscp_dagster.sync.executors.retriever import ConsumerScan
from iscp_dagster.sync.executors.writer import Receipt, TaskWriter

ANYWAY = {"log_comment": f"by hand {2**62}"}
"""The setting by which a test's own INSERT passes every barrier."""


def built(endpoint: Endpoint, source: SourceTable, index: Index, fields: Any, **shape: Any):
    """Return the store of an index whose tables and views have been made."""
    table = IndexTable(source=source, index=index, fields=fields, **shape)
    store = IndexStore(endpoint=endpoint, shape=table)
    store.ensure()
    store.ensure_views()
    return store


def shipped(
    store: IndexStore, *, staged: bool = False, since: int = 0, upto: int = 1, **changes: Any
) -> ConsumerScan:
    """Return the store's consumer as a scan of (since, upto] ships it; `changes` alter its target.

    Staged rows go to a table that `store.stage` has made.
    """
    target = replace(store.enter().target(staged=staged), **changes)
    return ConsumerScan(
        job=target.job,
        registrations={DEFAULT_TENANT if target.tenant is None else "a": 7},
        range=Range(from_=Moment(since), to=Moment(upto)),
        data_type=DataType.SNAPSHOT if staged else DataType.TAIL,
        columns=target.columns,
        identity=target.columns,
        tenant_column=target.tenant,
        consumer=IndexConsumer(
            endpoint=store.endpoint, target=target, placement=store.placement, sleep=lambda _: None
        ),
    )


def write(
    store: IndexStore, table: pa.Table, *, rows_per_chunk: int = 10, **named: Any
) -> list[Receipt]:
    """Write these rows as one task, in batches of three; return its receipts."""
    index = shipped(store, **named)
    if index.tenant_column:
        tenants = table[index.tenant_column].cast(pa.string()).unique().drop_null().to_pylist()
        index = replace(index, registrations=dict.fromkeys(tenants or ["a"], 7))
    writer = TaskWriter(
        shares=[index],
        keys=index.consumer.target.keys,
        rows_per_chunk=rows_per_chunk,
        sleep=lambda _: None,
    )
    return writer(0, table.to_batches(max_chunksize=3))


def count(store: IndexStore, tenant: str) -> int:
    """Count the rows that the tenant's readers see."""
    query = f"SELECT count() FROM {store.shape.final} {store._render_where()}"
    return int(store._read_first_row(query, tenant)[0])


def check_staged(store: IndexStore, tenant: str, *, version: int, rows: int) -> None:
    """Raise the error of one staged tenant, if any, as the next two do."""
    _raised(store.find_staged_errors({tenant: rows}, version=version))


def check_appended(store: IndexStore, tenant: str, *, range_: Range, rows: int) -> None:
    _raised(store.find_appended_errors({tenant: rows}, range_=range_))


def put_in_place(
    store: IndexStore, tenant: str, *, rows: int, version: int, registration: int = 7
) -> None:
    registrations = {tenant: registration}
    _raised(store.replace({tenant: rows}, version=version, registrations=registrations))


def _raised(wrong: Mapping[str, IscpError]) -> None:
    for error in wrong.values():
        raise error
