"""States in memory: for tests only, gone with the process."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Mapping

from iscp_dagster.batchstates.compare import check_and_sort_writes, find_settled_outcome
from iscp_dagster.batchstates.protocol import (
    Outcomes,
    StateKey,
    StateStore,
    StateWrite,
    StoredState,
)
from iscp_dagster.model.errors import FenceError

_LOG = logging.getLogger(__name__)


class MemoryStates(StateStore):
    """A thread-safe StateStore over a dict. Logs a warning that it is for tests."""

    def __init__(self) -> None:
        self._states: dict[StateKey, StoredState] = {}
        self._lock = threading.Lock()
        _LOG.warning(
            "state_store: memory is for tests only: states are lost with this process, so "
            "nothing is exactly-once after a restart; use sql or keepermap"
        )

    def ensure(self) -> None:
        """Nothing to do."""

    def read(self, keys: Collection[StateKey]) -> Mapping[StateKey, StoredState]:
        with self._lock:
            return {key: self._states[key] for key in keys if key in self._states}

    def write_many(self, writes: Collection[StateWrite]) -> Outcomes:
        with self._lock:
            return {write.key: self._write_state(write) for write in check_and_sort_writes(writes)}

    def forget(self, keys: Collection[StateKey]) -> int:
        with self._lock:
            return sum(self._states.pop(key, None) is not None for key in set(keys))

    def _write_state(self, write: StateWrite) -> StoredState | FenceError:
        outcome = find_settled_outcome(write, self._states.get(write.key))
        if outcome is None:
            outcome = self._states[write.key] = write.new_state
        return outcome
