"""Suspends invocations whose handlers wait, or makes them ready at once."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from durable_invocations.runtime.sql.lifecycle.completing import AT_ONCE
from durable_invocations.runtime.sql.lifecycle.stopping import deliver_cancellation
from durable_invocations.runtime.sql.tables import INVOCATIONS, INVOCATIONS_TABLE, JOURNAL
from durable_invocations.runtime.sql.transaction import (
    FENCED,
    VIOLATION,
    UnitOfWork,
    is_fenced,
)
from durable_invocations.runtime.store.operations import Suspend
from durable_invocations.runtime.store.outcomes import ChangeOutcome, OperationRefusal
from durable_invocations.runtime.store.views import Status

_ENTRIES = sa.select(JOURNAL.invocation, JOURNAL.idx, JOURNAL.open).where(
    JOURNAL.invocation.in_(sa.bindparam("numbers", expanding=True)),
    JOURNAL.idx.in_(sa.bindparam("indexes", expanding=True)),
)
_LEAVE = (
    sa.update(INVOCATIONS_TABLE)
    .where(INVOCATIONS.number == sa.bindparam("left"))
    .values(
        status=sa.bindparam("becomes"),
        waits=sa.bindparam("for"),
        owner=None,
        next_at=None,
        changed=sa.bindparam("now"),
    )
)

Heads = Mapping[str, sa.Row[Any]]
Open = Mapping[int, Mapping[int, bool]]
"""By invocation and index, whether the entry waits for its completion."""


def suspend(
    work: UnitOfWork, operations: Sequence[Suspend]
) -> list[ChangeOutcome | OperationRefusal]:
    """See the operation; several at once."""
    all_heads = work.read_heads(operation.id for operation in operations)
    heads = dict(all_heads)
    owned = [
        operation
        for operation in operations
        if not is_fenced(heads.get(operation.id), operation.fence)
    ]
    entries = _read_entries(work, heads, owned)
    rows: list[dict[str, Any]] = []
    outcomes = [_suspend_one(work, heads, entries, operation, rows) for operation in operations]
    if rows:
        work.connection.execute(_LEAVE, rows)
    numbers = {row["left"] for row in rows}
    for head in all_heads.values():
        if head.canceled and head.number in numbers:
            deliver_cancellation(work, head)
    return outcomes


def _suspend_one(
    work: UnitOfWork,
    heads: dict[str, sa.Row[Any]],
    entries: Open,
    operation: Suspend,
    rows: list[dict[str, Any]],
) -> ChangeOutcome | OperationRefusal:
    head = heads.get(operation.id)
    if head is None or is_fenced(head, operation.fence):
        return FENCED
    open_by_index = entries.get(head.number, {})
    refusal = _find_refusal(head, open_by_index, operation)
    if refusal is not None:
        return refusal
    # Its runtime no longer drives it.
    del heads[operation.id]
    indexes = sorted(set(operation.indexes))
    waits = all(open_by_index[index] for index in indexes)
    work.ready = work.ready or not waits
    status = Status.SUSPENDED if waits else Status.READY
    row = {"left": head.number, "becomes": int(status), "now": work.now}
    rows.append(row | {"for": json.dumps(indexes) if waits else None})
    return ChangeOutcome()


def _find_refusal(
    head: sa.Row[Any], open_by_index: Mapping[int, bool], operation: Suspend
) -> OperationRefusal | None:
    if operation.length not in {None, head.length}:
        problem = f"entry {head.length}, which came before, is not in its journal"
        return OperationRefusal(
            code=VIOLATION, message=f"{operation.id} cannot suspend: {problem}."
        )
    missing = [index for index in sorted(operation.indexes) if index not in open_by_index]
    if missing or not operation.indexes:
        problem = f"entry {missing[0]}, which is not in its journal" if missing else "no entry"
        return OperationRefusal(
            code=VIOLATION, message=f"{operation.id} suspends to wait for {problem}."
        )
    return None


def _read_entries(work: UnitOfWork, heads: Heads, operations: Sequence[Suspend]) -> Open:
    """The awaited entries, and perhaps others of the same indexes."""
    places = [
        (heads[operation.id].number, index)
        for operation in operations
        for index in operation.indexes
    ]
    entries: dict[int, dict[int, bool]] = defaultdict(dict)
    for start in range(0, len(places), AT_ONCE):
        batch = places[start : start + AT_ONCE]
        columns = {
            "numbers": {number for number, _ in batch},
            "indexes": {index for _, index in batch},
        }
        rows = work.connection.execute(
            _ENTRIES, {name: sorted(values) for name, values in columns.items()}
        )
        for row in rows:
            entries[row.invocation][row.idx] = row.open
    return entries
