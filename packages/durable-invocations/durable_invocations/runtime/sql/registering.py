"""Service deployments and services: registered, looked up, forgotten."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import sqlalchemy as sa

from durable_invocations.runtime.sql.lives.changing import follow
from durable_invocations.runtime.sql.lives.stopping import kill_all
from durable_invocations.runtime.sql.services import packed, service
from durable_invocations.runtime.sql.tables import (
    DEPLOYMENTS,
    INVOCATIONS,
    INVOCATIONS_TABLE,
    SERVICE_DEPLOYMENTS_TABLE,
    SERVICES,
    SERVICES_TABLE,
)
from durable_invocations.runtime.sql.work import CONFLICT, Work
from durable_invocations.runtime.store.deployments import Service
from durable_invocations.runtime.store.operations import Register, Unregister
from durable_invocations.runtime.store.outcomes import Done, Refused, Registered
from durable_invocations.runtime.store.views import Status
from sql_transactions.given import insert_into


def register(work: Work, asked: Register) -> Registered | Refused:
    """See the operation."""
    known = _known(work, asked.services)
    if not asked.force and (refused := _conflict(known, asked.services)):
        return refused
    given = asked.deployment
    same = sa.or_(DEPLOYMENTS.id == given.id, DEPLOYMENTS.url == given.url)
    there = set(work.connection.scalars(sa.select(DEPLOYMENTS.id).where(same)))
    id_ = given.id if given.id in there else next(iter(there), given.id)
    for other in there - {id_}:
        _join(work, other, id_)
    _put(
        work,
        SERVICE_DEPLOYMENTS_TABLE,
        {"id": id_, "url": given.url, "mode": given.mode.value, "registered": work.now}
        | {"http": given.http, "least": given.versions[0], "greatest": given.versions[1]},
    )
    work.connection.execute(sa.delete(SERVICES_TABLE).where(SERVICES.deployment_id == id_))
    for each in asked.services:
        _put(work, SERVICES_TABLE, packed(each, id_))
    follow(work, known, tuple(asked.services))
    work.services.clear()
    work.ready = True
    return Registered(id=id_, is_new=not there)


def unregister(work: Work, asked: Unregister) -> Done | Refused:
    """See the operation."""
    needing = _needing(work, asked.id)
    if needing and not asked.force:
        return Refused(
            code=CONFLICT,
            message=f"The deployment {asked.id!r} is needed by invocations that have not ended "
            f"({len(needing):,}, such as {needing[0]}); let them end, or force it to kill them.",
        )
    kill_all(work, needing)
    work.connection.execute(sa.delete(SERVICES_TABLE).where(SERVICES.deployment_id == asked.id))
    gone = sa.delete(SERVICE_DEPLOYMENTS_TABLE).where(DEPLOYMENTS.id == asked.id)
    work.services.clear()
    return Done(changed=work.connection.execute(gone).rowcount > 0)


def _known(work: Work, services: Collection[Service]) -> dict[str, Service]:
    """The services of these names as they were registered last."""
    named = sa.select(SERVICES_TABLE).where(SERVICES.name.in_([each.name for each in services]))
    return {row.name: service(row) for row in work.connection.execute(named)}


def _conflict(known: Mapping[str, Service], services: Collection[Service]) -> Refused | None:
    for each in services:
        if each.name in known and known[each.name].kind is not each.kind:
            return Refused(
                code=CONFLICT,
                message=f"Service {each.name!r} is a {known[each.name].kind.value} of deployment "
                f"{known[each.name].deployment!r}, and would become a {each.kind.value}; "
                "use another name, or force it.",
            )
    return None


def _needing(work: Work, deployment: str) -> list[str]:
    """The invocations that have not ended and are, or would be, driven through the deployment."""
    of = sa.select(SERVICES.name).where(SERVICES.deployment_id == deployment)
    bound = sa.or_(
        INVOCATIONS.deployment_id == deployment,
        sa.and_(INVOCATIONS.deployment_id.is_(None), INVOCATIONS.service.in_(of)),
    )
    chosen = sa.select(INVOCATIONS.id).where(INVOCATIONS.status != int(Status.COMPLETED), bound)
    return list(work.connection.scalars(chosen.order_by(INVOCATIONS.number)))


def _join(work: Work, other: str, to: str) -> None:
    """Have the deployment, whose address another one takes, be that one."""
    begun = sa.update(INVOCATIONS_TABLE).where(INVOCATIONS.deployment_id == other)
    work.connection.execute(begun.values(deployment_id=to))
    work.connection.execute(sa.delete(SERVICES_TABLE).where(SERVICES.deployment_id == other))
    work.connection.execute(sa.delete(SERVICE_DEPLOYMENTS_TABLE).where(DEPLOYMENTS.id == other))


def _put(work: Work, table: sa.Table, row: dict[str, Any]) -> None:
    keys = [column.name for column in table.primary_key]
    insert = insert_into(work.connection.dialect, table).values(row)
    rest = {name: insert.excluded[name] for name in row if name not in keys}
    work.connection.execute(insert.on_conflict_do_update(index_elements=keys, set_=rest))
