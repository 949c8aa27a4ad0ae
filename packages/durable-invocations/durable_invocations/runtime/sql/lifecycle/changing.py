"""Invocations that have not begun, when their handler becomes exclusive or shared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from durable_invocations.runtime.sql.lifecycle import inbox
from durable_invocations.runtime.sql.services import ROLES
from durable_invocations.runtime.sql.tables import INVOCATIONS, INVOCATIONS_TABLE, Role
from durable_invocations.runtime.sql.transaction import UnitOfWork
from durable_invocations.runtime.store.deployments import RegisteredService
from durable_invocations.runtime.store.views import Status

AT_ONCE = 1_000
"""The most invocations in a statement."""

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


def update_roles(
    work: UnitOfWork,
    previous: Mapping[str, RegisteredService],
    services: Sequence[RegisteredService],
) -> None:
    """Give invocations that have not begun the roles of their new handlers."""
    for service in services:
        old_service = previous.get(service.name)
        for handler in service.handlers if old_service else ():
            old_handler = old_service.handler(handler.name) if old_service else None
            if (old_handler is None or old_handler.kind is not handler.kind) and ROLES[
                handler.kind
            ] in _OTHER:
                _update_role(work, service.name, handler.name, ROLES[handler.kind])


def _update_role(work: UnitOfWork, service: str, handler: str, role: Role) -> None:
    parameters = {"of": service, "at": handler, "was": int(_OTHER[role])}
    rows = work.connection.execute(_WAITING, parameters).all()
    for begin in range(0, len(rows), AT_ONCE):
        batch = rows[begin : begin + AT_ONCE]
        work.connection.execute(_CHANGE, [_build_change(row, role) for row in batch])
        keys = [(row.number, (row.service, row.key)) for row in batch if not _is_scheduled(row)]
        if role is Role.SHARED:
            inbox.leave(work, keys)
            work.ready = True
        elif keys:
            inbox.add_arrivals(work, keys)
            inbox.promote(work, {key for _, key in keys})


def _build_change(row: sa.Row[Any], role: Role) -> dict[str, int]:
    arrived = Status.INBOX if role is Role.EXCLUSIVE else Status.READY
    status = row.status if _is_scheduled(row) else int(arrived)
    return {"changing": row.number, "becomes": int(role), "stands": status}


def _is_scheduled(row: sa.Row[Any]) -> bool:
    return bool(row.status == Status.SCHEDULED)
