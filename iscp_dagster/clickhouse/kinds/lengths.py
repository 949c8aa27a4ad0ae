"""Vectors as the graph accepts them; this runs in Spark's executors."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from iscp_dagster.clickhouse.kinds.kind import Rows
from iscp_dagster.clickhouse.types.shown import row_shown
from iscp_dagster.model.errors import SchemaError

LARGEST = (2 - 2**-23) * 2.0**127
"""The largest float of 32 bits, in which the graph measures."""


def whole_vectors(target: Rows, rows: pa.Table, vector: str, dimension: int) -> pa.Table:
    """Check every live vector; replace those of deleted rows that the graph would refuse.

    The graph accepts vectors of one length, of finite floats that 32 bits hold.
    """
    column = rows[vector].combine_chunks()
    gone = pc.cast(rows[target.deleted], pa.bool_()).combine_chunks()
    short = pc.not_equal(pc.fill_null(pc.list_value_length(column), 0), dimension)
    wrong = pc.or_(short, _endless(column))
    live = pc.and_not(wrong, gone)
    if pc.any(live).as_py():
        raise _misfit(target, rows.filter(live).slice(0, 1), vector, dimension)
    # Other deleted rows keep theirs: one shared by all deleted rows would crowd out neighbours.
    if pc.any(wrong).as_py():
        unit = pa.scalar([1.0, *[0.0] * (dimension - 1)], type=column.type)
        column = pc.if_else(wrong, unit, column)
    return rows.set_column(rows.schema.get_field_index(vector), vector, column)


def _endless(column: pa.ListArray) -> pa.BooleanArray:
    """Return which vectors have a float that is NaN, infinite, or beyond those of 32 bits."""
    size = pc.abs(pc.list_flatten(column))
    finite = pc.fill_null(pc.less_equal(size, LARGEST), fill_value=True)
    if pc.all(finite, min_count=0).as_py():
        return pa.repeat(pa.scalar(value=False), len(column))
    rows = pc.unique(pc.list_parent_indices(column).filter(pc.invert(finite)))
    return pc.is_in(pa.array(range(len(column)), rows.type), value_set=rows)


def _misfit(target: Rows, row: pa.Table, vector: str, dimension: int) -> SchemaError:
    floats, key = row[vector][0].as_py() or (), row_shown(row.select(list(target.keys)))
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
