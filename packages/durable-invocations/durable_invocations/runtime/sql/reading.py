"""What people are shown of invocations, services and deployments."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa

from durable_invocations.runtime.sql import packing
from durable_invocations.runtime.sql.tables import (
    DEPLOYMENTS,
    INVOCATIONS,
    INVOCATIONS_TABLE,
    JOURNAL,
    JOURNAL_TABLE,
    SERVICE_DEPLOYMENTS_TABLE,
)
from durable_invocations.runtime.store.deployments import Deployment
from durable_invocations.runtime.store.views import Chosen, Invocation, JournalEntry, Status

_ENTRIES = (
    sa.select(sa.func.count())
    .select_from(JOURNAL_TABLE)
    .where(JOURNAL.invocation == INVOCATIONS.number)
    .correlate(INVOCATIONS_TABLE)
    .scalar_subquery()
)


def invocations(connection: sa.Connection, chosen: Chosen) -> list[Invocation]:
    """See the store."""
    rows = sa.select(INVOCATIONS_TABLE, _ENTRIES.label("entries")).where(*_conditions(chosen))
    newest = rows.order_by(INVOCATIONS.number.desc()).limit(chosen.limit)
    return [_invocation(row) for row in connection.execute(newest)]


def invocation(connection: sa.Connection, id_: str) -> Invocation | None:
    """See the store."""
    chosen = sa.select(INVOCATIONS_TABLE, _ENTRIES.label("entries")).where(INVOCATIONS.id == id_)
    row = connection.execute(chosen).one_or_none()
    return None if row is None else _invocation(row)


def counts(connection: sa.Connection, chosen: Chosen) -> dict[Status, int]:
    """See the store."""
    rows = sa.select(INVOCATIONS.status, sa.func.count()).where(*_conditions(chosen))
    rows = rows.group_by(INVOCATIONS.status)
    return {Status(status): count for status, count in connection.execute(rows)}


def journal(connection: sa.Connection, id_: str) -> list[JournalEntry]:
    """See the store."""
    chosen = (
        sa.select(JOURNAL_TABLE)
        .join(INVOCATIONS_TABLE, INVOCATIONS.number == JOURNAL.invocation)
        .where(INVOCATIONS.id == id_)
        .order_by(JOURNAL.idx)
    )
    return [
        JournalEntry(
            index=row.idx,
            frame=packing.frame(row),
            name=row.name,
            created=row.created,
            completed_at=row.completed_at,
            child=row.child or "",
        )
        for row in connection.execute(chosen)
    ]


def deployments(connection: sa.Connection) -> list[Deployment]:
    """See the store."""
    order = (DEPLOYMENTS.registered, DEPLOYMENTS.id)
    rows = connection.execute(sa.select(SERVICE_DEPLOYMENTS_TABLE).order_by(*order))
    return [packing.deployment(row) for row in rows]


def _conditions(chosen: Chosen) -> Iterator[sa.ColumnElement[bool]]:
    if chosen.failed:
        yield INVOCATIONS.status == int(Status.COMPLETED)
        yield sa.func.substr(INVOCATIONS.result, 1, 1) == packing.FAILED
    if chosen.statuses:
        yield INVOCATIONS.status.in_([int(each) for each in chosen.statuses])
    if chosen.before is not None:
        yield INVOCATIONS.number < chosen.before
    for name in ("service", "handler", "parent"):
        if getattr(chosen, name):
            yield INVOCATIONS[name] == getattr(chosen, name)
    for name in ("key", "idempotency_key"):
        if getattr(chosen, name) is not None:
            yield INVOCATIONS[name] == getattr(chosen, name)


def _invocation(row: sa.Row[Any]) -> Invocation:
    return Invocation(
        number=row.number,
        id=row.id,
        service=row.service,
        handler=row.handler,
        key=row.key,
        status=Status(row.status),
        deployment=row.deployment_id or "",
        idempotency_key=row.idempotency_key,
        headers=packing.pairs(row.headers),
        parent=row.parent or "",
        created=row.created,
        changed=row.changed,
        ended=row.ended,
        next_at=row.next_at,
        attempts=row.attempts,
        entries=row.entries,
        waits=tuple(json.loads(row.waits)) if row.waits else (),
        owner=row.owner or "",
        canceled=row.canceled,
        error=packing.reported(row.error),
        error_at=row.error_at,
        result=packing.result(row.result),
    )
