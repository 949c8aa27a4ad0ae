"""The barrier of one table on its server: looked at, raised, and waited behind."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from iscp_dagster.clickhouse.connect.barrier import NAME, Barrier, told
from iscp_dagster.clickhouse.connect.endpoint import Endpoint
from iscp_dagster.clickhouse.connect.failures import ClickHouseBusyError, ClickHouseError
from iscp_dagster.clickhouse.connect.quoting import ident, text

EVERYWHERE = {"alter_sync": 2, "replication_wait_for_inactive_replica_timeout": 60}
"""On every replica, or one that has not heard of it would let an insert in. One that is away is
waited for, and then the ALTER fails for now (UNFINISHED): it would come back with the old one."""
RACES = 20
"""How often another one may raise the barrier first."""
LOOK_SECONDS = 0.1
PATIENCE = 5.0
"""Seconds that a statement which began before the barrier may take to end by itself."""
ENDING = 60.0
"""Seconds that it may take to be ended."""


@dataclass(frozen=True, kw_only=True)
class Gate:
    """The rows of a table, by the tenants in `column`. Every method may be repeated."""

    endpoint: Endpoint
    database: str
    table: str
    column: str | None
    sleep: Callable[[float], None] = time.sleep

    def epoch(self) -> int:
        """What an insert is to show. Look while you hold your claims, and see after that you do."""
        return self._barrier().epoch

    def shut_out(self, tenants: Collection[str]) -> int:
        """Let in nobody any more who writes these tenants' rows and looked before; the new epoch.

        When it returns, nothing that was let in before is at work. Raises IscpError. It names the
        constraint that it replaces: of two that race, the server refuses one.
        """
        for _ in range(RACES):
            held = self._barrier()
            raised = held.raised(tenants)
            try:
                self._exchange(held, raised)
            except ClickHouseError:
                if self._barrier().epoch == held.epoch:
                    raise
                continue
            self._await_those_let_in()
            return raised.epoch
        raise ClickHouseBusyError(
            f"The barrier of {self.database}.{self.table} was raised by others {RACES} times "
            "while it was to be raised; the next iteration tries again."
        )

    def _barrier(self) -> Barrier:
        query = (
            "SELECT name, expression FROM system.constraints WHERE database = {database:String} "
            "AND table = {table:String} AND startsWith(name, {head:String})"
        )
        parameters = {"database": self.database, "table": self.table, "head": NAME}
        with self.endpoint.errors("look at the barrier"):
            found = self.endpoint.client().query(query, parameters=parameters).result_rows
        if len(found) != 1:
            raise ClickHouseError(
                f"{self.database}.{self.table} has {len(found)} constraints {NAME}…, but needs "
                "exactly the one it was created with, which rejects late inserts. Somebody changed "
                "them. Rebuild an index with `iscp job rebuild`; for a table of dead letters, "
                "replay the letters and drop the table, and it is created again."
            )
        return Barrier.read(*found[0])

    def _exchange(self, held: Barrier, raised: Barrier) -> None:
        name = ident(self.database, self.table)
        with self.endpoint.errors(f"raise the barrier of {self.database}.{self.table}"):
            self.endpoint.client().command(
                f"ALTER TABLE {name} DROP CONSTRAINT {held.name}, ADD {raised.sql(self.column)}",
                settings=EVERYWHERE,
            )

    def _await_those_let_in(self) -> None:
        """They go by the constraint as it was when they began."""
        seen = self._running()
        if self._ended(seen, PATIENCE):
            return
        with self.endpoint.errors(f"end what writes to {self.database}.{self.table}"):
            ids = ", ".join(map(text, sorted(seen)))
            self.endpoint.client().command(f"KILL QUERY WHERE query_id IN ({ids}) ASYNC")
        if not self._ended(seen, ENDING):
            raise ClickHouseBusyError(
                f"ClickHouse at {self.endpoint.address}: statements of an earlier run on "
                f"{self.database}.{self.table} do not end ({', '.join(sorted(seen))}), so nothing "
                "is put in the place of its rows. The next iteration tries again."
            )

    def _ended(self, seen: Collection[str], seconds: float) -> bool:
        waited = 0.0
        while self._running(seen):
            if waited >= seconds:
                return False
            self.sleep(LOOK_SECONDS)
            waited += LOOK_SECONDS
        return True

    def _running(self, among: Collection[str] | None = None) -> frozenset[str]:
        """The ids of the statements on the table that are at work, of those there were."""
        if among is not None and not among:
            return frozenset()
        query = (
            "SELECT query_id FROM system.processes "
            "WHERE startsWith(Settings['log_comment'], {told:String})"
        )
        parameters = {"told": told(self.database, self.table)}
        with self.endpoint.errors("look at what is at work"):
            found = self.endpoint.client().query(query, parameters=parameters).result_rows
        ids = frozenset(str(id_) for (id_,) in found)
        return ids if among is None else ids & frozenset(among)
