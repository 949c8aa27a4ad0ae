"""Attempts whose handlers wait: an invocation is suspended, or ready at once."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from durable_invocations.runtime.sql.lives.completing import AT_ONCE
from durable_invocations.runtime.sql.lives.stopping import deliver
from durable_invocations.runtime.sql.tables import INVOCATIONS, INVOCATIONS_TABLE, JOURNAL
from durable_invocations.runtime.sql.work import FENCED, VIOLATION, Work, fenced
from durable_invocations.runtime.store.operations import Suspend
from durable_invocations.runtime.store.outcomes import Done, Refused
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


def suspend(work: Work, asked: Sequence[Suspend]) -> list[Done | Refused]:
    """See the operation; several at once."""
    found = work.heads(each.id for each in asked)
    heads = dict(found)
    mine = [each for each in asked if not fenced(heads.get(each.id), each.fence)]
    entries = _entries(work, heads, mine)
    rows: list[dict[str, Any]] = []
    outcomes = [_outcome(work, heads, entries, each, rows) for each in asked]
    if rows:
        work.connection.execute(_LEAVE, rows)
    left = {row["left"] for row in rows}
    for head in found.values():
        if head.canceled and head.number in left:
            deliver(work, head)
    return outcomes


def _outcome(
    work: Work,
    heads: dict[str, sa.Row[Any]],
    entries: Open,
    asked: Suspend,
    rows: list[dict[str, Any]],
) -> Done | Refused:
    head = heads.get(asked.id)
    if head is None or fenced(head, asked.fence):
        return FENCED
    known = entries.get(head.number, {})
    refused = _refusal(head, known, asked)
    if refused is not None:
        return refused
    # Whoever left it does not drive it any more.
    del heads[asked.id]
    indexes = sorted(set(asked.indexes))
    waits = all(known[index] for index in indexes)
    work.ready = work.ready or not waits
    status = Status.SUSPENDED if waits else Status.READY
    row = {"left": head.number, "becomes": int(status), "now": work.now}
    rows.append(row | {"for": json.dumps(indexes) if waits else None})
    return Done()


def _refusal(head: sa.Row[Any], known: Mapping[int, bool], asked: Suspend) -> Refused | None:
    if asked.length not in {None, head.length}:
        what = f"entry {head.length}, which came before, is not in its journal"
        return Refused(code=VIOLATION, message=f"{asked.id} cannot suspend: {what}.")
    missing = [index for index in sorted(asked.indexes) if index not in known]
    if missing or not asked.indexes:
        what = f"entry {missing[0]}, which is not in its journal" if missing else "no entry"
        return Refused(code=VIOLATION, message=f"{asked.id} suspends to wait for {what}.")
    return None


def _entries(work: Work, heads: Heads, asked: Sequence[Suspend]) -> Open:
    """The entries that are waited for, and perhaps others of the same indexes."""
    places = [(heads[each.id].number, index) for each in asked for index in each.indexes]
    found: dict[int, dict[int, bool]] = defaultdict(dict)
    for start in range(0, len(places), AT_ONCE):
        some = places[start : start + AT_ONCE]
        columns = {"numbers": {number for number, _ in some}, "indexes": {each for _, each in some}}
        rows = work.connection.execute(_ENTRIES, {name: sorted(e) for name, e in columns.items()})
        for row in rows:
            found[row.invocation][row.idx] = row.open
    return found
