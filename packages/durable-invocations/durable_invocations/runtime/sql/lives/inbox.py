"""The inbox: of the exclusive invocations of a key, the first has it until it ends."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import sqlalchemy as sa

from durable_invocations.runtime.sql.tables import (
    INBOX,
    INBOX_TABLE,
    INVOCATIONS,
    INVOCATIONS_TABLE,
)
from durable_invocations.runtime.sql.work import Work
from durable_invocations.runtime.store.views import Status

Key = tuple[str, str]
"""A service, and a key of it."""

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


def taken(work: Work, keys: Collection[Key]) -> set[Key]:
    """Those of the keys that an invocation has."""
    if not keys:
        return set()
    rows = work.connection.execute(_TAKEN, {"keys": sorted(set(keys))})
    return {(service, key) for service, key in rows}


def arrive(work: Work, arrivals: Sequence[tuple[int, Key]]) -> None:
    """Put invocations (by number) behind others of their keys, in this order."""
    if arrivals:
        rows = [
            {"invocation": number, "service": service, "key": key}
            for number, (service, key) in arrivals
        ]
        work.connection.execute(sa.insert(INBOX_TABLE), rows)


def leave(work: Work, leaving: Sequence[tuple[int, Key]]) -> None:
    """Take invocations that ended out of it, and make the next ones of their keys ready."""
    if not leaving:
        return
    work.connection.execute(_LEAVE, {"numbers": [number for number, _ in leaving]})
    promote(work, {key for _, key in leaving})


def promote(work: Work, keys: Collection[Key]) -> None:
    """Make the first invocation of each key ready, if it waits."""
    holders = list(work.connection.scalars(_HOLDERS, {"keys": sorted(keys)}))
    if holders:
        promoted = {"numbers": holders, "now": work.now}
        work.ready |= work.connection.execute(_PROMOTE, promoted).rowcount > 0
