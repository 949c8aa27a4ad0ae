"""What one iteration makes of one tenant's changes: events, and the active rows afterwards."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from iscp_dagster.events.changes import StampedChange
from iscp_dagster.events.hysteresis import (
    EventType,
    FiredEvent,
    Hysteresis,
    InitialMode,
    TriggerMachine,
)
from iscp_dagster.joblog.sql.active_sets import ActiveSet
from iscp_dagster.model.batch import Range
from iscp_dagster.model.declared.endpoints import Endpoint
from iscp_dagster.model.declared.eventtriggers import Trigger


@dataclass(frozen=True, kw_only=True)
class TenantRead:
    """How one tenant's rows were read."""

    registration: int
    range: Range
    snapshot: bool
    reason: str = ""
    """Why it is a snapshot."""


@dataclass(frozen=True, kw_only=True)
class TriggerEvaluation:
    """What fired, and how the tenant's active rows move.

    `replaces_all`: the added rows replace all earlier ones.
    """

    fired: Sequence[FiredEvent] = ()
    active_set: ActiveSet
    added: Collection[str] = ()
    removed: Collection[str] = ()
    replaces_all: bool = False
    gap: str = ""
    """The commits of this iteration whose transitions are unknown, and why; empty: none."""

    def count(self, type_: EventType) -> int:
        """How many events of that type fired."""
        return sum(event.type is type_ for event in self.fired)


@dataclass(frozen=True)
class TriggerEvaluator:
    """A trigger as its iterations evaluate it."""

    trigger: Trigger
    identity: Sequence[str]
    """The source's tenant column, if it has one, and its key columns."""

    @cached_property
    def hysteresis(self) -> Hysteresis:
        return Hysteresis(has_unmatch=self.trigger.unmatch is not None)

    @cached_property
    def definition_digest(self) -> str:
        """A digest of what decides whether a row is active; a new one makes a new generation."""
        text = json.dumps([self.trigger.definition, *self.identity], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    @property
    def columns(self) -> frozenset[str]:
        """The columns that its events have; empty: all."""
        columns = self.trigger.columns
        return frozenset((*self.identity, *columns)) if columns else frozenset()

    @property
    def pending_limits(self) -> Mapping[str, int]:
        """How many of its events may wait for each endpoint."""
        return {
            endpoint.name: endpoint.pending
            for endpoint in self.trigger.to
            if isinstance(endpoint, Endpoint)
        }

    @property
    def change_reason(self) -> str:
        """Why a set kept by another definition is computed again."""
        return f"the definition of trigger {self.trigger.name!r} changed"

    def has_other_definition(self, active_set: ActiveSet) -> bool:
        """Whether the set was kept by another definition."""
        return active_set.definition != self.definition_digest

    def evaluate_changes(
        self,
        changes: Sequence[StampedChange],
        before: ActiveSet | None,
        active: Collection[str],
        read: TenantRead,
    ) -> TriggerEvaluation:
        """The outcome for one tenant; `changes` are in order.

        `before` is what was kept, and `active` are the active rows among those that changed, or
        that the snapshot has. Commits that were evaluated before change nothing. A snapshot fires
        no event, except the first one if the trigger has `initial="fire"`: what happened in between
        is unknown, and is recorded as a gap.
        """
        if before is not None and before.registration != read.registration:
            before, active = None, ()
        if not read.snapshot:
            return self._apply_changes(changes, before, active, read)
        if before is None and read.range.initial:
            return self._seed_rows(changes, InitialMode(self.trigger.initial), read)
        if before is not None and self.has_other_definition(before):
            # The rows active under another condition say nothing about this one.
            active, read = (), replace(read, reason=self.change_reason)
        machine = TriggerMachine(self.hysteresis, active)
        machine.reconcile(changes)
        return self._resume_after_gap(machine, before, read)

    def _apply_changes(
        self,
        changes: Sequence[StampedChange],
        before: ActiveSet | None,
        active: Collection[str],
        read: TenantRead,
    ) -> TriggerEvaluation:
        upto = -1 if before is None else before.upto
        machine = TriggerMachine(self.hysteresis, active)
        fired = list(
            machine.apply_changes(stamped for stamped in changes if stamped[1].version > upto)
        )
        delta = sum(1 if event.type is EventType.MATCH else -1 for event in fired)
        number = (0 if before is None else before.row_count) + delta
        keeps_set = self.hysteresis.has_unmatch
        return TriggerEvaluation(
            fired=fired,
            active_set=replace(
                self._make_active_set(read, number, "" if before is None else before.gap),
                since=read.range.from_ if before is None else before.since,
            ),
            added=machine.added if keeps_set else (),
            removed=machine.removed if keeps_set else (),
            replaces_all=before is None,
        )

    def _seed_rows(
        self, rows: Sequence[StampedChange], initial: InitialMode, read: TenantRead
    ) -> TriggerEvaluation:
        machine = TriggerMachine(self.hysteresis)
        fired = list(machine.seed(rows, initial))
        active_set = self._make_active_set(read, len(machine.active))
        return TriggerEvaluation(
            fired=fired,
            active_set=active_set,
            added=self._get_kept_keys(machine),
            replaces_all=True,
        )

    def _resume_after_gap(
        self, machine: TriggerMachine, before: ActiveSet | None, read: TenantRead
    ) -> TriggerEvaluation:
        gap, earlier = _describe_gap(before, read), "" if before is None else before.gap
        active_set = self._make_active_set(read, len(machine.active), gap or earlier)
        return TriggerEvaluation(
            active_set=active_set, added=self._get_kept_keys(machine), replaces_all=True, gap=gap
        )

    def _get_kept_keys(self, machine: TriggerMachine) -> Collection[str]:
        """The rows to keep as active: none without hysteresis, where each image shows it."""
        return machine.active if self.hysteresis.has_unmatch else ()

    def _make_active_set(self, read: TenantRead, number: int, gap: str = "") -> ActiveSet:
        return ActiveSet(
            registration=read.registration,
            definition=self.definition_digest,
            row_count=number,
            upto=read.range.to.version,
            since=read.range.to,
            gap=gap,
        )


def _describe_gap(before: ActiveSet | None, read: TenantRead) -> str:
    """The commits whose transitions are unknown, and why; empty: all were evaluated before."""
    first, last = read.range.from_.version + 1, read.range.to.version
    # A restored table continues from an earlier version than it had.
    if before is not None and before.upto <= last:
        first = max(first, before.upto + 1)
    return f"versions {first} to {last}: {read.reason}" if first <= last else ""
