"""The image rows that a trigger looks at, out of all that a scan hands on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from iscp_dagster.clickhouse.write.tenantwise import named, parted
from iscp_dagster.events.changes import (
    AFTER,
    BEFORE,
    CHANGE,
    FIELDS,
    IMAGE,
    MATCH,
    ORDINAL,
    SYSTEM,
    UNMATCH,
    VERSION,
    Operation,
    Stamped,
    changes_of,
    in_order,
)
from iscp_dagster.events.hysteresis import Condition
from iscp_dagster.model.consumers import DataRetriever
from iscp_dagster.model.declared.tables import DEFAULT_TENANT

OWNER = "_owner"
"""Holds the tenant as partitions name it, whatever the type of its column."""


def its_own(columns: Sequence[str]) -> list[str]:
    """Of an image row's columns, those of the view."""
    return [name for name in columns if name not in SYSTEM]


def gathered(
    retriever: DataRetriever, tenant: str | None, condition: Condition
) -> Mapping[str, pa.Table]:
    """By tenant, the image rows that may fire or move the active set; reads to the end.

    All of them are held in memory, since an update's images may come in different batches.
    """
    found: list[pa.Table] = []
    while (rows := retriever.marked()) is not None:
        some = rows.filter(_may_be_active(rows, condition))
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
    kept = pc.not_equal(rows[CHANGE], int(Operation.BASE))
    active = _is(rows, MATCH)
    if condition.unmatch:
        active = pc.or_(active, pc.invert(_is(rows, UNMATCH)))
    return pc.or_(kept, active)


def stamped(
    rows: pa.Table, tenant: str | None, keys: Sequence[str], condition: Condition
) -> list[Stamped]:
    """One tenant's changes in order; `tenant` is None for a table without a tenant column.

    Without hysteresis, only those that begin or cease to match. Raises HalfChangeError.
    """
    rows = rows if condition.unmatch else _transitions(rows)
    if FIELDS not in rows.column_names:
        rows = rows.append_column(FIELDS, pa.nulls(rows.num_rows))
    if tenant is not None:
        rows = rows.append_column(OWNER, pa.repeat(pa.scalar(tenant), rows.num_rows))
    owner = None if tenant is None else OWNER
    return in_order(changes_of(rows.to_pylist(), keys=keys, tenant=owner))


def _transitions(rows: pa.Table) -> pa.Table:
    """The rows without changes that match neither before nor after, or both."""
    updates = pc.equal(rows[CHANGE], int(Operation.UPDATE))
    single = rows.filter(pc.and_(pc.invert(updates), _is(rows, MATCH)))
    before, after = (_ordered(rows, updates, image) for image in (BEFORE, AFTER))
    if before.num_rows != after.num_rows:
        return rows  # half of a change is missing, which is told where it is paired
    crossing = pc.not_equal(_is(before, MATCH), _is(after, MATCH))
    return pa.concat_tables([single, before.filter(crossing), after.filter(crossing)])


def _ordered(rows: pa.Table, updates: pa.ChunkedArray, image: int) -> pa.Table:
    found = rows.filter(pc.and_(updates, pc.equal(rows[IMAGE], image)))
    return found.sort_by([(VERSION, "ascending"), (ORDINAL, "ascending")])


def _is(rows: pa.Table, column: str) -> pa.ChunkedArray:
    return pc.fill_null(rows[column], fill_value=False)
