"""When a trigger fires: on the transition of a row, not on each change of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from iscp_dagster.events.changes import ConditionResult, RowChange, StampedChange
from iscp_dagster.events.timestamps import SourceTimestamp


class EventType(str, Enum):
    """What an event says about its row."""

    MATCH = "MATCH"
    UNMATCH = "UNMATCH"


class InitialMode(str, Enum):
    """What happens to rows that match when a trigger begins."""

    SKIP = "skip"
    """They are active without an event."""
    FIRE = "fire"
    """Each fires a MATCH."""


@dataclass(frozen=True, kw_only=True)
class Hysteresis:
    """Whether a trigger has an `unmatch` of its own, and so hysteresis.

    Without it a row is active exactly while it matches, and its image before the change says
    whether it was; no set of active rows needs to be kept. With it a row becomes active when it
    matches, and stays so until it meets `unmatch` without matching, or leaves the view.
    """

    has_unmatch: bool = False


@dataclass(frozen=True, kw_only=True)
class FiredEvent:
    """An event of a trigger, before it has an id: the change that it comes from, and when."""

    type: EventType
    change: RowChange
    timestamp: SourceTimestamp


def is_active(hysteresis: Hysteresis, result: ConditionResult, *, before: bool) -> bool:
    """Whether a row is active with this image, given whether it was active before."""
    if result.match or not hysteresis.has_unmatch:
        return result.match
    return before and not result.unmatch


def evaluate_change(
    hysteresis: Hysteresis, change: RowChange, *, active: bool
) -> tuple[EventType | None, bool]:
    """The event that a change fires, if any, and whether its row is active afterwards.

    `active` says whether the row was in the kept set; it is ignored without hysteresis. A row that
    leaves the view is no longer active. The same image again fires nothing.
    """
    was = (
        active
        if hysteresis.has_unmatch
        else change.before is not None and change.result_before.match
    )
    now = change.after is not None and is_active(hysteresis, change.result_after, before=was)
    if was == now:
        return None, now
    return (EventType.MATCH if now else EventType.UNMATCH), now


class TriggerMachine:
    """One trigger's rows of one tenant: takes changes in order, keeps the active keys.

    `active` are the keys (`RowChange.key`, with the tenant in them) that were active before; a
    caller may pass only keys that the changes concern. `added` and `removed` are the keys to insert
    into and delete from a store of the set.
    """

    def __init__(self, hysteresis: Hysteresis, active: Iterable[str] = ()) -> None:
        self.hysteresis = hysteresis
        self._before = frozenset(active)
        self._active = set(self._before)

    @property
    def active(self) -> frozenset[str]:
        return frozenset(self._active)

    @property
    def added(self) -> frozenset[str]:
        return frozenset(self._active - self._before)

    @property
    def removed(self) -> frozenset[str]:
        return self._before - self._active

    def apply_changes(self, changes: Iterable[StampedChange]) -> Iterator[FiredEvent]:
        """Apply the changes, which are in order for each key; yield the fired events."""
        for change, timestamp in changes:
            fired, now = evaluate_change(self.hysteresis, change, active=change.key in self._active)
            self._set_active(change.key, now=now)
            if fired is not None:
                yield FiredEvent(type=fired, change=change, timestamp=timestamp)

    def seed(self, rows: Iterable[StampedChange], initial: InitialMode) -> Iterator[FiredEvent]:
        """Begin with the rows of a snapshot: those that match are active.

        Each of them fires a MATCH if `initial` is FIRE.
        """
        self._active.clear()
        for row, timestamp in rows:
            self._set_active(row.key, now=row.result_after.match)
            if row.result_after.match and initial is InitialMode.FIRE:
                yield FiredEvent(type=EventType.MATCH, change=row, timestamp=timestamp)

    def reconcile(self, rows: Iterable[StampedChange]) -> None:
        """Follow the rows of a snapshot after a gap, without an event.

        A row that meets neither condition stays as it was; a missing row is no longer active.
        """
        was = frozenset(self._active)
        self._active.clear()
        for row, _ in rows:
            self._set_active(
                row.key, now=is_active(self.hysteresis, row.result_after, before=row.key in was)
            )

    def _set_active(self, key: str, *, now: bool) -> None:
        if now:
            self._active.add(key)
        else:
            self._active.discard(key)
