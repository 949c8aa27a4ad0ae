"""The barrier of one table on its server: read it, raise it, wait for earlier statements to end."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from iscp_dagster.clickhouse.connect.barrier import (
    CONSTRAINT_PREFIX,
    Barrier,
    format_comment_prefix,
)
from iscp_dagster.clickhouse.connect.endpoint import ClickHouseEndpoint
from iscp_dagster.clickhouse.connect.failures import ClickHouseBusyError, ClickHouseError
from iscp_dagster.clickhouse.connect.quoting import quote_identifier, quote_string

ALL_REPLICAS_SETTINGS = {"alter_sync": 2, "replication_wait_for_inactive_replica_timeout": 60}
"""Apply the ALTER on every replica: one that missed it would accept a late insert. It waits for an
absent replica, which would return with the old barrier, and then fails temporarily (UNFINISHED)."""
RACES = 20
"""How many times in a row another run may raise the barrier first."""
LOOK_SECONDS = 0.1
GRACE_SECONDS = 5.0
"""Seconds that a statement begun before the barrier was raised may take to end by itself."""
KILL_SECONDS = 60.0
"""Seconds that it may take to end once killed."""


@dataclass(frozen=True, kw_only=True)
class TableBarrier:
    """The barrier of a table with its tenants in `column`. Every method may be repeated."""

    endpoint: ClickHouseEndpoint
    database: str
    table: str
    column: str | None
    sleep: Callable[[float], None] = time.sleep

    def read_epoch(self) -> int:
        """Return the epoch that an insert must show.

        Read it while you hold your claims, then check that you still do.
        """
        return self._read_barrier().epoch

    def reject_earlier_inserts(self, tenants: Collection[str]) -> int:
        """Reject inserts for these tenants that show an earlier epoch; return the new epoch.

        When it returns, no statement admitted earlier is running. The ALTER names the constraint
        that it replaces, so the server refuses one of two racing calls. Raises IscpError.
        """
        for _ in range(RACES):
            barrier = self._read_barrier()
            raised = barrier.raise_epochs(tenants)
            try:
                self._replace_constraint(barrier, raised)
            except ClickHouseError:
                if self._read_barrier().epoch == barrier.epoch:
                    raise
                continue
            self._await_earlier_statements()
            return raised.epoch
        raise ClickHouseBusyError(
            f"Other runs raised the barrier of {self.database}.{self.table} first, {RACES} times "
            "in a row; the next iteration tries again."
        )

    def _read_barrier(self) -> Barrier:
        query = (
            "SELECT name, expression FROM system.constraints WHERE database = {database:String} "
            "AND table = {table:String} AND startsWith(name, {head:String})"
        )
        parameters = {"database": self.database, "table": self.table, "head": CONSTRAINT_PREFIX}
        with self.endpoint.translate_errors("read the barrier"):
            constraints = self.endpoint.get_client().query(query, parameters=parameters).result_rows
        if len(constraints) != 1:
            raise ClickHouseError(
                f"{self.database}.{self.table} has {len(constraints)} constraints "
                f"{CONSTRAINT_PREFIX}…, but "
                "needs exactly the one it was created with, which rejects late inserts. Somebody "
                "changed them. Rebuild an index with `iscp job rebuild --tenant '*'`; for a table "
                "of dead letters, replay the letters and drop the table, and it is created again."
            )
        return Barrier.parse(*constraints[0])

    def _replace_constraint(self, barrier: Barrier, raised: Barrier) -> None:
        name = quote_identifier(self.database, self.table)
        with self.endpoint.translate_errors(f"raise the barrier of {self.database}.{self.table}"):
            self.endpoint.get_client().command(
                f"ALTER TABLE {name} DROP CONSTRAINT {barrier.name}, ADD "
                f"{raised.render_constraint(self.column)}",
                settings=ALL_REPLICAS_SETTINGS,
            )

    def _await_earlier_statements(self) -> None:
        """Wait for statements that began under the earlier constraint; kill the slow ones."""
        running = self._list_running()
        if self._wait_for_end(running, GRACE_SECONDS):
            return
        with self.endpoint.translate_errors(
            f"kill late statements on {self.database}.{self.table}"
        ):
            ids = ", ".join(map(quote_string, sorted(running)))
            self.endpoint.get_client().command(f"KILL QUERY WHERE query_id IN ({ids}) ASYNC")
        if not self._wait_for_end(running, KILL_SECONDS):
            raise ClickHouseBusyError(
                f"ClickHouse at {self.endpoint.address}: statements of an earlier run on "
                f"{self.database}.{self.table} do not end ({', '.join(sorted(running))}), so its "
                "rows stay unchanged. The next iteration tries again."
            )

    def _wait_for_end(self, query_ids: Collection[str], seconds: float) -> bool:
        waited = 0.0
        while self._list_running(query_ids):
            if waited >= seconds:
                return False
            self.sleep(LOOK_SECONDS)
            waited += LOOK_SECONDS
        return True

    def _list_running(self, among: Collection[str] | None = None) -> frozenset[str]:
        """Return the ids of the table's running statements; with `among`, only those in it."""
        if among is not None and not among:
            return frozenset()
        query = (
            "SELECT query_id FROM system.processes "
            "WHERE startsWith(Settings['log_comment'], {told:String})"
        )
        parameters = {"told": format_comment_prefix(self.database, self.table)}
        with self.endpoint.translate_errors("list running statements"):
            rows = self.endpoint.get_client().query(query, parameters=parameters).result_rows
        ids = frozenset(str(id_) for (id_,) in rows)
        return ids if among is None else ids & frozenset(among)
