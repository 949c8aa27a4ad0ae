"""States in ClickHouse Keeper or ZooKeeper, through ClickHouse's KeeperMap engine (ADR 12)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from iscp_dagster.batches import compare, keepersql
from iscp_dagster.batches.protocol import Held, Outcomes, StateKey, StateStore, StateWrite
from iscp_dagster.clickhouse.connect.endpoint import Endpoint
from iscp_dagster.clickhouse.connect.failures import ClickHouseError
from iscp_dagster.model.errors import FenceError, IscpError, SetupError, UnavailableError
from iscp_dagster.model.portions import split_into_portions

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

# KEEPER_EXCEPTION; INVALID_STATE, of a table that was loaded while its Keeper was down.
_OF_KEEPER = {999, 668}
_NOT_AS_SEEN = 395
_NOT_SET_UP = {36, 139}


class KeeperMapStates(StateStore):
    """A StateStore in a KeeperMap table, one row per key.

    Stores with the same `path` share their states, also on different ClickHouse servers; each
    server has its own table for that path. With several Keeper nodes `read` may return an
    outdated state; a write that has seen it gets a FenceError.
    """

    def __init__(
        self, endpoint: Endpoint, *, database: str = "default", path: str = "/iscp_states"
    ) -> None:
        self._endpoint = endpoint
        self._sql = keepersql.statements(database, path)

    def ensure(self) -> None:
        with self._asking("make the table of states") as client:
            if self._sql.database:
                client.command(self._sql.database)
            client.command(self._sql.create)
            (made,) = client.query(self._sql.made).first_row
        if self._sql.path not in made:
            raise SetupError(
                f"The state table {self._sql.table} does not have the path {self._sql.path}: "
                f"{made}. Use another database (ISCP_STATE_STORE=keepermap:database/path), or "
                "drop the table, which deletes its states."
            )

    def read(self, keys: Collection[StateKey]) -> Mapping[StateKey, Held]:
        wanted, found = compare.by_id(keys), dict[StateKey, Held]()
        for ids in split_into_portions(wanted, most=keepersql.MOST_ROWS):
            with self._asking("read states") as client:
                rows = client.query(self._sql.read, {"ids": ids}, keepersql.PATIENCE).result_rows
            found |= {wanted[one]: compare.from_text(text) for one, text in rows}
        return found

    def write_many(self, writes: Collection[StateWrite]) -> Outcomes:
        due = compare.checked(writes)
        fresh = list(keepersql.split_writes(write for write in due if write.seen is None))
        later = list(keepersql.split_writes(write for write in due if write.seen is not None))
        outcomes: dict[StateKey, Held | FenceError] = {}
        for some in fresh:
            outcomes |= self._written(some, self._insert)
        for some in later:
            outcomes |= self._written(some, self._update)
        return outcomes

    def forget(self, keys: Collection[StateKey]) -> int:
        there = compare.by_id(self.read(keys))
        for ids in split_into_portions(there, most=keepersql.MOST_ROWS):
            with self._asking("forget states") as client:
                client.raw_query(self._sql.forget, {"ids": ids}, keepersql.PATIENCE)
        return len(there)

    def _written(
        self, writes: Sequence[StateWrite], send: Callable[[Sequence[StateWrite]], Outcomes]
    ) -> Outcomes:
        """Send all in one Keeper transaction; if it fails, retry without those done or lost."""
        outcomes: dict[StateKey, Held | FenceError] = {}
        while writes:
            try:
                return {**outcomes, **send(writes)}
            except IscpError:
                known = self._settled(writes)
                if not known:
                    raise
                outcomes |= known
                writes = [write for write in writes if write.key not in known]
        return outcomes

    def _settled(self, writes: Sequence[StateWrite]) -> dict[StateKey, Held | FenceError]:
        """The outcomes that are settled: a statement that failed may have taken effect."""
        found = self.read([write.key for write in writes])
        known = {write.key: compare.settled(write, found.get(write.key)) for write in writes}
        return {key: outcome for key, outcome in known.items() if outcome is not None}

    def _insert(self, writes: Sequence[StateWrite]) -> Outcomes:
        rows = keepersql.lines(writes)
        with self._asking("write states") as client:
            client.raw_insert(
                self._sql.table, keepersql.COLUMNS, rows, keepersql.STRICT, keepersql.LINES
            )
        return {write.key: write.held for write in writes}

    def _update(self, writes: Sequence[StateWrite]) -> Outcomes:
        values = {
            "ids": [compare.state_id(write.key) for write in writes],
            "seen": [compare.to_text(write.seen) for write in writes if write.seen is not None],
            "new": [compare.to_text(write.held) for write in writes],
        }
        with self._asking("write states") as client:
            client.raw_query(self._sql.update, values, keepersql.STRICT)
        # An update of a row that no longer exists does not fail.
        found = self.read([write.key for write in writes])
        return {write.key: _confirmed(write, found.get(write.key)) for write in writes}

    @contextmanager
    def _asking(self, doing: str) -> Iterator[Client]:
        try:
            client = self._endpoint.client()
            with self._endpoint.errors(doing):
                yield client
        except IscpError as error:
            named = self._named(error, doing)
            if named is None:
                raise
            raise named from error

    def _named(self, error: IscpError, doing: str) -> IscpError | None:
        """The error that names Keeper, the comparison or the set-up as the cause, if it is one."""
        code = getattr(error.__cause__, "code", None)
        if code in _OF_KEEPER:
            return UnavailableError(
                f"The Keeper (ZooKeeper) behind ClickHouse at {self._endpoint.address} did not "
                f"{doing}; check that it is up. {error}"
            )
        if code == _NOT_AS_SEEN:
            return FenceError(f"States changed while they were compared ({doing}); plan again.")
        if code in _NOT_SET_UP and isinstance(error, ClickHouseError):
            return SetupError(f"{error}. See docs/state-stores.md for what KeeperMap needs.")
        return None


def _confirmed(write: StateWrite, found: Held | None) -> Held | FenceError:
    """An update's outcome; another run may already have written after it."""
    new = write.held
    after = found is not None and found.fence > new.fence
    return new if after or compare.same(found, new) else compare.lost(write, found)
