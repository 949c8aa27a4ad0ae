"""The store in SQLite or PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

import sqlalchemy as sa

from durable_invocations.errors import ConfigError
from durable_invocations.protocol.results import Result
from durable_invocations.runtime.sql import notifications, reading, registering
from durable_invocations.runtime.sql.database import ENSURE_LOCK, INVOCATIONS_ROLE
from durable_invocations.runtime.sql.entries.committing import commit
from durable_invocations.runtime.sql.lifecycle import (
    attempts,
    awakeables,
    claiming,
    firing,
    forgetting,
    stopping,
    submitting,
    suspending,
)
from durable_invocations.runtime.sql.lookup import find_invocation
from durable_invocations.runtime.sql.services import unpack_service
from durable_invocations.runtime.sql.tables import (
    METADATA,
    RUNTIMES_TABLE,
    SERVICE_STATE_TABLE,
    SERVICES_TABLE,
    STATE,
)
from durable_invocations.runtime.sql.transaction import UnitOfWork, lock
from durable_invocations.runtime.store import operations as op
from durable_invocations.runtime.store.deployments import Deployment, RegisteredService
from durable_invocations.runtime.store.outcomes import Changes
from durable_invocations.runtime.store.views import (
    Invocation,
    InvocationFilter,
    JournalEntry,
    Look,
    Status,
)
from durable_invocations.runtime.timers import get_utc_now
from sql_transactions.engine import begin_transaction, prepare_engine, render_url
from sql_transactions.tables import ensure_tables, find_missing_column

T = TypeVar("T")
Doing = Callable[[UnitOfWork, Sequence[Any]], Sequence[Any]]

RETENTION = timedelta(days=1)
"""How long ended invocations are kept."""


def _apply_each(do: Callable[[UnitOfWork, Any], Any]) -> Doing:
    return lambda work, operations: [do(work, operation) for operation in operations]


# A transaction runs them in this order, which is that of an attempt's operations.
EXECUTORS: Mapping[type[op.StoreOperation[Any]], Doing] = {
    op.Register: _apply_each(registering.register),
    op.Unregister: _apply_each(registering.unregister),
    op.Submit: submitting.submit,
    op.CommitEntry: commit,
    op.Suspend: suspending.suspend,
    op.Finish: attempts.finish_invocations,
    op.Fail: _apply_each(attempts.fail_attempt),
    op.CompleteAwakeable: _apply_each(awakeables.complete_awakeable),
    op.Cancel: _apply_each(stopping.cancel),
    op.Kill: _apply_each(stopping.kill),
    op.Pause: _apply_each(stopping.pause),
    op.Resume: _apply_each(stopping.resume),
    op.Purge: _apply_each(forgetting.purge),
    op.Prune: _apply_each(forgetting.prune),
    op.Fire: _apply_each(firing.fire),
    op.Beat: _apply_each(claiming.record_beat),
    op.Recover: _apply_each(claiming.recover),
    op.Release: _apply_each(claiming.release),
    op.TakeNews: _apply_each(notifications.take),
    op.Claim: _apply_each(claiming.claim),
}


class SqlStore:
    """Runs operations and reads; in SQLite or PostgreSQL, see `open_database`.

    `clock` is the runtime's, which is `lead` milliseconds ahead of the machine's.

    Blocks; a runtime's event loop uses writer.Writer instead, which also shares transactions:
    writers wait for each other, even on PostgreSQL. Raises UnavailableError while the database
    does not answer.
    """

    def __init__(
        self,
        engine: sa.Engine,
        *,
        owner: str = "",
        clock: Callable[[], datetime] = get_utc_now,
        lead: Callable[[], int] = lambda: 0,
        retention: timedelta = RETENTION,
    ) -> None:
        self.engine = prepare_engine(engine, INVOCATIONS_ROLE)
        self.owner = owner
        """The runtime whose news go to `Changes`; empty for none."""
        self._clock, self._lead = clock, lead
        self._retention = retention

    def ensure(self) -> None:
        """Create missing tables. Idempotent.

        Raises ConfigError for tables of another version.
        """
        if missing := find_missing_column(self.engine, METADATA):
            table, column = missing
            raise ConfigError(
                f"The database {render_url(self.engine.url)} was created by another version: "
                f"its table {table} has no column {column}. Use a new database."
            )
        ensure_tables(self.engine, METADATA, lock=ENSURE_LOCK)

    def do(self, operation: op.StoreOperation[T]) -> T:
        """Run one operation in its own transaction."""
        (outcome,), _ = self.run([operation])
        result: T = outcome
        return result

    def run(self, operations: Sequence[op.StoreOperation[Any]]) -> tuple[list[Any], Changes]:
        """Run the operations in one transaction; their outcomes, and what changed.

        They run by type, in DOING's order, which is the order in which an attempt queues them;
        those of one type in their own order.
        """
        outcomes: list[Any] = [None] * len(operations)
        with begin_transaction(self.engine, writes=True) as connection:
            lock(connection)
            work = self._make_transaction(connection)
            for kind, do in EXECUTORS.items():
                places = [at for at, operation in enumerate(operations) if type(operation) is kind]
                if places:
                    results = do(work, [operations[at] for at in places])
                    for at, outcome in zip(places, results, strict=True):
                        outcomes[at] = outcome
        return outcomes, work.build_changes()

    def look(self, owner: str, watched: Collection[str] = ()) -> Look:
        """What `owner` has to do, and which of `watched` have ended; cheap."""
        return self._read(lambda connection: notifications.look(connection, owner, watched))

    def read_results(self, ids: Collection[str]) -> dict[str, Result | None]:
        """The results by id; None if it has not ended; unknown ids are left out."""
        return self._read(lambda connection: notifications.read_results(connection, ids))

    def find(self, service: str, key: str, handler: str, idempotency_key: str | None) -> str | None:
        """The invocation of that idempotency key; with None, a workflow's run."""
        return self._read(
            lambda connection: find_invocation(connection, service, key, handler, idempotency_key)
        )

    def invocation(self, id_: str) -> Invocation | None:
        """One invocation; None if it is unknown."""
        return self._read(lambda connection: reading.read_invocation(connection, id_))

    def invocations(self, filters: InvocationFilter | None = None) -> list[Invocation]:
        """Newest first."""
        return self._read(
            lambda connection: reading.invocations(connection, filters or InvocationFilter())
        )

    def count_invocations(self, filters: InvocationFilter | None = None) -> dict[Status, int]:
        """The number of matching invocations by status, without the limit."""
        return self._read(
            lambda connection: reading.count_invocations(connection, filters or InvocationFilter())
        )

    def read_journal(self, id_: str) -> list[JournalEntry]:
        """An invocation's journal; empty if it is unknown."""
        return self._read(lambda connection: reading.read_journal(connection, id_))

    def state(self, service: str, key: str) -> dict[bytes, bytes]:
        """An object's state."""
        conditions = (STATE.service == service, STATE.key == key)
        query = sa.select(STATE.name, STATE.value).where(*conditions).order_by(STATE.name)
        query = query.select_from(SERVICE_STATE_TABLE)
        return self._read(
            lambda connection: {row.name: row.value for row in connection.execute(query)}
        )

    def deployments(self) -> list[Deployment]:
        """In the order of their registration."""
        return self._read(reading.deployments)

    def services(self) -> dict[str, RegisteredService]:
        """The registered services by name."""
        query = sa.select(SERVICES_TABLE).order_by(SERVICES_TABLE.c.name)
        return self._read(
            lambda connection: {row.name: unpack_service(row) for row in connection.execute(query)}
        )

    def read_beats(self) -> dict[str, int]:
        """The runtimes and their last beats."""
        return self._read(
            lambda connection: dict(map(tuple, connection.execute(sa.select(RUNTIMES_TABLE))))
        )

    def _read(self, read: Callable[[sa.Connection], T]) -> T:
        with begin_transaction(self.engine, writes=False) as connection:
            return read(connection)

    def _make_transaction(self, connection: sa.Connection) -> UnitOfWork:
        return UnitOfWork(
            connection=connection,
            now=int(self._clock().timestamp() * 1_000),
            owner=self.owner,
            lead=self._lead(),
            retention=int(self._retention.total_seconds() * 1_000),
        )
