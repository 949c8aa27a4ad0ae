"""What one iteration makes of one tenant's changes: events, and the active rows afterwards."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from iscp_dagster.events.changes import Stamped
from iscp_dagster.events.hysteresis import Condition, EventType, Fired, Initial, Machine
from iscp_dagster.joblog.sql.active import ActiveSet
from iscp_dagster.model.batch import Range
from iscp_dagster.model.declared.endpoints import Endpoint
from iscp_dagster.model.declared.eventtriggers import Trigger


@dataclass(frozen=True, kw_only=True)
class Read:
    """How one tenant's rows were read."""

    registration: int
    range: Range
    snapshot: bool
    reason: str = ""
    """Why it is a snapshot."""


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """What fired, and how the tenant's active rows move.

    `anew`: the added rows replace all earlier ones.
    """

    fired: Sequence[Fired] = ()
    held: ActiveSet
    added: Collection[str] = ()
    removed: Collection[str] = ()
    anew: bool = False
    gap: str = ""
    """The commits of this iteration whose transitions are unknown, and why; empty: none."""

    def count(self, type_: EventType) -> int:
        """How many events of that type fired."""
        return sum(each.type is type_ for each in self.fired)


@dataclass(frozen=True)
class Rule:
    """A trigger as its iterations evaluate it."""

    trigger: Trigger
    identity: Sequence[str]
    """The source's tenant column, if it has one, and its key columns."""

    @cached_property
    def condition(self) -> Condition:
        return Condition(unmatch=self.trigger.unmatch is not None)

    @cached_property
    def definition(self) -> str:
        """A digest of what decides whether a row is active; another one is another generation."""
        told = json.dumps([self.trigger.definition, *self.identity], sort_keys=True)
        return hashlib.sha256(told.encode()).hexdigest()[:32]

    @property
    def columns(self) -> frozenset[str]:
        """The columns that its events have; none: all."""
        asked = self.trigger.columns
        return frozenset((*self.identity, *asked)) if asked else frozenset()

    @property
    def bounds(self) -> Mapping[str, int]:
        """How many of its events may wait for each of its endpoints."""
        return {each.name: each.pending for each in self.trigger.to if isinstance(each, Endpoint)}

    @property
    def changed(self) -> str:
        """Why a set that another definition kept is found anew."""
        return f"the definition of trigger {self.trigger.name!r} changed"

    def is_another(self, held: ActiveSet) -> bool:
        """Whether the set was kept by another definition."""
        return held.definition != self.definition

    def evaluated(
        self,
        changes: Sequence[Stamped],
        before: ActiveSet | None,
        active: Collection[str],
        read: Read,
    ) -> Evaluated:
        """The outcome for one tenant; `changes` are in order.

        `before` is what was kept, and `active` are the active rows among those that changed, or
        that the snapshot has. Commits that were looked at before change nothing. No event comes of
        a snapshot, except of the first one if the trigger says `initial="fire"`: what happened in
        between is unknown, and is noted as a gap.
        """
        if before is not None and before.registration != read.registration:
            before, active = None, ()
        if not read.snapshot:
            return self._moved(changes, before, active, read)
        if before is None and read.range.initial:
            return self._seeded(changes, Initial(self.trigger.initial), read)
        if before is not None and self.is_another(before):
            # What was active by another condition says nothing about this one.
            active, read = (), replace(read, reason=self.changed)
        machine = Machine(self.condition, active)
        machine.reconcile(changes)
        return self._after_gap(machine, before, read)

    def _moved(
        self,
        changes: Sequence[Stamped],
        before: ActiveSet | None,
        active: Collection[str],
        read: Read,
    ) -> Evaluated:
        upto = -1 if before is None else before.upto
        machine = Machine(self.condition, active)
        fired = list(machine.take(each for each in changes if each[1].version > upto))
        matched = sum(1 if each.type is EventType.MATCH else -1 for each in fired)
        number = (0 if before is None else before.number) + matched
        kept = self.condition.unmatch
        return Evaluated(
            fired=fired,
            held=replace(
                self._held(read, number, "" if before is None else before.gap),
                since=read.range.from_ if before is None else before.since,
            ),
            added=machine.added if kept else (),
            removed=machine.removed if kept else (),
            anew=before is None,
        )

    def _seeded(self, rows: Sequence[Stamped], initial: Initial, read: Read) -> Evaluated:
        machine = Machine(self.condition)
        fired = list(machine.seed(rows, initial))
        held = self._held(read, len(machine.active))
        return Evaluated(fired=fired, held=held, added=self._kept(machine), anew=True)

    def _after_gap(self, machine: Machine, before: ActiveSet | None, read: Read) -> Evaluated:
        gap, earlier = _gap(before, read), "" if before is None else before.gap
        held = self._held(read, len(machine.active), gap or earlier)
        return Evaluated(held=held, added=self._kept(machine), anew=True, gap=gap)

    def _kept(self, machine: Machine) -> Collection[str]:
        """The rows to keep as active: none without hysteresis, where each image tells."""
        return machine.active if self.condition.unmatch else ()

    def _held(self, read: Read, number: int, gap: str = "") -> ActiveSet:
        return ActiveSet(
            registration=read.registration,
            definition=self.definition,
            number=number,
            upto=read.range.to.version,
            since=read.range.to,
            gap=gap,
        )


def _gap(before: ActiveSet | None, read: Read) -> str:
    """The commits whose transitions are unknown, and why; empty: all were looked at before."""
    first, last = read.range.from_.version + 1, read.range.to.version
    # A table that was restored goes on from an earlier version than it had.
    if before is not None and before.upto <= last:
        first = max(first, before.upto + 1)
    return f"versions {first} to {last}: {read.reason}" if first <= last else ""
