"""Completing entries, and what that means for the invocation that waits for them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import sqlalchemy as sa

from durable_invocations.protocol.results import Result
from durable_invocations.runtime.sql.packing import fields
from durable_invocations.runtime.sql.tables import (
    INVOCATION_NEWS_TABLE,
    INVOCATIONS,
    INVOCATIONS_TABLE,
    JOURNAL,
    JOURNAL_TABLE,
    WAITS,
    WAITS_TABLE,
)
from durable_invocations.runtime.sql.work import Work
from durable_invocations.runtime.store.outcomes import News
from durable_invocations.runtime.store.views import Status

Place = tuple[int, int]
"""An entry: its invocation's number, and its index."""

AT_ONCE = 5_000
"""Entries for a statement; SQLite takes 32,766 parameters."""

# SQLite finds no pairs by an index; some that match otherwise are left out afterwards.
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


def complete(work: Work, results: Mapping[Place, Result]) -> set[Place]:
    """Complete those of the entries that are open; returns them.

    An invocation that is suspended on one becomes ready; who drives one is told.
    """
    done: set[Place] = set()
    places = list(results)
    for start in range(0, len(places), AT_ONCE):
        some = places[start : start + AT_ONCE]
        columns = {"numbers": {number for number, _ in some}, "indexes": {each for _, each in some}}
        rows = work.connection.execute(_OPEN, {name: sorted(e) for name, e in columns.items()})
        found = {(number, index) for number, index in rows} & set(some)
        if found:
            _complete(work, {place: results[place] for place in sorted(found)})
        done |= found
    return done


def _complete(work: Work, results: Mapping[Place, Result]) -> None:
    rows = [
        {"number": number, "at": index, "the_result": fields(result), "now": work.now}
        for (number, index), result in results.items()
    ]
    work.connection.execute(_COMPLETE, rows)
    _tell(work, results)


def complete_waiting(work: Work, results: Mapping[str, Result]) -> None:
    """Complete the entries that wait for these targets: ends of invocations, or promises."""
    targets = {"targets": list(results)}
    rows = work.connection.execute(_WAITING, targets).all()
    if rows:
        work.connection.execute(_MET, targets)
        complete(work, {(row.invocation, row.idx): results[row.target] for row in rows})


def wait(work: Work, target: str, place: Place) -> None:
    """Have the entry completed when the target is."""
    row = {"target": target, "invocation": place[0], "idx": place[1]}
    work.connection.execute(sa.insert(WAITS_TABLE), row)


def take_away(work: Work, head: sa.Row[Any]) -> None:
    """Tell who drives the invocation that it was ended or paused by somebody else."""
    if head.status == Status.RUNNING:
        _news(work, [(head, None, None)])


def _tell(work: Work, results: Mapping[Place, Result]) -> None:
    heads = work.numbered({number for number, _ in results})
    waits = {
        number: set(json.loads(head.waits))
        for number, head in heads.items()
        if head.status == Status.SUSPENDED
    }
    woken = {number for number, index in results if index in waits.get(number, ())}
    if woken:
        work.connection.execute(_WAKE, {"numbers": sorted(woken), "now": work.now})
        work.ready = True
    driven = {number: head for number, head in heads.items() if head.status == Status.RUNNING}
    _news(work, [(driven[at[0]], at[1], each) for at, each in results.items() if at[0] in driven])


def _news(work: Work, told: Iterable[tuple[sa.Row[Any], int | None, Result | None]]) -> None:
    rows = []
    for head, index, result in told:
        if head.owner == work.owner:
            work.news.append(News(id=head.id, fence=head.fence, index=index, result=result))
        else:
            rows.append(
                {"owner": head.owner, "invocation": head.number, "fence": head.fence, "idx": index}
            )
    if rows:
        work.connection.execute(sa.insert(INVOCATION_NEWS_TABLE), rows)
