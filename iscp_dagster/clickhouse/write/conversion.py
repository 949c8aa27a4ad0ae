"""A scan's rows as one index stores them; errors name the rows that do not fit."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from iscp_dagster.clickhouse.types.formatting import format_row, format_value
from iscp_dagster.clickhouse.types.leaves import Misfit
from iscp_dagster.clickhouse.types.nulls import REFUSE, is_composite
from iscp_dagster.clickhouse.types.storage import StoredType
from iscp_dagster.clickhouse.types.wire import NO_NULL, encode_column, find_misfits, make_filler
from iscp_dagster.clickhouse.write.targets import Target
from iscp_dagster.model.declared.schema import DELETED, SYSTEM_COLUMNS, TIMESTAMP
from iscp_dagster.model.errors import KeyColumnError, SchemaError


def fit_rows(target: Target, chunk: pa.Table) -> pa.Table:
    """Return the chunk as `target` stores it. Raises KeyColumnError, SchemaError for misfits."""
    for column in (*target.keys, *([target.tenant] if target.tenant else [])):
        refuse_nulls(target.name, chunk, column, target.keys)
    chunk = _drop_unheld_deletes(target, chunk)
    rows = _cast_timestamps(chunk.select([*target.columns, *SYSTEM_COLUMNS]))
    for column in target.columns:
        rows = _replace_column(rows, column, _fit_column(target, chunk, column))
    for flag, column in target.flags.items():
        rows = rows.append_column(flag, pc.is_null(chunk[column]))
    return rows if target.index is None else target.index.fit_rows(target, rows)


def fit_keys(target: Target, rows: pa.Table) -> pa.Table:
    """Return the identity columns as `target` stores them; drop rows whose key it cannot hold."""
    keys = _drop_unheld_keys(target, rows.select(list(target.identity)))
    for column in target.identity:
        if column in target.stored_types:
            keys = _replace_column(
                keys, column, encode_column(keys[column], target.stored_types[column])
            )
    return keys


def _fit_column(target: Target, chunk: pa.Table, column: str) -> pa.ChunkedArray:
    """Return the column to send; values of deleted rows that do not fit get a filler."""
    stored, values = target.stored_types.get(column), chunk[column]
    if stored is None:
        return values
    try:
        return encode_column(values, stored)
    except Misfit:
        deleted = pc.cast(chunk[DELETED], pa.bool_()).to_pylist()
        misfits = [False] * len(values)
        for row, reason in find_misfits(values, stored):
            if not deleted[row]:
                raise _make_misfit_error(target, chunk.slice(row, 1), column, reason) from None
            misfits[row] = True
        return encode_column(_fill_misfits(values, misfits, stored), stored)


def _fill_misfits(
    values: pa.ChunkedArray, misfits: list[bool], stored: StoredType
) -> pa.ChunkedArray:
    """Put fillers in place of the misfits; the other values stay."""
    filler = pa.array([make_filler(stored)], values.type)
    pieces = [*values.chunks, filler]
    row_numbers = [len(values) if is_misfit else row for row, is_misfit in enumerate(misfits)]
    return pa.chunked_array(pieces).take(pa.array(row_numbers, pa.int64()))


def _drop_unheld_deletes(target: Target, chunk: pa.Table) -> pa.Table:
    """Drop deletes of rows whose key the index cannot hold, and so never held."""
    deleted = pc.cast(chunk[DELETED], pa.bool_())
    if not pc.any(deleted).as_py():
        return chunk
    return _drop_unheld_keys(target, chunk, deleted.to_pylist())


def _drop_unheld_keys(target: Target, rows: pa.Table, among: list[bool] | None = None) -> pa.Table:
    """Drop rows whose key `target` cannot hold; with `among`, only rows marked there."""
    unheld = {
        row
        for column in target.identity
        if column in target.stored_types
        for row, _ in find_misfits(rows[column], target.stored_types[column])
        if among is None or among[row]
    }
    if not unheld:
        return rows
    return rows.filter(pa.array([row not in unheld for row in range(rows.num_rows)]))


def _make_misfit_error(target: Target, row: pa.Table, column: str, reason: str) -> SchemaError:
    value, key = row[column][0], format_row(row.select(list(target.keys)))
    culprit = f"{target.name}: column {column!r} is"
    stored = target.stored_types[column]
    if stored.nulls == REFUSE and is_composite(stored.source) and reason.endswith(NO_NULL):
        return SchemaError(
            f"{culprit} {format_value(value) if value.is_valid else 'null'} in row {key}, but "
            "ClickHouse has no null arrays, maps or tuples, and nulls='refuse' is set for it. Fill "
            "it in the source and repair the job, or give nulls='empty', 'flag' or 'json' and "
            f"rebuild the index (`iscp job rebuild {target.name} --tenant '*'`)."
        )
    exclusion = "" if column in target.identity else ", or leave it out with exclude=[...]"
    return SchemaError(
        f"{culprit} {format_value(value)} in row {key}, but {reason}. Correct it in the source, "
        f"keep the column as another type with types={{...}}{exclusion}."
    )


def _replace_column(rows: pa.Table, name: str, column: pa.ChunkedArray) -> pa.Table:
    return rows.set_column(rows.schema.get_field_index(name), name, column)


def _cast_timestamps(rows: pa.Table) -> pa.Table:
    """Cast the microseconds to timestamps, without a copy."""
    column = rows[TIMESTAMP].cast(pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    return _replace_column(rows, TIMESTAMP, column)


def refuse_nulls(name: str, chunk: pa.Table, column: str, keys: Sequence[str]) -> None:
    """Raise KeyColumnError if a row lacks its key; `name` is the consumer's, for the message."""
    if chunk[column].null_count:
        row = chunk.filter(pc.is_null(chunk[column])).slice(0, 1).select(list(keys))
        raise KeyColumnError(
            f"{name}: key column {column!r} is null in row {format_row(row)}; "
            "every row needs its key. Fill it in the source, or declare another key."
        )


def add_system_columns(rows: pa.Table, stamp: tuple[int, int]) -> pa.Table:
    """Add the system columns to a snapshot's rows, so that Spark need not send them."""
    values = (
        pa.scalar(stamp[0], pa.int64()),
        pa.scalar(stamp[1], pa.int64()),
        pa.scalar(value=False),
    )
    for name, value in zip(SYSTEM_COLUMNS, values, strict=True):
        rows = rows.append_column(name, pa.repeat(value, rows.num_rows))
    return rows


def drop_null_key_deletes(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Drop deletes whose key is null: no index ever held their rows."""
    for column in keys:
        if rows[column].null_count:
            deleted = pc.cast(rows[DELETED], pa.bool_())
            rows = rows.filter(pc.invert(pc.and_(deleted, pc.is_null(rows[column]))))
    return rows
