"""What `…_nearest` costs, compared with measuring every row and with the graph's own answer.

Compared by the processor time of ClickHouse, which others on the machine change least.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import pyarrow as pa

from bench.report import BenchReport
from bench.subscriptions import read_cpu_seconds
from iscp_dagster import SourceTable, Vector
from iscp_dagster.clickhouse.connect.endpoint import ClickHouseEndpoint
from iscp_dagster.clickhouse.connect.quoting import quote_identifier
from iscp_dagster.clickhouse.tables.ddl import SETTINGS, IndexShape
from iscp_dagster.model.declared.schema import Array, DeltaField, Primitive

FIELDS = (
    DeltaField(name="tenant", type=Primitive("string")),
    DeltaField(name="id", type=Primitive("long")),
    DeltaField(name="v", type=Array(element=Primitive("float"))),
)
QUERY_ARGUMENTS = "query = {query:Array(Float32)}, tenant = 'a'"
K = 10
WAYS = {
    "nearest": f"SELECT id, distance FROM NEAREST({QUERY_ARGUMENTS}, k = {K})",
    "exact": f"SELECT id, distance FROM DISTANCES({QUERY_ARGUMENTS}) "
    f"ORDER BY distance, id LIMIT {K}",
    "the graph's own, dead rows too": "SELECT id, cosineDistance(v, {query:Array(Float32)}) AS d "
    f"FROM ROWS WHERE tenant = 'a' ORDER BY d LIMIT {K}",
}
UNMERGED = (
    "max_bytes_to_merge_at_max_space_in_pool = 1, max_bytes_to_merge_at_min_space_in_pool = 1"
)


def measure(folder: Path, report: BenchReport, size: tuple[int, int, int], rounds: int) -> None:
    """Compare the ways for a size (rows, dimension, parts), in turn; rounds of ten queries."""
    rows, dimension, parts = size
    with _run_clickhouse(folder) as (endpoint, process):
        shape = _fill_index(endpoint, rows, dimension, parts)
        seconds_by_way = _measure_ways(endpoint, process, shape, dimension, 10 * rounds)
    label = f"{rows:,} x {dimension}, {parts} part{'s' if parts > 1 else ''}"
    for way, seconds in seconds_by_way.items():
        report.add_fact(f"{label}: {way}", f"{seconds * 1000:.0f} ms of processor time")
    report.add_ratio(
        f"{label}: exact / nearest",
        seconds_by_way["exact"] / seconds_by_way["nearest"],
        "at least 1",
    )


def _measure_ways(
    endpoint: ClickHouseEndpoint, process: int, shape: IndexShape, dimension: int, queries: int
) -> dict[str, float]:
    """Mean processor time of ClickHouse for a query, by way."""
    random, client = np.random.default_rng(1), endpoint.get_client()
    tables = {
        "NEAREST": shape.qualify_name(shape.format_view_name("nearest")),
        "DISTANCES": shape.qualify_name(shape.format_view_name("distances")),
        "ROWS": shape.qualify_name(shape.rows),
    }
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    for number in range(queries + 1):
        query = [float(part) for part in random.normal(size=dimension)]
        for way, template in WAYS.items():
            sql = reduce(
                lambda text, replacement: text.replace(*replacement), tables.items(), template
            )
            before = read_cpu_seconds(process)
            client.query(sql, parameters={"query": query})
            # The first one loads the graphs.
            if number:
                seconds[way].append(read_cpu_seconds(process) - before)
    return {way: mean(values) for way, values in seconds.items()}


def _fill_index(endpoint: ClickHouseEndpoint, rows: int, dimension: int, parts: int) -> IndexShape:
    """Make an index of one tenant whose parts stay as they are."""
    source = SourceTable(f"bench.n{rows}_{dimension}_{parts}", key="id", tenant="tenant")
    index = Vector("v", dimension=dimension, connectivity=16, expansion=64)
    shape, client = IndexShape(source=source, index=index, fields=FIELDS), endpoint.get_client()
    for statement in (*shape.render_create_statements(), *shape.render_view_statements()):
        client.command(statement, settings=SETTINGS)
    client.command(f"ALTER TABLE {shape.qualify_name(shape.rows)} MODIFY SETTING {UNMERGED}")
    for number in range(parts):
        client.insert_arrow(
            quote_identifier(shape.database, shape.rows),
            _make_rows(number, rows // parts, dimension, parts),
            settings={"max_insert_block_size": rows, "min_insert_block_size_rows": rows},
        )
    return shape


def _make_rows(number: int, rows: int, dimension: int, parts: int) -> pa.Table:
    random = np.random.default_rng(number)
    floats = pa.array(random.normal(size=rows * dimension).astype(np.float32))
    columns: dict[str, Any] = {
        "tenant": pa.array(["a"] * rows),
        "id": pa.array(random.permutation(rows) * parts + number),
        "v": pa.ListArray.from_arrays(np.arange(rows + 1, dtype=np.int32) * dimension, floats),
        "_version": pa.array([number + 1] * rows, pa.uint64()),
        "_deleted": pa.array([0] * rows, pa.uint8()),
    }
    return pa.table(columns)


@contextmanager
def _run_clickhouse(folder: Path) -> Iterator[tuple[ClickHouseEndpoint, int]]:
    command = [sys.executable, "-m", "chdb_http", "--path", str(folder / "ch")]
    command += ["--host", "127.0.0.1", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        address = process.stdout.readline().split()[-1]
        try:
            yield ClickHouseEndpoint.parse(f"http://{address}"), process.pid
        finally:
            process.terminate()
