"""The inbox: the first exclusive invocation of a key holds the key until it ends."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import sqlalchemy as sa

from durable_invocations.runtime.sql.tables import (
    INBOX,
    INBOX_TABLE,
    INVOCATIONS,
    INVOCATIONS_TABLE,
)
from durable_invocations.runtime.sql.transaction import UnitOfWork
from durable_invocations.runtime.store.views import Status

Key = tuple[str, str]
"""A service and one of its keys."""

_KEY = sa.tuple_(INBOX.service, INBOX.key)
_TAKEN = sa.select(INBOX.service, INBOX.key).distinct()
_TAKEN = _TAKEN.where(_KEY.in_(sa.bindparam("keys", expanding=True)))
_LEAVE = sa.delete(INBOX_TABLE).where(INBOX.invocation.in_(sa.bindparam("numbers", expanding=True)))
_FIRST = (
    sa.select(sa.func.min(INBOX.number))
    .where(_KEY.in_(sa.bindparam("keys", expanding=True)))
    .group_by(INBOX.service, INBOX.key)
)
_HOLDERS = sa.select(INBOX.invocation).where(INBOX.number.in_(_FIRST))
_PROMOTE = (
    sa.update(INVOCATIONS_TABLE)
    .where(INVOCATIONS.number.in_(sa.bindparam("numbers", expanding=True)))
    .where(INVOCATIONS.status == int(Status.INBOX))
    .values(status=int(Status.READY), changed=sa.bindparam("now"))
)


def find_taken(work: UnitOfWork, keys: Collection[Key]) -> set[Key]:
    """The keys that an invocation holds."""
    if not keys:
        return set()
    rows = work.connection.execute(_TAKEN, {"keys": sorted(set(keys))})
    return {(service, key) for service, key in rows}


def add_arrivals(work: UnitOfWork, arrivals: Sequence[tuple[int, Key]]) -> None:
    """Add invocations (by number) after others of their keys, in this order."""
    if arrivals:
        rows = [
            {"invocation": number, "service": service, "key": key}
            for number, (service, key) in arrivals
        ]
        work.connection.execute(sa.insert(INBOX_TABLE), rows)


def leave(work: UnitOfWork, leaving: Sequence[tuple[int, Key]]) -> None:
    """Remove invocations that ended or became shared; make the next ones of their keys ready."""
    if not leaving:
        return
    work.connection.execute(_LEAVE, {"numbers": [number for number, _ in leaving]})
    promote(work, {key for _, key in leaving})


def promote(work: UnitOfWork, keys: Collection[Key]) -> None:
    """Make the first invocation of each key ready, if it waits."""
    holders = list(work.connection.scalars(_HOLDERS, {"keys": sorted(keys)}))
    if holders:
        parameters = {"numbers": holders, "now": work.now}
        work.ready |= work.connection.execute(_PROMOTE, parameters).rowcount > 0
