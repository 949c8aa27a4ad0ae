"""States in ClickHouse Keeper or ZooKeeper, through ClickHouse's KeeperMap engine (ADR 12)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from iscp_dagster.batchstates import compare, keepersql
from iscp_dagster.batchstates.protocol import (
    Outcomes,
    StateKey,
    StateStore,
    StateWrite,
    StoredState,
)
from iscp_dagster.clickhouse.connect.endpoint import ClickHouseEndpoint
from iscp_dagster.clickhouse.connect.failures import ClickHouseError
from iscp_dagster.model.errors import FenceError, IscpError, SetupError, UnavailableError
from iscp_dagster.model.portions import split_into_portions

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

# KEEPER_EXCEPTION; INVALID_STATE, of a table that was loaded while its Keeper was down.
_KEEPER_CODES = {999, 668}
_CONFLICT_CODE = 395
_NO_KEEPER_CODES = {36, 139}


class KeeperMapStates(StateStore):
    """A StateStore in a KeeperMap table, one row per key.

    Stores with the same `path` share their states, also on different ClickHouse servers; each
    server has its own table for that path. With several Keeper nodes `read` may return an
    outdated state; a write that has seen it gets a FenceError.
    """

    def __init__(
        self, endpoint: ClickHouseEndpoint, *, database: str = "default", path: str = "/iscp_states"
    ) -> None:
        self._endpoint = endpoint
        self._sql = keepersql.build_statements(database, path)

    def ensure(self) -> None:
        with self._open_client("make the table of states") as client:
            if self._sql.create_database:
                client.command(self._sql.create_database)
            client.command(self._sql.create)
            (engine,) = client.query(self._sql.read_engine).first_row
        if self._sql.path not in engine:
            raise SetupError(
                f"The state table {self._sql.table} does not have the path {self._sql.path}: "
                f"{engine}. Use another database (ISCP_STATE_STORE=keepermap:database/path), or "
                "drop the table, which deletes its states."
            )

    def read(self, keys: Collection[StateKey]) -> Mapping[StateKey, StoredState]:
        keys_by_id, states = compare.map_by_id(keys), dict[StateKey, StoredState]()
        for ids in split_into_portions(keys_by_id, most=keepersql.MOST_ROWS):
            with self._open_client("read states") as client:
                rows = client.query(
                    self._sql.read, {"ids": ids}, keepersql.RETRY_SETTINGS
                ).result_rows
            states |= {keys_by_id[state_id]: compare.from_text(text) for state_id, text in rows}
        return states

    def write_many(self, writes: Collection[StateWrite]) -> Outcomes:
        ordered = compare.check_and_sort_writes(writes)
        inserts = list(keepersql.split_writes(write for write in ordered if write.expected is None))
        updates = list(
            keepersql.split_writes(write for write in ordered if write.expected is not None)
        )
        outcomes: dict[StateKey, StoredState | FenceError] = {}
        for portion in inserts:
            outcomes |= self._send_writes(portion, self._insert_states)
        for portion in updates:
            outcomes |= self._send_writes(portion, self._update_states)
        return outcomes

    def forget(self, keys: Collection[StateKey]) -> int:
        keys_by_id = compare.map_by_id(self.read(keys))
        for ids in split_into_portions(keys_by_id, most=keepersql.MOST_ROWS):
            with self._open_client("forget states") as client:
                client.raw_query(self._sql.forget, {"ids": ids}, keepersql.RETRY_SETTINGS)
        return len(keys_by_id)

    def _send_writes(
        self, writes: Sequence[StateWrite], send: Callable[[Sequence[StateWrite]], Outcomes]
    ) -> Outcomes:
        """Send all in one Keeper transaction; if it fails, retry without the settled writes."""
        outcomes: dict[StateKey, StoredState | FenceError] = {}
        while writes:
            try:
                return {**outcomes, **send(writes)}
            except IscpError:
                settled = self._find_settled(writes)
                if not settled:
                    raise
                outcomes |= settled
                writes = [write for write in writes if write.key not in settled]
        return outcomes

    def _find_settled(
        self, writes: Sequence[StateWrite]
    ) -> dict[StateKey, StoredState | FenceError]:
        """The outcomes that are settled: a statement that failed may have taken effect."""
        stored = self.read([write.key for write in writes])
        outcomes = {
            write.key: compare.find_settled_outcome(write, stored.get(write.key))
            for write in writes
        }
        return {key: outcome for key, outcome in outcomes.items() if outcome is not None}

    def _insert_states(self, writes: Sequence[StateWrite]) -> Outcomes:
        rows = keepersql.format_rows(writes)
        with self._open_client("write states") as client:
            client.raw_insert(
                self._sql.table, keepersql.COLUMNS, rows, keepersql.STRICT, keepersql.ROW_FORMAT
            )
        return {write.key: write.new_state for write in writes}

    def _update_states(self, writes: Sequence[StateWrite]) -> Outcomes:
        values = {
            "ids": [compare.compute_state_id(write.key) for write in writes],
            "seen": [
                compare.to_text(write.expected) for write in writes if write.expected is not None
            ],
            "new": [compare.to_text(write.new_state) for write in writes],
        }
        with self._open_client("write states") as client:
            client.raw_query(self._sql.update, values, keepersql.STRICT)
        # An update of a row that no longer exists does not fail.
        stored = self.read([write.key for write in writes])
        return {write.key: _confirm_update(write, stored.get(write.key)) for write in writes}

    @contextmanager
    def _open_client(self, action: str) -> Iterator[Client]:
        try:
            client = self._endpoint.get_client()
            with self._endpoint.translate_errors(action):
                yield client
        except IscpError as error:
            explained = self._explain_error(error, action)
            if explained is None:
                raise
            raise explained from error

    def _explain_error(self, error: IscpError, action: str) -> IscpError | None:
        """An error that names Keeper, the comparison or the set-up, if one of them is the cause."""
        code = getattr(error.__cause__, "code", None)
        if code in _KEEPER_CODES:
            return UnavailableError(
                f"The Keeper (ZooKeeper) behind ClickHouse at {self._endpoint.address} did not "
                f"{action}; check that it is up. {error}"
            )
        if code == _CONFLICT_CODE:
            return FenceError(f"States changed while they were compared ({action}); plan again.")
        if code in _NO_KEEPER_CODES and isinstance(error, ClickHouseError):
            return SetupError(f"{error}. See docs/state-stores.md for what KeeperMap needs.")
        return None


def _confirm_update(write: StateWrite, stored: StoredState | None) -> StoredState | FenceError:
    """An update's outcome; another run may already have written after it."""
    state = write.new_state
    overwritten = stored is not None and stored.fence > state.fence
    return (
        state
        if overwritten or compare.is_same(stored, state)
        else compare.make_lost_error(write, stored)
    )
