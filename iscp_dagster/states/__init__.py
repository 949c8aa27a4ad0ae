"""State stores: the durable place of every job's batch state (seed 004, "Storing State")."""

from iscp_dagster.states.factory import state_store
from iscp_dagster.states.protocol import Held, Outcomes, StateKey, StateStore, Write

__all__ = ["Held", "Outcomes", "StateKey", "StateStore", "Write", "state_store"]
