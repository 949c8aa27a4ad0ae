"""What a runtime has to do, and is told of what others did."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import sqlalchemy as sa

from durable_invocations.protocol.results import Result
from durable_invocations.runtime.sql.lives.claiming import is_claimable
from durable_invocations.runtime.sql.lives.firing import next_due
from durable_invocations.runtime.sql.packing import result
from durable_invocations.runtime.sql.tables import (
    INVOCATION_NEWS_TABLE,
    INVOCATIONS,
    INVOCATIONS_TABLE,
    JOURNAL,
    JOURNAL_TABLE,
    NEWS,
)
from durable_invocations.runtime.sql.work import Work
from durable_invocations.runtime.store.operations import TakeNews
from durable_invocations.runtime.store.outcomes import News
from durable_invocations.runtime.store.views import Look

_SOME: sa.Select[Any] = sa.select(sa.literal_column("1"))
_TOLD = _SOME.select_from(INVOCATION_NEWS_TABLE).where(NEWS.owner == sa.bindparam("who")).limit(1)
_RESULTS = sa.select(INVOCATIONS.id, INVOCATIONS.result).where(
    INVOCATIONS.id.in_(sa.bindparam("ids", expanding=True))
)
_NEWS = (
    sa.select(NEWS.number, INVOCATIONS.id, NEWS.fence, NEWS.idx, JOURNAL.result)
    .select_from(INVOCATION_NEWS_TABLE)
    .join(INVOCATIONS_TABLE, INVOCATIONS.number == NEWS.invocation)
    .outerjoin(
        JOURNAL_TABLE, sa.and_(JOURNAL.invocation == NEWS.invocation, JOURNAL.idx == NEWS.idx)
    )
    .where(NEWS.owner == sa.bindparam("who"))
    .order_by(NEWS.number)
)
_GONE = sa.delete(INVOCATION_NEWS_TABLE).where(NEWS.owner == sa.bindparam("who"))
AT_ONCE = 10_000
"""Ids for a statement."""


def look(connection: sa.Connection, owner: str, watched: Collection[str]) -> Look:
    """See the store."""
    ended = results(connection, watched)
    return Look(
        ready=is_claimable(connection),
        news=connection.scalar(_TOLD, {"who": owner}) is not None,
        next_at=next_due(connection),
        ended={id_: each for id_, each in ended.items() if each is not None},
        gone=sorted(set(watched) - set(ended)),
    )


def results(connection: sa.Connection, ids: Collection[str]) -> dict[str, Result | None]:
    """See the store."""
    chosen = list(ids)
    found: dict[str, Result | None] = {}
    for start in range(0, len(chosen), AT_ONCE):
        rows = connection.execute(_RESULTS, {"ids": chosen[start : start + AT_ONCE]})
        found |= {row.id: result(row.result) for row in rows}
    return found


def take(work: Work, asked: TakeNews) -> tuple[News, ...]:
    """See the operation."""
    rows = work.connection.execute(_NEWS, {"who": asked.owner}).all()
    if rows:
        work.connection.execute(_GONE, {"who": asked.owner})
    return tuple(
        News(id=row.id, fence=row.fence, index=row.idx, result=result(row.result)) for row in rows
    )
