"""States in memory: for tests only, gone with the process."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Mapping

from iscp_dagster.batches.compare import checked, settled
from iscp_dagster.batches.protocol import Held, Outcomes, StateKey, StateStore, StateWrite
from iscp_dagster.model.errors import FenceError

_LOG = logging.getLogger(__name__)


class MemoryStates(StateStore):
    """A StateStore over a dict; threads take turns. Warns in the logs that it is for tests."""

    def __init__(self) -> None:
        self._held: dict[StateKey, Held] = {}
        self._lock = threading.Lock()
        _LOG.warning(
            "state_store: memory is for tests only: states are lost with this process, so "
            "nothing is exactly-once after a restart; use sql or keepermap"
        )

    def ensure(self) -> None:
        """Nothing to do."""

    def read(self, keys: Collection[StateKey]) -> Mapping[StateKey, Held]:
        with self._lock:
            return {key: self._held[key] for key in keys if key in self._held}

    def write_many(self, writes: Collection[StateWrite]) -> Outcomes:
        with self._lock:
            return {write.key: self._written(write) for write in checked(writes)}

    def forget(self, keys: Collection[StateKey]) -> int:
        with self._lock:
            return sum(self._held.pop(key, None) is not None for key in set(keys))

    def _written(self, write: StateWrite) -> Held | FenceError:
        outcome = settled(write, self._held.get(write.key))
        if outcome is None:
            outcome = self._held[write.key] = write.held
        return outcome
