"""The image rows of a scan that a trigger evaluates."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from iscp_dagster.clickhouse.write.conversion import refuse_nulls
from iscp_dagster.clickhouse.write.tenant_split import get_row_tenants, split_by_tenant
from iscp_dagster.events.changes import SYSTEM, StampedChange, pair_images, sort_changes
from iscp_dagster.events.hysteresis import Hysteresis
from iscp_dagster.eventtriggers.unchanged_rows import drop_noop_updates
from iscp_dagster.model.consumers.protocol import DataRetriever
from iscp_dagster.model.declared import images
from iscp_dagster.model.declared.schema import VERSION
from iscp_dagster.model.declared.tables import DEFAULT_TENANT
from iscp_dagster.model.errors import KeyColumnError, SchemaError

OWNER = "_owner"
"""Holds the tenant as partitions name it, whatever the type of its column."""


def list_view_columns(columns: Sequence[str]) -> list[str]:
    """The columns of an image row that belong to the view."""
    return [name for name in columns if name not in SYSTEM]


def read_image_rows(
    retriever: DataRetriever, tenant: str | None, hysteresis: Hysteresis, columns: Collection[str]
) -> Mapping[str, pa.Table]:
    """By tenant, the image rows that may fire or move the active set; reads to the end.

    They have the view's columns in `columns`; empty: all. All rows are held in memory, since an
    update's images may come in different batches.
    """
    tables: list[pa.Table] = []
    while (rows := retriever.read_marked_rows()) is not None:
        candidates = drop_noop_updates(
            rows.filter(_mask_candidates(rows, hysteresis)), tenant, hysteresis
        )
        if columns:
            names = SYSTEM.union(columns)
            candidates = candidates.select(
                [name for name in candidates.column_names if name in names]
            )
        if candidates.num_rows:
            tables.append(candidates)
    if not tables:
        return {}
    combined = pa.concat_tables(tables)
    if tenant is None:
        return {DEFAULT_TENANT: combined}
    return {
        group.tenant: group.rows
        for group in split_by_tenant(combined, get_row_tenants(combined, tenant))
    }


def _mask_candidates(rows: pa.Table, hysteresis: Hysteresis) -> pa.ChunkedArray:
    """All rows except those of a snapshot that are inactive whatever they were before."""
    changes = pc.not_equal(rows[images.CHANGE], int(images.ChangeKind.BASE))
    active = _mask_true(rows, images.MATCH)
    if hysteresis.has_unmatch:
        active = pc.or_(active, pc.invert(_mask_true(rows, images.UNMATCH)))
    return pc.or_(changes, active)


def build_changes(
    rows: pa.Table, tenant: str | None, keys: Sequence[str], hysteresis: Hysteresis, *, name: str
) -> list[StampedChange]:
    """One tenant's changes in order; `tenant` is None for a table without a tenant column.

    Without hysteresis, only changes that begin or cease to match. Raises HalfChangeError, and
    KeyColumnError, which says that the trigger of this `name` cannot take a row.
    """
    rows = rows if hysteresis.has_unmatch else _filter_transitions(rows)
    for key in keys:
        refuse_nulls(name, rows, key, keys)
    rows = replace_invalid_utf8(rows, keys, name)
    if images.FIELDS not in rows.column_names:
        rows = rows.append_column(images.FIELDS, pa.nulls(rows.num_rows))
    if tenant is not None:
        rows = rows.append_column(OWNER, pa.repeat(pa.scalar(tenant), rows.num_rows))
    owner = None if tenant is None else OWNER
    return sort_changes(pair_images(to_python_rows(rows, name), keys=keys, tenant=owner))


def to_python_rows(rows: pa.Table, name: str) -> list[dict[str, Any]]:
    """The rows as Python values. Raises SchemaError for a value that Python cannot represent."""
    try:
        converted: list[dict[str, Any]] = rows.to_pylist()
    except (ValueError, OverflowError) as error:
        column = next(name for name in rows.column_names if not _is_convertible(rows[name]))
        raise SchemaError(
            f"{name}: column {column!r} has a value that JSON cannot have here: a time before the "
            "year 1 or after 9999, or, within an array, map or struct, a text that is not UTF-8. "
            "Correct it in the source, or leave the column out with columns=[...]."
        ) from error
    return converted


def _is_convertible(values: pa.ChunkedArray) -> bool:
    try:
        values.to_pylist()
    except (ValueError, OverflowError):
        return False
    return True


def replace_invalid_utf8(rows: pa.Table, keys: Sequence[str], name: str) -> pa.Table:
    """The rows with U+FFFD for the bytes of a snapshot's texts that are not UTF-8.

    JSON has no other text, and the change feed does the same. Raises KeyColumnError for a key.
    """
    for index, field in enumerate(rows.schema):
        if not _has_invalid_utf8(rows[field.name]):
            continue
        if field.name in keys:
            raise KeyColumnError(
                f"{name}: key column {field.name!r} has a text that is not UTF-8, and a key is "
                "sent as JSON. Correct it in the source, or declare another key."
            )
        values = rows[field.name].cast(pa.binary()).to_pylist()
        texts = [value if value is None else value.decode(errors="replace") for value in values]
        rows = rows.set_column(index, field, pa.chunked_array([pa.array(texts, field.type)]))
    return rows


def _has_invalid_utf8(values: pa.ChunkedArray) -> bool:
    """Whether one of the texts is not UTF-8."""
    if not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
        return False
    try:
        values.validate(full=True)
    except pa.ArrowInvalid:
        return True
    return False


def _filter_transitions(rows: pa.Table) -> pa.Table:
    """Only the rows of changes by which a row begins or ceases to match."""
    updates = pc.equal(rows[images.CHANGE], int(images.ChangeKind.UPDATE))
    single = rows.filter(pc.and_(pc.invert(updates), _mask_true(rows, images.MATCH)))
    before, after = (_sort_images(rows, updates, image) for image in (images.BEFORE, images.AFTER))
    if before.num_rows != after.num_rows:
        return rows  # half of a change is missing, which `pair_images` reports
    crossing = pc.not_equal(_mask_true(before, images.MATCH), _mask_true(after, images.MATCH))
    return pa.concat_tables([single, before.filter(crossing), after.filter(crossing)])


def _sort_images(rows: pa.Table, updates: pa.ChunkedArray, image: int) -> pa.Table:
    selected = rows.filter(pc.and_(updates, pc.equal(rows[images.IMAGE], image)))
    return selected.sort_by([(VERSION, "ascending"), (images.ORDINAL, "ascending")])


def _mask_true(rows: pa.Table, column: str) -> pa.ChunkedArray:
    return pc.fill_null(rows[column], fill_value=False)
