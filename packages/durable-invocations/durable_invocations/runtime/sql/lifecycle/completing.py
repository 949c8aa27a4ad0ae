"""Completes entries, and wakes the invocations that wait for them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import sqlalchemy as sa

from durable_invocations.protocol.results import Result
from durable_invocations.runtime.sql.packing import pack_result
from durable_invocations.runtime.sql.tables import (
    INVOCATION_NEWS_TABLE,
    INVOCATIONS,
    INVOCATIONS_TABLE,
    JOURNAL,
    JOURNAL_TABLE,
    WAITS,
    WAITS_TABLE,
)
from durable_invocations.runtime.sql.transaction import UnitOfWork
from durable_invocations.runtime.store.outcomes import News
from durable_invocations.runtime.store.views import Status

EntryId = tuple[int, int]
"""An entry: its invocation's number, and its index."""

AT_ONCE = 5_000
"""The most entries in a statement; SQLite takes 32,766 parameters."""

# SQLite cannot find pairs by an index, so wrong pairs are removed afterwards.
_OPEN = sa.select(JOURNAL.invocation, JOURNAL.idx).where(
    JOURNAL.invocation.in_(sa.bindparam("numbers", expanding=True)),
    JOURNAL.idx.in_(sa.bindparam("indexes", expanding=True)),
    JOURNAL.open,
)
_COMPLETE = (
    sa.update(JOURNAL_TABLE)
    .where(JOURNAL.invocation == sa.bindparam("number"), JOURNAL.idx == sa.bindparam("at"))
    .values(open=False, result=sa.bindparam("the_result"), completed_at=sa.bindparam("now"))
)
_WAKE = (
    sa.update(INVOCATIONS_TABLE)
    .where(INVOCATIONS.number.in_(sa.bindparam("numbers", expanding=True)))
    .values(status=int(Status.READY), waits=None, changed=sa.bindparam("now"))
)
_WAITING = sa.select(WAITS.target, WAITS.invocation, WAITS.idx).where(
    WAITS.target.in_(sa.bindparam("targets", expanding=True))
)
_MET = sa.delete(WAITS_TABLE).where(WAITS.target.in_(sa.bindparam("targets", expanding=True)))


def complete(work: UnitOfWork, results: Mapping[EntryId, Result]) -> set[EntryId]:
    """Complete the open ones of these entries; returns them.

    Invocations that are suspended on them become ready; the owners of running ones are notified.
    """
    completed: set[EntryId] = set()
    entry_ids = list(results)
    for start in range(0, len(entry_ids), AT_ONCE):
        batch = entry_ids[start : start + AT_ONCE]
        columns = {
            "numbers": {number for number, _ in batch},
            "indexes": {index for _, index in batch},
        }
        rows = work.connection.execute(
            _OPEN, {name: sorted(values) for name, values in columns.items()}
        )
        open_entries = {(number, index) for number, index in rows} & set(batch)
        if open_entries:
            _write_results(work, {entry_id: results[entry_id] for entry_id in sorted(open_entries)})
        completed |= open_entries
    return completed


def _write_results(work: UnitOfWork, results: Mapping[EntryId, Result]) -> None:
    rows = [
        {"number": number, "at": index, "the_result": pack_result(result), "now": work.now}
        for (number, index), result in results.items()
    ]
    work.connection.execute(_COMPLETE, rows)
    _notify_invocations(work, results)


def complete_waiting(work: UnitOfWork, results: Mapping[str, Result]) -> None:
    """Complete the entries that wait for these targets: invocations or promises."""
    targets = {"targets": list(results)}
    rows = work.connection.execute(_WAITING, targets).all()
    if rows:
        work.connection.execute(_MET, targets)
        complete(work, {(row.invocation, row.idx): results[row.target] for row in rows})


def register_wait(work: UnitOfWork, target: str, entry_id: EntryId) -> None:
    """Let the entry be completed when the target is."""
    row = {"target": target, "invocation": entry_id[0], "idx": entry_id[1]}
    work.connection.execute(sa.insert(WAITS_TABLE), row)


def notify_taken_away(work: UnitOfWork, head: sa.Row[Any]) -> None:
    """Notify the invocation's owner that others ended or paused it."""
    if head.status == Status.RUNNING:
        _record_news(work, [(head, None, None)])


def _notify_invocations(work: UnitOfWork, results: Mapping[EntryId, Result]) -> None:
    heads = work.read_heads_by_number({number for number, _ in results})
    waits = {
        number: set(json.loads(head.waits))
        for number, head in heads.items()
        if head.status == Status.SUSPENDED
    }
    woken = {number for number, index in results if index in waits.get(number, ())}
    if woken:
        work.connection.execute(_WAKE, {"numbers": sorted(woken), "now": work.now})
        work.ready = True
    running = {number: head for number, head in heads.items() if head.status == Status.RUNNING}
    _record_news(
        work,
        [
            (running[entry_id[0]], entry_id[1], result)
            for entry_id, result in results.items()
            if entry_id[0] in running
        ],
    )


def _record_news(
    work: UnitOfWork, news: Iterable[tuple[sa.Row[Any], int | None, Result | None]]
) -> None:
    rows = []
    for head, index, result in news:
        if head.owner == work.owner:
            work.news.append(News(id=head.id, fence=head.fence, index=index, result=result))
        else:
            rows.append(
                {"owner": head.owner, "invocation": head.number, "fence": head.fence, "idx": index}
            )
    if rows:
        work.connection.execute(sa.insert(INVOCATION_NEWS_TABLE), rows)
