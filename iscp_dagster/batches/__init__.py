"""State stores, which keep every job's batch state."""

from iscp_dagster.batches.factory import make_state_store
from iscp_dagster.batches.protocol import Outcomes, StateKey, StateStore, StateWrite, StoredState

__all__ = ["Outcomes", "StateKey", "StateStore", "StateWrite", "StoredState", "make_state_store"]
