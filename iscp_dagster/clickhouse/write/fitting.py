"""A scan's rows as one index stores them; errors name the rows that do not fit."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from iscp_dagster.clickhouse.types.leaves import Misfit
from iscp_dagster.clickhouse.types.nulls import REFUSE, has_parts
from iscp_dagster.clickhouse.types.shown import row_shown, value_shown
from iscp_dagster.clickhouse.types.stored import Stored
from iscp_dagster.clickhouse.types.wire import NO_NULL, blank, misfits, sent
from iscp_dagster.clickhouse.write.targets import Target
from iscp_dagster.model.declared.schema import DELETED, SYSTEM_COLUMNS, TIMESTAMP
from iscp_dagster.model.errors import KeyColumnError, SchemaError


def fitted(target: Target, chunk: pa.Table) -> pa.Table:
    """Return the chunk as `target` stores it. Raises KeyColumnError, SchemaError for misfits."""
    for column in (*target.keys, *([target.tenant] if target.tenant else [])):
        refuse_nulls(target.name, chunk, column, target.keys)
    chunk = _without_gone_strangers(target, chunk)
    rows = _with_times(chunk.select([*target.columns, *SYSTEM_COLUMNS]))
    for column in target.columns:
        rows = _with_column(rows, column, _stored(target, chunk, column))
    for flag, column in target.flags.items():
        rows = rows.append_column(flag, pc.is_null(chunk[column]))
    return rows if target.index is None else target.index.fitted(target, rows)


def fitting_keys(target: Target, rows: pa.Table) -> pa.Table:
    """Return the identity columns as `target` stores them; drop rows whose key it cannot hold."""
    keys = _without_strangers(target, rows.select(list(target.identity)))
    for column in target.identity:
        if column in target.stored:
            keys = _with_column(keys, column, sent(keys[column], target.stored[column]))
    return keys


def _stored(target: Target, chunk: pa.Table, column: str) -> pa.ChunkedArray:
    """Return the column to send; values of deleted rows that do not fit are blanked."""
    kept, values = target.stored.get(column), chunk[column]
    if kept is None:
        return values
    try:
        return sent(values, kept)
    except Misfit:
        gone = pc.cast(chunk[DELETED], pa.bool_()).to_pylist()
        wrong = [False] * len(values)
        for row, why in misfits(values, kept):
            if not gone[row]:
                raise _misfit(target, chunk.slice(row, 1), column, why) from None
            wrong[row] = True
        return sent(_blanked(values, wrong, kept), kept)


def _blanked(values: pa.ChunkedArray, wrong: list[bool], kept: Stored) -> pa.ChunkedArray:
    """Put blanks in the wrong rows; the others keep their place."""
    filler = pa.array([blank(kept)], values.type)
    pieces = [*values.chunks, filler]
    places = [len(values) if each else row for row, each in enumerate(wrong)]
    return pa.chunked_array(pieces).take(pa.array(places, pa.int64()))


def _without_gone_strangers(target: Target, chunk: pa.Table) -> pa.Table:
    """Drop deletes of rows whose key the index cannot hold, and so never held."""
    gone = pc.cast(chunk[DELETED], pa.bool_())
    if not pc.any(gone).as_py():
        return chunk
    return _without_strangers(target, chunk, gone.to_pylist())


def _without_strangers(target: Target, rows: pa.Table, among: list[bool] | None = None) -> pa.Table:
    """Drop rows whose key `target` cannot hold; with `among`, only rows marked there."""
    strange = {
        row
        for column in target.identity
        if column in target.stored
        for row, _ in misfits(rows[column], target.stored[column])
        if among is None or among[row]
    }
    if not strange:
        return rows
    return rows.filter(pa.array([row not in strange for row in range(rows.num_rows)]))


def _misfit(target: Target, row: pa.Table, column: str, why: str) -> SchemaError:
    value, key = row[column][0], row_shown(row.select(list(target.keys)))
    culprit = f"{target.name}: column {column!r} is"
    kept = target.stored[column]
    if kept.nulls == REFUSE and has_parts(kept.source) and why.endswith(NO_NULL):
        return SchemaError(
            f"{culprit} {value_shown(value) if value.is_valid else 'null'} in row {key}, but "
            "ClickHouse has no null arrays, maps or tuples, and nulls='refuse' is set for it. Fill "
            "it in the source and repair the job, or give nulls='empty', 'flag' or 'json' and "
            f"rebuild the index (`iscp job rebuild {target.name} --tenant '*'`)."
        )
    without = "" if column in target.identity else ", or leave it out with exclude=[...]"
    return SchemaError(
        f"{culprit} {value_shown(value)} in row {key}, but {why}. Correct it in the source, keep "
        f"the column as another type with types={{...}}{without}."
    )


def _with_column(rows: pa.Table, name: str, column: pa.ChunkedArray) -> pa.Table:
    return rows.set_column(rows.schema.get_field_index(name), name, column)


def _with_times(rows: pa.Table) -> pa.Table:
    """Cast the microseconds to timestamps, without a copy."""
    column = rows[TIMESTAMP].cast(pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    return _with_column(rows, TIMESTAMP, column)


def refuse_nulls(name: str, chunk: pa.Table, column: str, keys: Sequence[str]) -> None:
    """Raise KeyColumnError if a row lacks its key; `name` is who cannot take it."""
    if chunk[column].null_count:
        row = chunk.filter(pc.is_null(chunk[column])).slice(0, 1).select(list(keys))
        raise KeyColumnError(
            f"{name}: key column {column!r} is null in row {row_shown(row)}; "
            "every row needs its key. Fill it in the source, or declare another key."
        )


def stamped(rows: pa.Table, stamp: tuple[int, int]) -> pa.Table:
    """Add the system columns to a snapshot's rows, so that Spark need not send them."""
    values = (
        pa.scalar(stamp[0], pa.int64()),
        pa.scalar(stamp[1], pa.int64()),
        pa.scalar(value=False),
    )
    for name, value in zip(SYSTEM_COLUMNS, values, strict=True):
        rows = rows.append_column(name, pa.repeat(value, rows.num_rows))
    return rows


def without_gone_nulls(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Drop deletes whose key is null: no index ever held their rows."""
    for column in keys:
        if rows[column].null_count:
            gone = pc.cast(rows[DELETED], pa.bool_())
            rows = rows.filter(pc.invert(pc.and_(gone, pc.is_null(rows[column]))))
    return rows
