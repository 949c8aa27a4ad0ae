"""State stores, which keep every job's batch state."""

from iscp_dagster.batchstates.factory import make_state_store
from iscp_dagster.batchstates.protocol import (
    Outcomes,
    StateKey,
    StateStore,
    StateWrite,
    StoredState,
)

__all__ = ["Outcomes", "StateKey", "StateStore", "StateWrite", "StoredState", "make_state_store"]
