"""What a runtime has to do, and what others did to its invocations."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import sqlalchemy as sa

from durable_invocations.protocol.results import Result
from durable_invocations.runtime.sql.lifecycle.claiming import is_claimable
from durable_invocations.runtime.sql.lifecycle.firing import find_next_due
from durable_invocations.runtime.sql.packing import unpack_result
from durable_invocations.runtime.sql.tables import (
    INVOCATION_NEWS_TABLE,
    INVOCATIONS,
    INVOCATIONS_TABLE,
    JOURNAL,
    JOURNAL_TABLE,
    NEWS,
)
from durable_invocations.runtime.sql.transaction import UnitOfWork
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
"""The most ids in a statement."""


def look(connection: sa.Connection, owner: str, watched: Collection[str]) -> Look:
    """See the store."""
    ended = read_results(connection, watched)
    return Look(
        ready=is_claimable(connection),
        news=connection.scalar(_TOLD, {"who": owner}) is not None,
        next_at=find_next_due(connection),
        ended={id_: outcome for id_, outcome in ended.items() if outcome is not None},
        gone=sorted(set(watched) - set(ended)),
    )


def read_results(connection: sa.Connection, ids: Collection[str]) -> dict[str, Result | None]:
    """See the store."""
    ordered = list(ids)
    results: dict[str, Result | None] = {}
    for start in range(0, len(ordered), AT_ONCE):
        rows = connection.execute(_RESULTS, {"ids": ordered[start : start + AT_ONCE]})
        results |= {row.id: unpack_result(row.result) for row in rows}
    return results


def take(work: UnitOfWork, operation: TakeNews) -> tuple[News, ...]:
    """See the operation."""
    rows = work.connection.execute(_NEWS, {"who": operation.owner}).all()
    if rows:
        work.connection.execute(_GONE, {"who": operation.owner})
    return tuple(
        News(id=row.id, fence=row.fence, index=row.idx, result=unpack_result(row.result))
        for row in rows
    )
