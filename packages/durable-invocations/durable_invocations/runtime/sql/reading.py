"""Reads invocations, journals and deployments for people."""

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
from durable_invocations.runtime.store.views import (
    Invocation,
    InvocationFilter,
    JournalEntry,
    Status,
)

_ENTRIES = (
    sa.select(sa.func.count())
    .select_from(JOURNAL_TABLE)
    .where(JOURNAL.invocation == INVOCATIONS.number)
    .correlate(INVOCATIONS_TABLE)
    .scalar_subquery()
)


def invocations(connection: sa.Connection, filters: InvocationFilter) -> list[Invocation]:
    """See the store."""
    rows = sa.select(INVOCATIONS_TABLE, _ENTRIES.label("entries")).where(
        *_build_conditions(filters)
    )
    newest = rows.order_by(INVOCATIONS.number.desc()).limit(filters.limit)
    return [_unpack_invocation(row) for row in connection.execute(newest)]


def read_invocation(connection: sa.Connection, id_: str) -> Invocation | None:
    """See the store."""
    query = sa.select(INVOCATIONS_TABLE, _ENTRIES.label("entries")).where(INVOCATIONS.id == id_)
    row = connection.execute(query).one_or_none()
    return None if row is None else _unpack_invocation(row)


def count_invocations(connection: sa.Connection, filters: InvocationFilter) -> dict[Status, int]:
    """See the store."""
    rows = sa.select(INVOCATIONS.status, sa.func.count()).where(*_build_conditions(filters))
    rows = rows.group_by(INVOCATIONS.status)
    return {Status(status): count for status, count in connection.execute(rows)}


def read_journal(connection: sa.Connection, id_: str) -> list[JournalEntry]:
    """See the store."""
    query = (
        sa.select(JOURNAL_TABLE)
        .join(INVOCATIONS_TABLE, INVOCATIONS.number == JOURNAL.invocation)
        .where(INVOCATIONS.id == id_)
        .order_by(JOURNAL.idx)
    )
    return [
        JournalEntry(
            index=row.idx,
            frame=packing.unpack_frame(row),
            name=row.name,
            created=row.created,
            completed_at=row.completed_at,
            child=row.child or "",
        )
        for row in connection.execute(query)
    ]


def deployments(connection: sa.Connection) -> list[Deployment]:
    """See the store."""
    order = (DEPLOYMENTS.registered, DEPLOYMENTS.id)
    rows = connection.execute(sa.select(SERVICE_DEPLOYMENTS_TABLE).order_by(*order))
    return [packing.unpack_deployment(row) for row in rows]


def _build_conditions(filters: InvocationFilter) -> Iterator[sa.ColumnElement[bool]]:
    if filters.failed:
        yield INVOCATIONS.status == int(Status.COMPLETED)
        yield sa.func.substr(INVOCATIONS.result, 1, 1) == packing.FAILED
    if filters.statuses:
        yield INVOCATIONS.status.in_([int(status) for status in filters.statuses])
    if filters.before is not None:
        yield INVOCATIONS.number < filters.before
    for name in ("service", "handler", "parent"):
        if getattr(filters, name):
            yield INVOCATIONS[name] == getattr(filters, name)
    for name in ("key", "idempotency_key"):
        if getattr(filters, name) is not None:
            yield INVOCATIONS[name] == getattr(filters, name)


def _unpack_invocation(row: sa.Row[Any]) -> Invocation:
    return Invocation(
        number=row.number,
        id=row.id,
        service=row.service,
        handler=row.handler,
        key=row.key,
        status=Status(row.status),
        deployment=row.deployment_id or "",
        idempotency_key=row.idempotency_key,
        headers=packing.unpack_headers(row.headers),
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
        error=packing.unpack_error(row.error),
        error_at=row.error_at,
        result=packing.unpack_result(row.result),
    )
