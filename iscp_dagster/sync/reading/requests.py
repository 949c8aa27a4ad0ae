"""A range to read, and how."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from iscp_dagster.delta.read_plans import ReadKind, ReadPlan
from iscp_dagster.model.batch import Layout, Range
from iscp_dagster.model.declared.images import ImageSource


@dataclass(frozen=True, kw_only=True)
class ReadRequest:
    """A range to read, how and why, and how its changes are cut into chunks."""

    plan: ReadPlan
    range: Range
    layout: Layout = field(default_factory=dict, hash=False)
    image_source: ImageSource | None = None
    """The view whose changes are read as image rows; None: the source's own rows."""

    @property
    def gap(self) -> str:
        """The versions whose changes the histories will lack, and why; empty: none."""
        if self.image_source is None or not self.is_snapshot or self.range.initial:
            return ""
        first, last = self.range.from_.version + 1, self.range.to.version
        return f"versions {first} to {last}: {self.plan.reason}"

    def select_triggers(self, triggers: Collection[str]) -> ReadRequest:
        """The same for these triggers: an invalid condition fails only its own trigger."""
        if self.image_source is None:
            return self
        conditions = [
            condition for condition in self.image_source.conditions if condition.name in triggers
        ]
        return replace(self, image_source=self.image_source.replace_conditions(conditions))

    @property
    def is_snapshot(self) -> bool:
        """Whether it is a snapshot, which is staged."""
        return self.plan.kind is ReadKind.SNAPSHOT
