"""A scan's rows as one index stores them; rows that do not fit are refused by name."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from iscp_dagster.clickhouse.targets import Target
from iscp_dagster.core.errors import KeyColumnError, SchemaError


def fitted(target: Target, chunk: pa.Table) -> pa.Table:
    """The chunk as `target` stores it. Raises KeyColumnError, SchemaError for rows that cannot."""
    for column in (*target.keys, *([target.tenant] if target.tenant else [])):
        _refuse_nulls(target, chunk, column)
    for column in target.never_null:
        _refuse_null_container(target, chunk, column)
    rows = _with_times(target, chunk.select([*target.columns, *target.system]))
    if target.vector is not None:
        rows = _with_whole_vectors(target, rows)
    return rows


def _with_times(target: Target, rows: pa.Table) -> pa.Table:
    """Microseconds as the timestamps that they are; no copy."""
    name = target.system[1]
    column = rows[name].cast(pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    return rows.set_column(rows.schema.get_field_index(name), name, column)


def _refuse_nulls(target: Target, chunk: pa.Table, column: str) -> None:
    if chunk[column].null_count:
        row = chunk.filter(pc.is_null(chunk[column])).slice(0, 1).select(list(target.keys))
        raise KeyColumnError(
            f"{target.name}: key column {column!r} is null in row {row.to_pylist()[0]}; "
            "every row needs its key. Fill it in the source, or declare another key."
        )


def _refuse_null_container(target: Target, chunk: pa.Table, column: str) -> None:
    if not chunk[column].null_count:
        return
    live = pc.invert(pc.cast(chunk[target.deleted], pa.bool_()))
    wrong = chunk.filter(pc.and_(pc.is_null(chunk[column]), live)).slice(0, 1)
    if wrong.num_rows:
        raise SchemaError(
            f"{target.name}: column {column!r} is null in row "
            f"{wrong.select(list(target.keys)).to_pylist()[0]}, and ClickHouse has no null "
            "arrays, maps or tuples. Fill it in the source, or leave it out with columns=[...]."
        )


def _with_whole_vectors(target: Target, rows: pa.Table) -> pa.Table:
    """Check every live vector's length; give deleted rows one, which the graph demands."""
    vector = target.vector or ""
    column = rows[vector].combine_chunks()
    gone = pc.cast(rows[target.deleted], pa.bool_()).combine_chunks()
    lengths = pc.fill_null(pc.list_value_length(column), 0)
    wrong = pc.and_not(pc.not_equal(lengths, target.dimension), gone)
    if pc.any(wrong).as_py():
        row = rows.filter(wrong).slice(0, 1)
        length = len(row[vector][0].as_py() or ())
        raise SchemaError(
            f"{target.name}: vector column {vector!r} has {length} floats in row "
            f"{row.select(list(target.keys)).to_pylist()[0]}, not {target.dimension}; "
            "give every row a vector of the declared dimension."
        )
    # Its own last vector: one vector shared by all that is gone would crowd out its neighbours.
    gone = pc.and_(gone, pc.not_equal(lengths, target.dimension))
    if pc.any(gone).as_py():
        unit = pa.scalar([1.0, *[0.0] * (target.dimension - 1)], type=column.type)
        column = pc.if_else(gone, unit, column)
    return rows.set_column(rows.schema.get_field_index(vector), vector, column)


def stamped(rows: pa.Table, system: tuple[str, str, str], stamp: tuple[int, int]) -> pa.Table:
    """The rows of a snapshot with their system columns, which Spark need not hand over."""
    values = (
        pa.scalar(stamp[0], pa.int64()),
        pa.scalar(stamp[1], pa.int64()),
        pa.scalar(value=False),
    )
    for name, value in zip(system, values, strict=True):
        rows = rows.append_column(name, pa.repeat(value, rows.num_rows))
    return rows


def without_gone_nulls(rows: pa.Table, keys: Sequence[str], deleted: str) -> pa.Table:
    """The rows less the deletes of such whose key is null: no index ever held them."""
    for column in keys:
        if rows[column].null_count:
            gone = pc.cast(rows[deleted], pa.bool_())
            rows = rows.filter(pc.invert(pc.and_(gone, pc.is_null(rows[column]))))
    return rows
