"""Lanes: of the exclusive invocations of a key, the first has it until it ends."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import sqlalchemy as sa

from iscp_dagster.invocations.runtime.sql.tables import (
    INBOX,
    INVOCATIONS,
    ISCP_INBOX,
    ISCP_INVOCATIONS,
)
from iscp_dagster.invocations.runtime.sql.work import Work
from iscp_dagster.invocations.runtime.store.views import Status

Lane = tuple[str, str]
"""A service and a key."""

_LANE = sa.tuple_(INBOX.service, INBOX.key)
_TAKEN = sa.select(INBOX.service, INBOX.key).distinct()
_TAKEN = _TAKEN.where(_LANE.in_(sa.bindparam("lanes", expanding=True)))
_LEAVE = sa.delete(ISCP_INBOX).where(INBOX.invocation.in_(sa.bindparam("numbers", expanding=True)))
_FIRST = (
    sa.select(sa.func.min(INBOX.number))
    .where(_LANE.in_(sa.bindparam("lanes", expanding=True)))
    .group_by(INBOX.service, INBOX.key)
)
_HOLDERS = sa.select(INBOX.invocation).where(INBOX.number.in_(_FIRST))
_PROMOTE = (
    sa.update(ISCP_INVOCATIONS)
    .where(INVOCATIONS.number.in_(sa.bindparam("numbers", expanding=True)))
    .where(INVOCATIONS.status == int(Status.INBOX))
    .values(status=int(Status.READY), changed=sa.bindparam("now"))
)


def taken(work: Work, lanes: Collection[Lane]) -> set[Lane]:
    """Those of the lanes in which an invocation is."""
    if not lanes:
        return set()
    rows = work.connection.execute(_TAKEN, {"lanes": sorted(set(lanes))})
    return {(service, key) for service, key in rows}


def arrive(work: Work, arrivals: Sequence[tuple[int, Lane]]) -> None:
    """Put invocations (by number) into their lanes, in this order."""
    if arrivals:
        rows = [
            {"invocation": number, "service": service, "key": key}
            for number, (service, key) in arrivals
        ]
        work.connection.execute(sa.insert(ISCP_INBOX), rows)


def leave(work: Work, leaving: Sequence[tuple[int, Lane]]) -> None:
    """Take invocations that ended out of their lanes, and make the next ones ready."""
    if not leaving:
        return
    work.connection.execute(_LEAVE, {"numbers": [number for number, _ in leaving]})
    lanes = sorted({lane for _, lane in leaving})
    holders = list(work.connection.scalars(_HOLDERS, {"lanes": lanes}))
    if holders:
        promoted = {"numbers": holders, "now": work.now}
        work.ready |= work.connection.execute(_PROMOTE, promoted).rowcount > 0
