"""Triggers: pure rules that map job rows and the latest version to the iterations due."""

from iscp_dagster.planning.triggers.custom import load_trigger
from iscp_dagster.planning.triggers.plan import BUILT_IN, check_scheduled, check_trigger, plan
from iscp_dagster.planning.triggers.rules import Trigger, iteration_of

__all__ = [
    "BUILT_IN",
    "Trigger",
    "check_scheduled",
    "check_trigger",
    "iteration_of",
    "load_trigger",
    "plan",
]
