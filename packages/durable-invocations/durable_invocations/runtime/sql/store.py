"""The store in SQLite or PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

import sqlalchemy as sa

from durable_invocations.errors import ConfigError
from durable_invocations.protocol.results import Result
from durable_invocations.runtime.sql import news, reading, registering
from durable_invocations.runtime.sql.database import ENSURE_LOCK, INVOCATIONS
from durable_invocations.runtime.sql.entries.committing import commit
from durable_invocations.runtime.sql.finding import found
from durable_invocations.runtime.sql.lives import (
    attempts,
    awakeables,
    claiming,
    firing,
    forgetting,
    stopping,
    submitting,
    suspending,
)
from durable_invocations.runtime.sql.services import service
from durable_invocations.runtime.sql.tables import (
    METADATA,
    RUNTIMES_TABLE,
    SERVICE_STATE_TABLE,
    SERVICES_TABLE,
    STATE,
)
from durable_invocations.runtime.sql.work import Work, lock
from durable_invocations.runtime.store import operations as op
from durable_invocations.runtime.store.deployments import Deployment, Service
from durable_invocations.runtime.store.outcomes import Changes
from durable_invocations.runtime.store.views import Chosen, Invocation, JournalEntry, Look, Status
from durable_invocations.runtime.timers import utc_now
from sql_transactions.engine import prepare, shown, transaction
from sql_transactions.tables import ensure_tables, find_missing_column

T = TypeVar("T")
Doing = Callable[[Work, Sequence[Any]], Sequence[Any]]

RETENTION = timedelta(days=1)
"""How long ended invocations are kept."""


def _each(do: Callable[[Work, Any], Any]) -> Doing:
    return lambda work, asked: [do(work, each) for each in asked]


# In this order in a transaction, which keeps that of an invocation's attempt.
DOING: Mapping[type[op.Operation[Any]], Doing] = {
    op.Register: _each(registering.register),
    op.Unregister: _each(registering.unregister),
    op.Submit: submitting.submit,
    op.Commit: commit,
    op.Suspend: suspending.suspend,
    op.Finish: attempts.finish,
    op.Fail: _each(attempts.fail),
    op.CompleteAwakeable: _each(awakeables.complete_awakeable),
    op.Cancel: _each(stopping.cancel),
    op.Kill: _each(stopping.kill),
    op.Pause: _each(stopping.pause),
    op.Resume: _each(stopping.resume),
    op.Purge: _each(forgetting.purge),
    op.Prune: _each(forgetting.prune),
    op.Fire: _each(firing.fire),
    op.Beat: _each(claiming.beat),
    op.Recover: _each(claiming.recover),
    op.Release: _each(claiming.release),
    op.TakeNews: _each(news.take),
    op.Claim: _each(claiming.claim),
}


class SqlStore:
    """Does operations, and answers questions; in SQLite or PostgreSQL, see `open_database`.

    `clock` is the runtime's, which is `lead` milliseconds ahead of the machine's.

    Blocks; a runtime's event loop uses writer.Writer instead, also to share transactions: writers
    wait for each other, even on PostgreSQL. Raises UnavailableError while the database does not
    answer.
    """

    def __init__(
        self,
        engine: sa.Engine,
        *,
        owner: str = "",
        clock: Callable[[], datetime] = utc_now,
        lead: Callable[[], int] = lambda: 0,
        retention: timedelta = RETENTION,
    ) -> None:
        self.engine = prepare(engine, INVOCATIONS)
        self.owner = owner
        """The runtime whose news are told in `Changes`; empty: none."""
        self._clock, self._lead = clock, lead
        self._retention = retention

    def ensure(self) -> None:
        """Make the tables that are missing. Idempotent.

        Raises ConfigError for tables of another version.
        """
        if missing := find_missing_column(self.engine, METADATA):
            table, column = missing
            raise ConfigError(
                f"The database {shown(self.engine.url)} was made by another version: its table "
                f"{table} has no column {column}. Give a fresh one."
            )
        ensure_tables(self.engine, METADATA, lock=ENSURE_LOCK)

    def do(self, operation: op.Operation[T]) -> T:
        """Do one operation, in a transaction of its own."""
        (outcome,), _ = self.run([operation])
        done: T = outcome
        return done

    def run(self, operations: Sequence[op.Operation[Any]]) -> tuple[list[Any], Changes]:
        """Do the operations in one transaction; their outcomes, and what changed.

        Those of one invocation and fence are done in their order, others in any.
        """
        outcomes: list[Any] = [None] * len(operations)
        with transaction(self.engine, writes=True) as connection:
            lock(connection)
            work = self._work(connection)
            for kind, do in DOING.items():
                places = [at for at, each in enumerate(operations) if type(each) is kind]
                if places:
                    done = do(work, [operations[at] for at in places])
                    for at, outcome in zip(places, done, strict=True):
                        outcomes[at] = outcome
        return outcomes, work.changes()

    def look(self, owner: str, watched: Collection[str] = ()) -> Look:
        """What `owner` has to do, and which of `watched` have ended; cheap."""
        return self._read(lambda connection: news.look(connection, owner, watched))

    def results(self, ids: Collection[str]) -> dict[str, Result | None]:
        """How these invocations ended; None: not yet; no entry for unknown ones."""
        return self._read(lambda connection: news.results(connection, ids))

    def find(self, service: str, key: str, handler: str, idempotency_key: str | None) -> str | None:
        """The invocation of that idempotency key; with None, a workflow's run."""
        return self._read(lambda each: found(each, service, key, handler, idempotency_key))

    def invocation(self, id_: str) -> Invocation | None:
        """One invocation; None if it is unknown."""
        return self._read(lambda connection: reading.invocation(connection, id_))

    def invocations(self, chosen: Chosen | None = None) -> list[Invocation]:
        """Newest first."""
        return self._read(lambda each: reading.invocations(each, chosen or Chosen()))

    def counts(self, chosen: Chosen | None = None) -> dict[Status, int]:
        """How many of the chosen there are, by status, whatever the limit."""
        return self._read(lambda each: reading.counts(each, chosen or Chosen()))

    def journal(self, id_: str) -> list[JournalEntry]:
        """An invocation's journal; empty if it is unknown."""
        return self._read(lambda connection: reading.journal(connection, id_))

    def state(self, service: str, key: str) -> dict[bytes, bytes]:
        """An object's state."""
        of = (STATE.service == service, STATE.key == key)
        chosen = sa.select(STATE.name, STATE.value).where(*of).order_by(STATE.name)
        chosen = chosen.select_from(SERVICE_STATE_TABLE)
        return self._read(lambda each: {row.name: row.value for row in each.execute(chosen)})

    def deployments(self) -> list[Deployment]:
        """In the order of their registration."""
        return self._read(reading.deployments)

    def services(self) -> dict[str, Service]:
        """By name, each as its current deployment serves it."""
        chosen = sa.select(SERVICES_TABLE).order_by(SERVICES_TABLE.c.name)
        return self._read(lambda each: {row.name: service(row) for row in each.execute(chosen)})

    def beats(self) -> dict[str, int]:
        """The runtimes that were alive, with their beats."""
        return self._read(lambda each: dict(map(tuple, each.execute(sa.select(RUNTIMES_TABLE)))))

    def _read(self, read: Callable[[sa.Connection], T]) -> T:
        with transaction(self.engine, writes=False) as connection:
            return read(connection)

    def _work(self, connection: sa.Connection) -> Work:
        return Work(
            connection=connection,
            now=int(self._clock().timestamp() * 1_000),
            owner=self.owner,
            lead=self._lead(),
            retention=int(self._retention.total_seconds() * 1_000),
        )
