"""One transaction of the store: its connection, time, and changes for others."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from durable_invocations.protocol.results import Result
from durable_invocations.runtime.sql.tables import (
    INVOCATIONS,
    INVOCATIONS_TABLE,
    JOURNAL,
    JOURNAL_TABLE,
)
from durable_invocations.runtime.store.deployments import RegisteredService
from durable_invocations.runtime.store.outcomes import Changes, News, OperationRefusal
from durable_invocations.runtime.store.views import Status

LOCK = 0x15C9_117
"""The PostgreSQL advisory lock that writers of these tables take; an arbitrary constant."""
IDLE = "30s"
"""On PostgreSQL, how long a writer may idle in a transaction before it is aborted."""
LONGEST = 1_000
"""The most bytes of a key, or a state's or promise's name; PostgreSQL's indexes have a limit."""
MOST_MILLIS = 2**63 - 1
"""The latest time that can be stored."""
CONFLICT, NOT_FOUND, BAD, VIOLATION = 409, 404, 400, 571

_LENGTH = (
    sa.select(sa.func.coalesce(sa.func.max(JOURNAL.idx) + 1, 0))
    .select_from(JOURNAL_TABLE)
    .where(JOURNAL.invocation == INVOCATIONS.number)
    .correlate(INVOCATIONS_TABLE)
    .scalar_subquery()
)
_HEAD = sa.select(
    *(INVOCATIONS[name] for name in ("number", "id", "service", "handler", "key", "role")),
    *(INVOCATIONS[name] for name in ("status", "owner", "fence", "canceled", "parent", "waits")),
    *(INVOCATIONS[name] for name in ("deployment_id", "known", "retries")),
)
_BY_ID = _HEAD.add_columns(_LENGTH.label("length")).where(
    INVOCATIONS.id.in_(sa.bindparam("ids", expanding=True))
)
_BY_NUMBER = _HEAD.where(INVOCATIONS.number.in_(sa.bindparam("numbers", expanding=True)))
_LOCKED = sa.select(
    sa.func.pg_advisory_xact_lock(LOCK),
    sa.func.set_config("idle_in_transaction_session_timeout", IDLE, sa.true()),
)


@dataclass(kw_only=True)
class UnitOfWork:
    """Mutable: the operations of a transaction add what they change."""

    connection: sa.Connection
    now: int
    owner: str
    retention: int
    """How long ended invocations are kept, in milliseconds."""
    lead: int = 0
    """By how much `now` is ahead of the machine's clock, in milliseconds."""
    ready: bool = False
    next_at: int | None = None
    ended: dict[str, Result] = field(default_factory=dict)
    news: list[News] = field(default_factory=list)
    services: dict[str, RegisteredService | None] = field(default_factory=dict)
    """Services that this transaction has read."""

    def to_store_time(self, machine_time: int) -> int:
        """The store's time for a time by the machine's clock, as handlers and requests give it."""
        return min(machine_time + self.lead, MOST_MILLIS)

    def note_due(self, at: int) -> None:
        """Note that something is due at that time."""
        self.next_at = at if self.next_at is None else min(self.next_at, at)

    def build_changes(self) -> Changes:
        return Changes(
            ready=self.ready, next_at=self.next_at, ended=self.ended, news=tuple(self.news)
        )

    def read_heads(self, ids: Iterable[str]) -> dict[str, sa.Row[Any]]:
        """The invocations of these ids, by id, without large columns."""
        distinct = list(dict.fromkeys(ids))
        rows = self.connection.execute(_BY_ID, {"ids": distinct})
        return {row.id: row for row in rows}

    def read_head(self, id_: str) -> sa.Row[Any] | None:
        return self.read_heads([id_]).get(id_)

    def read_heads_by_number(self, numbers: Collection[int]) -> dict[int, sa.Row[Any]]:
        """The invocations of these numbers; without the length of their journals."""
        rows = self.connection.execute(_BY_NUMBER, {"numbers": list(numbers)})
        return {row.number: row for row in rows}


def lock(connection: sa.Connection) -> None:
    """Allow one writer at a time; SQLite does so anyway."""
    if connection.dialect.name == "postgresql":
        connection.execute(_LOCKED)


def make_unknown(id_: str) -> OperationRefusal:
    return OperationRefusal(code=NOT_FOUND, message=f"There is no invocation {id_!r}.")


FENCED = OperationRefusal(
    code=CONFLICT,
    message="This runtime no longer drives the invocation; it was claimed by another one, "
    "ended or paused.",
    fenced=True,
)


def is_fenced(head: sa.Row[Any] | None, fence: int) -> bool:
    """Whether the caller lost the invocation."""
    return head is None or head.status != Status.RUNNING or head.fence != fence
