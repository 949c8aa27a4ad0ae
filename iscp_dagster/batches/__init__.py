"""State stores, which keep every job's batch state."""

from iscp_dagster.batches.factory import state_store
from iscp_dagster.batches.protocol import Held, Outcomes, StateKey, StateStore, StateWrite

__all__ = ["Held", "Outcomes", "StateKey", "StateStore", "StateWrite", "state_store"]
