"""A range to read, and how."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from iscp_dagster.delta.plans import ReadKind, ReadPlan
from iscp_dagster.model.batch import Layout, Range
from iscp_dagster.model.declared.images import Transitions


@dataclass(frozen=True, kw_only=True)
class Reading:
    """A range to read, how and why, and how its changes are cut into chunks."""

    plan: ReadPlan
    range: Range
    layout: Layout = field(default_factory=dict, hash=False)
    transitions: Transitions | None = None
    """The view whose changes are read as image rows; None: the source's rows as they are."""

    @property
    def gap(self) -> str:
        """The versions whose changes no history will have, and why; empty: there are none."""
        if self.transitions is None or not self.staged or self.range.initial:
            return ""
        first, last = self.range.from_.version + 1, self.range.to.version
        return f"versions {first} to {last}: {self.plan.reason}"

    def only(self, triggers: Collection[str]) -> Reading:
        """The same for these triggers: a condition that cannot be evaluated stops its own alone."""
        if self.transitions is None:
            return self
        left = [each for each in self.transitions.conditions if each.name in triggers]
        return replace(self, transitions=self.transitions.with_conditions(left))

    @property
    def staged(self) -> bool:
        """Whether it is a snapshot, which is staged."""
        return self.plan.kind is ReadKind.SNAPSHOT
