"""Services as rows, and the role of a handler's invocations."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa

from durable_invocations.protocol.services import HandlerKind, ServiceKind
from durable_invocations.runtime.sql.tables import SERVICES, SERVICES_TABLE, Role
from durable_invocations.runtime.sql.transaction import BAD, NOT_FOUND, UnitOfWork
from durable_invocations.runtime.store.deployments import RegisteredHandler, RegisteredService
from durable_invocations.runtime.store.outcomes import OperationRefusal

ROLES = {
    HandlerKind.SHARED: Role.SHARED,
    HandlerKind.EXCLUSIVE: Role.EXCLUSIVE,
    HandlerKind.WORKFLOW: Role.RUN,
}
"""How an invocation of a handler treats its key."""
_NAMED = sa.select(SERVICES_TABLE).where(SERVICES.name.in_(sa.bindparam("names", expanding=True)))


def pack_service(service: RegisteredService, deployment: str) -> dict[str, Any]:
    """The service's columns."""
    handlers = [
        [handler.name, handler.kind.value, handler.described] for handler in service.handlers
    ]
    return {
        "name": service.name,
        "kind": service.kind.value,
        "deployment_id": deployment,
        "handlers": json.dumps(handlers),
    }


def unpack_service(row: sa.Row[Any]) -> RegisteredService:
    """The service that `pack_service` packed."""
    handlers = [
        RegisteredHandler(name=name, kind=HandlerKind(kind), described=described)
        for name, kind, described in json.loads(row.handlers)
    ]
    return RegisteredService(
        name=row.name,
        kind=ServiceKind(row.kind),
        deployment=row.deployment_id,
        handlers=tuple(handlers),
    )


def load_services(work: UnitOfWork, names: Iterable[str]) -> None:
    """Read services that this transaction has not read yet."""
    missing = sorted({name for name in names if name not in work.services})
    if missing:
        work.services |= dict.fromkeys(missing)
        rows = work.connection.execute(_NAMED, {"names": missing})
        work.services |= {row.name: unpack_service(row) for row in rows}


def find_role(work: UnitOfWork, name: str, handler: str, key: str) -> Role | OperationRefusal:
    """How an invocation of the handler treats its key; refused for an unknown handler or bad key.

    `load_services` must have read the service.
    """
    service = work.services[name]
    if service is None:
        return OperationRefusal(
            code=NOT_FOUND,
            message=f"No service {name!r} is registered; register a deployment that serves it.",
        )
    registered = service.handler(handler)
    if registered is None:
        names = ", ".join(sorted(candidate.name for candidate in service.handlers))
        return OperationRefusal(
            code=NOT_FOUND, message=f"Service {name!r} has no handler {handler!r}; it has {names}."
        )
    if service.kind.keyed != bool(key):
        problem = "needs a key" if service.kind.keyed else f"has no keys, but {key!r} is given"
        return OperationRefusal(
            code=BAD, message=f"Service {name!r} is a {service.kind.value}: it {problem}."
        )
    return ROLES[registered.kind]
