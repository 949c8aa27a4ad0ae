"""Triggers: pure rules that map job rows and the latest version to the iterations due."""

from iscp_dagster.planning.triggers.plan import plan_iteration

__all__ = ["plan_iteration"]
