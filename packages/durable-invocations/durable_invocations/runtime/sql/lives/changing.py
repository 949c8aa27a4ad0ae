"""Invocations that wait to begin at a handler which is exclusive now, or no longer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from durable_invocations.runtime.sql.lives import inbox
from durable_invocations.runtime.sql.services import ROLES
from durable_invocations.runtime.sql.tables import INVOCATIONS, INVOCATIONS_TABLE, Role
from durable_invocations.runtime.sql.work import Work
from durable_invocations.runtime.store.deployments import Service
from durable_invocations.runtime.store.views import Status

AT_ONCE = 1_000
"""Invocations for a statement."""

_OTHER = {Role.SHARED: Role.EXCLUSIVE, Role.EXCLUSIVE: Role.SHARED}
_WAITING = (
    sa.select(*(INVOCATIONS[name] for name in ("number", "service", "key", "status")))
    .where(INVOCATIONS.service == sa.bindparam("of"), INVOCATIONS.handler == sa.bindparam("at"))
    .where(INVOCATIONS.fence == 0, INVOCATIONS.status != int(Status.COMPLETED))
    .where(INVOCATIONS.role == sa.bindparam("was"), INVOCATIONS.key != "")
    .order_by(INVOCATIONS.number)
)
_CHANGE = (
    sa.update(INVOCATIONS_TABLE)
    .where(INVOCATIONS.number == sa.bindparam("changing"))
    .values(role=sa.bindparam("becomes"), status=sa.bindparam("stands"))
)


def follow(work: Work, known: Mapping[str, Service], services: Sequence[Service]) -> None:
    """Have what has not begun treat its key as the handlers do that take the known ones' place."""
    for each in services:
        before = known.get(each.name)
        for handler in each.handlers if before else ():
            was = before.handler(handler.name) if before else None
            if (was is None or was.kind is not handler.kind) and ROLES[handler.kind] in _OTHER:
                _become(work, each.name, handler.name, ROLES[handler.kind])


def _become(work: Work, service: str, handler: str, role: Role) -> None:
    asked = {"of": service, "at": handler, "was": int(_OTHER[role])}
    rows = work.connection.execute(_WAITING, asked).all()
    for begin in range(0, len(rows), AT_ONCE):
        some = rows[begin : begin + AT_ONCE]
        work.connection.execute(_CHANGE, [_changed(row, role) for row in some])
        keys = [(row.number, (row.service, row.key)) for row in some if not _later(row)]
        if role is Role.SHARED:
            inbox.leave(work, keys)
            work.ready = True
        elif keys:
            inbox.arrive(work, keys)
            inbox.promote(work, {key for _, key in keys})


def _changed(row: sa.Row[Any], role: Role) -> dict[str, int]:
    arrived = Status.INBOX if role is Role.EXCLUSIVE else Status.READY
    stands = row.status if _later(row) else int(arrived)
    return {"changing": row.number, "becomes": int(role), "stands": stands}


def _later(row: sa.Row[Any]) -> bool:
    return bool(row.status == Status.SCHEDULED)
