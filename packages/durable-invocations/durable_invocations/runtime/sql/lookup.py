"""Finds invocations by their identity, and their results."""

from __future__ import annotations

import sqlalchemy as sa

from durable_invocations.protocol.results import Result
from durable_invocations.runtime.sql.packing import compute_identity, unpack_result
from durable_invocations.runtime.sql.tables import INVOCATIONS

_RESULT = sa.select(INVOCATIONS.id, INVOCATIONS.result).where(
    INVOCATIONS.id == sa.bindparam("the_id")
)
_SAME = sa.select(INVOCATIONS.id).where(INVOCATIONS.identity == sa.bindparam("same"))


def find_invocation(
    connection: sa.Connection, service: str, key: str, handler: str, idempotency_key: str | None
) -> str | None:
    """The invocation of an idempotency key; without one, the run of a workflow's key."""
    same = compute_identity(service, key, handler, idempotency_key)
    return connection.execute(_SAME, {"same": same}).scalar_one_or_none()


def find_result(connection: sa.Connection, id_: str) -> tuple[bool, Result | None]:
    """Whether the invocation is known, and its result if it has ended."""
    row = connection.execute(_RESULT, {"the_id": id_}).one_or_none()
    return row is not None, None if row is None else unpack_result(row.result)
