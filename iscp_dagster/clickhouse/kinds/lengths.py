"""Vectors as the graph takes them, in Spark's executors."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from iscp_dagster.clickhouse.kinds.kind import Rows
from iscp_dagster.clickhouse.types.shown import row_shown
from iscp_dagster.model.errors import SchemaError


def whole_vectors(target: Rows, rows: pa.Table, vector: str, dimension: int) -> pa.Table:
    """Check every live vector's length; give deleted rows one, which the graph demands."""
    column = rows[vector].combine_chunks()
    gone = pc.cast(rows[target.deleted], pa.bool_()).combine_chunks()
    lengths = pc.fill_null(pc.list_value_length(column), 0)
    wrong = pc.and_not(pc.not_equal(lengths, dimension), gone)
    if pc.any(wrong).as_py():
        row = rows.filter(wrong).slice(0, 1)
        length = len(row[vector][0].as_py() or ())
        raise SchemaError(
            f"{target.name}: vector column {vector!r} has {length} floats in row "
            f"{row_shown(row.select(list(target.keys)))}, not {dimension}; "
            "give every row a vector of the declared dimension."
        )
    # Its own last vector: one vector shared by all that is gone would crowd out its neighbours.
    gone = pc.and_(gone, pc.not_equal(lengths, dimension))
    if pc.any(gone).as_py():
        unit = pa.scalar([1.0, *[0.0] * (dimension - 1)], type=column.type)
        column = pc.if_else(gone, unit, column)
    return rows.set_column(rows.schema.get_field_index(vector), vector, column)
