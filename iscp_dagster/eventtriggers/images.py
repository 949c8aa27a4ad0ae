"""The image rows that a trigger looks at, out of all that a scan hands on."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from iscp_dagster.clickhouse.write.fitting import refuse_nulls
from iscp_dagster.clickhouse.write.tenantwise import named, parted
from iscp_dagster.events.changes import SYSTEM, Stamped, changes_of, in_order
from iscp_dagster.events.hysteresis import Condition
from iscp_dagster.eventtriggers.still import moving
from iscp_dagster.model.consumers.protocol import DataRetriever
from iscp_dagster.model.declared import images
from iscp_dagster.model.declared.schema import VERSION
from iscp_dagster.model.declared.tables import DEFAULT_TENANT
from iscp_dagster.model.errors import KeyColumnError, SchemaError

OWNER = "_owner"
"""Holds the tenant as partitions name it, whatever the type of its column."""


def its_own(columns: Sequence[str]) -> list[str]:
    """Of an image row's columns, those of the view."""
    return [name for name in columns if name not in SYSTEM]


def gathered(
    retriever: DataRetriever, tenant: str | None, condition: Condition, columns: Collection[str]
) -> Mapping[str, pa.Table]:
    """By tenant, the image rows that may fire or move the active set; reads to the end.

    Of the view's columns they have those of `columns`; none named: all. All rows are held in
    memory, since an update's images may come in different batches.
    """
    found: list[pa.Table] = []
    while (rows := retriever.marked()) is not None:
        some = moving(rows.filter(_may_be_active(rows, condition)), tenant, condition)
        if columns:
            kept = SYSTEM.union(columns)
            some = some.select([each for each in some.column_names if each in kept])
        if some.num_rows:
            found.append(some)
    if not found:
        return {}
    whole = pa.concat_tables(found)
    if tenant is None:
        return {DEFAULT_TENANT: whole}
    return {each.tenant: each.rows for each in parted(whole, named(whole, tenant))}


def _may_be_active(rows: pa.Table, condition: Condition) -> pa.ChunkedArray:
    """All but the rows of a snapshot that are not active whatever they were before."""
    kept = pc.not_equal(rows[images.CHANGE], int(images.ChangeKind.BASE))
    active = _is(rows, images.MATCH)
    if condition.unmatch:
        active = pc.or_(active, pc.invert(_is(rows, images.UNMATCH)))
    return pc.or_(kept, active)


def stamped(
    rows: pa.Table, tenant: str | None, keys: Sequence[str], condition: Condition, *, name: str
) -> list[Stamped]:
    """One tenant's changes in order; `tenant` is None for a table without a tenant column.

    Without hysteresis, only those that begin or cease to match. Raises HalfChangeError, and
    KeyColumnError, which says that the trigger of this `name` cannot take a row.
    """
    rows = rows if condition.unmatch else _transitions(rows)
    for key in keys:
        refuse_nulls(name, rows, key, keys)
    rows = in_utf8(rows, keys, name)
    if images.FIELDS not in rows.column_names:
        rows = rows.append_column(images.FIELDS, pa.nulls(rows.num_rows))
    if tenant is not None:
        rows = rows.append_column(OWNER, pa.repeat(pa.scalar(tenant), rows.num_rows))
    owner = None if tenant is None else OWNER
    return in_order(changes_of(listed(rows, name), keys=keys, tenant=owner))


def listed(rows: pa.Table, name: str) -> list[dict[str, Any]]:
    """The rows as Python has them. Raises SchemaError for a value that it does not have."""
    try:
        found: list[dict[str, Any]] = rows.to_pylist()
    except (ValueError, OverflowError) as error:
        culprit = next(each for each in rows.column_names if not _is_listed(rows[each]))
        raise SchemaError(
            f"{name}: column {culprit!r} has a value that JSON cannot have here: a time before the "
            "year 1 or after 9999, or, within an array, map or struct, a text that is not UTF-8. "
            "Correct it in the source, or leave the column out with columns=[...]."
        ) from error
    return found


def _is_listed(values: pa.ChunkedArray) -> bool:
    try:
        values.to_pylist()
    except (ValueError, OverflowError):
        return False
    return True


def in_utf8(rows: pa.Table, keys: Sequence[str], name: str) -> pa.Table:
    """The rows with U+FFFD for the bytes of a snapshot's texts that are not UTF-8.

    JSON has no other text, and the change feed says the same. Raises KeyColumnError for a key.
    """
    for at, field in enumerate(rows.schema):
        if not _has_bytes(rows[field.name]):
            continue
        if field.name in keys:
            raise KeyColumnError(
                f"{name}: key column {field.name!r} has a text that is not UTF-8, and a key is "
                "told as JSON. Correct it in the source, or declare another key."
            )
        found = rows[field.name].cast(pa.binary()).to_pylist()
        texts = [each if each is None else each.decode(errors="replace") for each in found]
        rows = rows.set_column(at, field, pa.chunked_array([pa.array(texts, field.type)]))
    return rows


def _has_bytes(values: pa.ChunkedArray) -> bool:
    """Whether one of the texts is not UTF-8."""
    if not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
        return False
    try:
        values.validate(full=True)
    except pa.ArrowInvalid:
        return True
    return False


def _transitions(rows: pa.Table) -> pa.Table:
    """The rows without changes that match neither before nor after, or both."""
    updates = pc.equal(rows[images.CHANGE], int(images.ChangeKind.UPDATE))
    single = rows.filter(pc.and_(pc.invert(updates), _is(rows, images.MATCH)))
    before, after = (_ordered(rows, updates, image) for image in (images.BEFORE, images.AFTER))
    if before.num_rows != after.num_rows:
        return rows  # half of a change is missing, which is told where it is paired
    crossing = pc.not_equal(_is(before, images.MATCH), _is(after, images.MATCH))
    return pa.concat_tables([single, before.filter(crossing), after.filter(crossing)])


def _ordered(rows: pa.Table, updates: pa.ChunkedArray, image: int) -> pa.Table:
    found = rows.filter(pc.and_(updates, pc.equal(rows[images.IMAGE], image)))
    return found.sort_by([(VERSION, "ascending"), (images.ORDINAL, "ascending")])


def _is(rows: pa.Table, column: str) -> pa.ChunkedArray:
    return pc.fill_null(rows[column], fill_value=False)
