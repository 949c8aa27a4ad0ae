"""Triggers: pure rules that map job rows and the latest version to the iterations due."""

from iscp_dagster.planning.triggers.plan import iteration_of

__all__ = ["iteration_of"]
