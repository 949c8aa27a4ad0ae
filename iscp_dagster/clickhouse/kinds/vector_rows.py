"""Vectors as the graph accepts them; this runs in Spark's executors."""

from __future__ import annotations

import zlib

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from iscp_dagster.clickhouse.kinds.kind import InsertTarget
from iscp_dagster.clickhouse.types.formatting import format_row
from iscp_dagster.model.errors import SchemaError

LARGEST = (2 - 2**-23) * 2.0**127
"""The largest float of 32 bits, in which the graph measures."""
FAR = 1_000.0
"""How far fillers lie from 0, along each axis, so that they are candidates for few queries."""


def fit_vectors(
    target: InsertTarget, rows: pa.Table, vector: str, dimension: int, marks: str
) -> pa.Table:
    """Check every live vector; add the column `marks`, which is true if a row has none.

    The graph accepts vectors of one length, of finite floats that 32 bits hold. Rows without one,
    and deleted rows whose vector it would refuse, get a filler.
    """
    column = rows[vector].combine_chunks()
    deleted = pc.cast(rows[target.deleted_column], pa.bool_()).combine_chunks()
    length = pc.fill_null(pc.list_value_length(column), 0)
    misfits = pc.or_(pc.not_equal(length, dimension), _mark_non_finite(column))
    missing = pc.and_(pc.equal(length, 0), target.stored_types[vector].fills_nulls)
    refused = pc.and_not(pc.and_not(misfits, deleted), missing)
    if pc.any(refused).as_py():
        raise _make_misfit_error(target, rows.filter(refused).slice(0, 1), vector, dimension)
    if pc.any(misfits).as_py():
        column = _fill_vectors(
            column, misfits, dimension, seed=_compute_seed(rows.filter(misfits), vector)
        )
    rows = rows.set_column(rows.schema.get_field_index(vector), vector, column)
    return rows.append_column(marks, missing)


def _fill_vectors(
    column: pa.ListArray, misfits: pa.BooleanArray, dimension: int, *, seed: int
) -> pa.ListArray:
    """Replace each misfit by a filler of its own: a shared one would crowd out neighbours.

    Fillers point anywhere; the same rows get the same ones.
    """
    number = pc.sum(misfits).as_py()
    floats = np.random.default_rng(seed).standard_normal(number * dimension) * FAR
    offsets = pa.array(range(0, len(floats) + 1, dimension), pa.int32())
    fillers = pa.ListArray.from_arrays(offsets, pa.array(floats)).cast(column.type)
    nth = pc.subtract(pc.cumulative_sum(misfits.cast(pa.int64())), 1)
    row_numbers = pc.if_else(
        misfits, pc.add(nth, len(column)), pa.array(range(len(column)), pa.int64())
    )
    return pa.concat_arrays([column, fillers]).take(row_numbers)


def _compute_seed(rows: pa.Table, vector: str) -> int:
    """Return a number that differs between chunks: fillers should not be the same in all."""
    return zlib.crc32(repr(rows.slice(0, 1).drop([vector]).to_pylist()).encode())


def _mark_non_finite(column: pa.ListArray) -> pa.BooleanArray:
    """Return which vectors have a float that is NaN, infinite, or beyond those of 32 bits."""
    size = pc.abs(pc.list_flatten(column))
    finite = pc.fill_null(pc.less_equal(size, LARGEST), fill_value=True)
    if pc.all(finite, min_count=0).as_py():
        return pa.repeat(pa.scalar(value=False), len(column))
    rows = pc.unique(pc.list_parent_indices(column).filter(pc.invert(finite)))
    return pc.is_in(pa.array(range(len(column)), rows.type), value_set=rows)


def _make_misfit_error(
    target: InsertTarget, row: pa.Table, vector: str, dimension: int
) -> SchemaError:
    floats, key = row[vector][0].as_py() or (), format_row(row.select(list(target.keys)))
    if len(floats) != dimension:
        return SchemaError(
            f"{target.name}: vector column {vector!r} has {len(floats)} floats in row {key}, not "
            f"{dimension}; give every row a vector of the declared dimension."
        )
    return SchemaError(
        f"{target.name}: vector column {vector!r} has NaN, an infinity or a float beyond "
        f"{LARGEST:g} in row {key}, so no distance to it exists; give every row a vector of finite "
        "floats of 32 bits."
    )
