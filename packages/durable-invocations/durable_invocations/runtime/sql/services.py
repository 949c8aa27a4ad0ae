"""Services as rows, and which handler an invocation is of."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa

from durable_invocations.protocol.services import HandlerKind, ServiceKind
from durable_invocations.runtime.sql.tables import SERVICES, SERVICES_TABLE, Role
from durable_invocations.runtime.sql.work import BAD, NOT_FOUND, Work
from durable_invocations.runtime.store.deployments import Handler, Service
from durable_invocations.runtime.store.outcomes import Refused

ROLES = {
    HandlerKind.SHARED: Role.SHARED,
    HandlerKind.EXCLUSIVE: Role.EXCLUSIVE,
    HandlerKind.WORKFLOW: Role.RUN,
}
"""How an invocation of a handler treats its key."""
_NAMED = sa.select(SERVICES_TABLE).where(SERVICES.name.in_(sa.bindparam("names", expanding=True)))


def packed(given: Service, deployment: str) -> dict[str, Any]:
    """The service's columns."""
    handlers = [[each.name, each.kind.value, each.described] for each in given.handlers]
    return {
        "name": given.name,
        "kind": given.kind.value,
        "deployment_id": deployment,
        "handlers": json.dumps(handlers),
    }


def service(row: sa.Row[Any]) -> Service:
    """The service that `packed` gave."""
    handlers = [
        Handler(name=name, kind=HandlerKind(kind), described=described)
        for name, kind, described in json.loads(row.handlers)
    ]
    return Service(
        name=row.name,
        kind=ServiceKind(row.kind),
        deployment=row.deployment_id,
        handlers=tuple(handlers),
    )


def learn(work: Work, names: Iterable[str]) -> None:
    """Read the services that were not read in this transaction."""
    missing = sorted({name for name in names if name not in work.services})
    if missing:
        work.services |= dict.fromkeys(missing)
        rows = work.connection.execute(_NAMED, {"names": missing})
        work.services |= {row.name: service(row) for row in rows}


def role(work: Work, name: str, handler: str, key: str) -> Role | Refused:
    """How an invocation of the handler treats its key; refused if there is none, or a bad key.

    `learn` has read the service.
    """
    held = work.services[name]
    if held is None:
        return Refused(
            code=NOT_FOUND,
            message=f"No service {name!r} is registered; register a deployment that serves it.",
        )
    found = held.handler(handler)
    if found is None:
        names = ", ".join(sorted(each.name for each in held.handlers))
        return Refused(
            code=NOT_FOUND, message=f"Service {name!r} has no handler {handler!r}; it has {names}."
        )
    if held.kind.keyed != bool(key):
        what = "needs a key" if held.kind.keyed else f"has no keys, but {key!r} is given"
        return Refused(code=BAD, message=f"Service {name!r} is a {held.kind.value}: it {what}.")
    return ROLES[found.kind]
