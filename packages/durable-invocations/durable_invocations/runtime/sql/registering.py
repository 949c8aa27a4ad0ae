"""Registers and unregisters service deployments with their services."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import sqlalchemy as sa

from durable_invocations.runtime.sql.lifecycle.changing import update_roles
from durable_invocations.runtime.sql.lifecycle.stopping import kill_all
from durable_invocations.runtime.sql.services import pack_service, unpack_service
from durable_invocations.runtime.sql.tables import (
    DEPLOYMENTS,
    INVOCATIONS,
    INVOCATIONS_TABLE,
    SERVICE_DEPLOYMENTS_TABLE,
    SERVICES,
    SERVICES_TABLE,
)
from durable_invocations.runtime.sql.transaction import CONFLICT, UnitOfWork
from durable_invocations.runtime.store.deployments import RegisteredService
from durable_invocations.runtime.store.operations import Register, Unregister
from durable_invocations.runtime.store.outcomes import ChangeOutcome, OperationRefusal, Registered
from durable_invocations.runtime.store.views import Status
from sql_transactions.row_values import make_insert


def register(work: UnitOfWork, operation: Register) -> Registered | OperationRefusal:
    """See the operation."""
    previous = _read_known(work, operation.services)
    if not operation.force and (refused := _find_conflict(previous, operation.services)):
        return refused
    deployment = operation.deployment
    same = sa.or_(DEPLOYMENTS.id == deployment.id, DEPLOYMENTS.url == deployment.url)
    existing = set(work.connection.scalars(sa.select(DEPLOYMENTS.id).where(same)))
    id_ = deployment.id if deployment.id in existing else next(iter(existing), deployment.id)
    for other in existing - {id_}:
        _join_deployments(work, other, id_)
    _upsert_row(
        work,
        SERVICE_DEPLOYMENTS_TABLE,
        {"id": id_, "url": deployment.url, "mode": deployment.mode.value, "registered": work.now}
        | {
            "http": deployment.http,
            "least": deployment.versions[0],
            "greatest": deployment.versions[1],
        },
    )
    work.connection.execute(sa.delete(SERVICES_TABLE).where(SERVICES.deployment_id == id_))
    for service in operation.services:
        _upsert_row(work, SERVICES_TABLE, pack_service(service, id_))
    update_roles(work, previous, tuple(operation.services))
    work.services.clear()
    work.ready = True
    return Registered(id=id_, is_new=not existing)


def unregister(work: UnitOfWork, operation: Unregister) -> ChangeOutcome | OperationRefusal:
    """See the operation."""
    needing = _list_needing(work, operation.id)
    if needing and not operation.force:
        return OperationRefusal(
            code=CONFLICT,
            message=f"The deployment {operation.id!r} is needed by invocations that have not ended "
            f"({len(needing):,}, such as {needing[0]}); let them end, or force it to kill them.",
        )
    kill_all(work, needing)
    work.connection.execute(sa.delete(SERVICES_TABLE).where(SERVICES.deployment_id == operation.id))
    delete = sa.delete(SERVICE_DEPLOYMENTS_TABLE).where(DEPLOYMENTS.id == operation.id)
    work.services.clear()
    return ChangeOutcome(changed=work.connection.execute(delete).rowcount > 0)


def _read_known(
    work: UnitOfWork, services: Collection[RegisteredService]
) -> dict[str, RegisteredService]:
    """The registered services of these names."""
    query = sa.select(SERVICES_TABLE).where(
        SERVICES.name.in_([service.name for service in services])
    )
    return {row.name: unpack_service(row) for row in work.connection.execute(query)}


def _find_conflict(
    previous: Mapping[str, RegisteredService], services: Collection[RegisteredService]
) -> OperationRefusal | None:
    for service in services:
        old_service = previous.get(service.name)
        if old_service is not None and old_service.kind is not service.kind:
            return OperationRefusal(
                code=CONFLICT,
                message=f"Service {service.name!r} is a {old_service.kind.value} of deployment "
                f"{old_service.deployment!r}, and would become a {service.kind.value}; "
                "use another name, or force it.",
            )
    return None


def _list_needing(work: UnitOfWork, deployment: str) -> list[str]:
    """The open invocations that are, or would be, driven on the deployment."""
    services = sa.select(SERVICES.name).where(SERVICES.deployment_id == deployment)
    bound = sa.or_(
        INVOCATIONS.deployment_id == deployment,
        sa.and_(INVOCATIONS.deployment_id.is_(None), INVOCATIONS.service.in_(services)),
    )
    query = sa.select(INVOCATIONS.id).where(INVOCATIONS.status != int(Status.COMPLETED), bound)
    return list(work.connection.scalars(query.order_by(INVOCATIONS.number)))


def _join_deployments(work: UnitOfWork, other: str, to: str) -> None:
    """Merge the deployment `other` into `to`, which takes its address."""
    update = sa.update(INVOCATIONS_TABLE).where(INVOCATIONS.deployment_id == other)
    work.connection.execute(update.values(deployment_id=to))
    work.connection.execute(sa.delete(SERVICES_TABLE).where(SERVICES.deployment_id == other))
    work.connection.execute(sa.delete(SERVICE_DEPLOYMENTS_TABLE).where(DEPLOYMENTS.id == other))


def _upsert_row(work: UnitOfWork, table: sa.Table, row: dict[str, Any]) -> None:
    keys = [column.name for column in table.primary_key]
    insert = make_insert(work.connection.dialect, table).values(row)
    rest = {name: insert.excluded[name] for name in row if name not in keys}
    work.connection.execute(insert.on_conflict_do_update(index_elements=keys, set_=rest))
