"""Triggers: pure rules that map job rows and the latest version to the iterations due."""

from iscp_dagster.planning.triggers.loading import BUILT_IN, Trigger, load_trigger
from iscp_dagster.planning.triggers.plan import (
    check_scheduled,
    check_trigger,
    iteration_of,
    plan,
)

__all__ = [
    "BUILT_IN",
    "Trigger",
    "check_scheduled",
    "check_trigger",
    "iteration_of",
    "load_trigger",
    "plan",
]
