"""Service deployments and services: registered, looked up, forgotten."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import sqlalchemy as sa

from durable_invocations.runtime.sql.lives.changing import follow
from durable_invocations.runtime.sql.lives.stopping import kill_all
from durable_invocations.runtime.sql.services import pack_service, unpack_service
from durable_invocations.runtime.sql.tables import (
    DEPLOYMENTS,
    INVOCATIONS,
    INVOCATIONS_TABLE,
    SERVICE_DEPLOYMENTS_TABLE,
    SERVICES,
    SERVICES_TABLE,
)
from durable_invocations.runtime.sql.work import CONFLICT, Work
from durable_invocations.runtime.store.deployments import RegisteredService
from durable_invocations.runtime.store.operations import Register, Unregister
from durable_invocations.runtime.store.outcomes import Done, OperationRefusal, Registered
from durable_invocations.runtime.store.views import Status
from sql_transactions.given import insert_into


def register(work: Work, asked: Register) -> Registered | OperationRefusal:
    """See the operation."""
    known = _read_known(work, asked.services)
    if not asked.force and (refused := _find_conflict(known, asked.services)):
        return refused
    given = asked.deployment
    same = sa.or_(DEPLOYMENTS.id == given.id, DEPLOYMENTS.url == given.url)
    there = set(work.connection.scalars(sa.select(DEPLOYMENTS.id).where(same)))
    id_ = given.id if given.id in there else next(iter(there), given.id)
    for other in there - {id_}:
        _join_deployments(work, other, id_)
    _upsert_row(
        work,
        SERVICE_DEPLOYMENTS_TABLE,
        {"id": id_, "url": given.url, "mode": given.mode.value, "registered": work.now}
        | {"http": given.http, "least": given.versions[0], "greatest": given.versions[1]},
    )
    work.connection.execute(sa.delete(SERVICES_TABLE).where(SERVICES.deployment_id == id_))
    for each in asked.services:
        _upsert_row(work, SERVICES_TABLE, pack_service(each, id_))
    follow(work, known, tuple(asked.services))
    work.services.clear()
    work.ready = True
    return Registered(id=id_, is_new=not there)


def unregister(work: Work, asked: Unregister) -> Done | OperationRefusal:
    """See the operation."""
    needing = _list_needing(work, asked.id)
    if needing and not asked.force:
        return OperationRefusal(
            code=CONFLICT,
            message=f"The deployment {asked.id!r} is needed by invocations that have not ended "
            f"({len(needing):,}, such as {needing[0]}); let them end, or force it to kill them.",
        )
    kill_all(work, needing)
    work.connection.execute(sa.delete(SERVICES_TABLE).where(SERVICES.deployment_id == asked.id))
    gone = sa.delete(SERVICE_DEPLOYMENTS_TABLE).where(DEPLOYMENTS.id == asked.id)
    work.services.clear()
    return Done(changed=work.connection.execute(gone).rowcount > 0)


def _read_known(
    work: Work, services: Collection[RegisteredService]
) -> dict[str, RegisteredService]:
    """The services of these names as they were registered last."""
    named = sa.select(SERVICES_TABLE).where(SERVICES.name.in_([each.name for each in services]))
    return {row.name: unpack_service(row) for row in work.connection.execute(named)}


def _find_conflict(
    known: Mapping[str, RegisteredService], services: Collection[RegisteredService]
) -> OperationRefusal | None:
    for each in services:
        if each.name in known and known[each.name].kind is not each.kind:
            return OperationRefusal(
                code=CONFLICT,
                message=f"Service {each.name!r} is a {known[each.name].kind.value} of deployment "
                f"{known[each.name].deployment!r}, and would become a {each.kind.value}; "
                "use another name, or force it.",
            )
    return None


def _list_needing(work: Work, deployment: str) -> list[str]:
    """The invocations that have not ended and are, or would be, driven through the deployment."""
    of = sa.select(SERVICES.name).where(SERVICES.deployment_id == deployment)
    bound = sa.or_(
        INVOCATIONS.deployment_id == deployment,
        sa.and_(INVOCATIONS.deployment_id.is_(None), INVOCATIONS.service.in_(of)),
    )
    chosen = sa.select(INVOCATIONS.id).where(INVOCATIONS.status != int(Status.COMPLETED), bound)
    return list(work.connection.scalars(chosen.order_by(INVOCATIONS.number)))


def _join_deployments(work: Work, other: str, to: str) -> None:
    """Have the deployment, whose address another one takes, be that one."""
    begun = sa.update(INVOCATIONS_TABLE).where(INVOCATIONS.deployment_id == other)
    work.connection.execute(begun.values(deployment_id=to))
    work.connection.execute(sa.delete(SERVICES_TABLE).where(SERVICES.deployment_id == other))
    work.connection.execute(sa.delete(SERVICE_DEPLOYMENTS_TABLE).where(DEPLOYMENTS.id == other))


def _upsert_row(work: Work, table: sa.Table, row: dict[str, Any]) -> None:
    keys = [column.name for column in table.primary_key]
    insert = insert_into(work.connection.dialect, table).values(row)
    rest = {name: insert.excluded[name] for name in row if name not in keys}
    work.connection.execute(insert.on_conflict_do_update(index_elements=keys, set_=rest))
