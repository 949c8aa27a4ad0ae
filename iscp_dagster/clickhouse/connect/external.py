"""Rows sent with a query (ClickHouse docs, "External Data for Query Processing")."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from iscp_dagster.clickhouse.connect.quoting import quote_identifier


def build_external_data(table: str, rows: pa.Table, types: Iterable[str]) -> Any:
    """Return `rows` as an external table `table`, its columns of these ClickHouse types."""
    from clickhouse_connect.driver.external import ExternalData

    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    return ExternalData(
        file_name=table,
        data=sink.getvalue(),
        fmt="ArrowStream",
        structure=[
            f"{quote_identifier(name)} {type_}"
            for name, type_ in zip(rows.schema.names, types, strict=True)
        ],
    )
