"""When a trigger fires: on the transition of a row, not on each change of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from iscp_dagster.events.changes import Change, Stamped, Truth
from iscp_dagster.events.timestamps import SourceTimestamp


class EventType(str, Enum):
    """What an event says of its row."""

    MATCH = "MATCH"
    UNMATCH = "UNMATCH"


class Initial(str, Enum):
    """What becomes of rows that match when a trigger begins."""

    SKIP = "skip"
    """They are active without an event."""
    FIRE = "fire"
    """Each gives a MATCH."""


@dataclass(frozen=True, kw_only=True)
class Condition:
    """Whether a trigger has an `unmatch` of its own, and so hysteresis.

    Without it a row is active exactly while it matches, and its image before the change says
    whether it was; no set of active rows needs to be kept. With it a row becomes active when it
    matches, and stays so until it meets `unmatch` without matching, or leaves the view.
    """

    unmatch: bool = False


@dataclass(frozen=True, kw_only=True)
class Fired:
    """An event of a trigger, before it has an id: the change that it comes from, and when."""

    type: EventType
    change: Change
    timestamp: SourceTimestamp


def is_active(condition: Condition, truth: Truth, *, before: bool) -> bool:
    """Whether a row is active with this image, given whether it was active before."""
    if truth.match or not condition.unmatch:
        return truth.match
    return before and not truth.unmatch


def moved(condition: Condition, change: Change, *, active: bool) -> tuple[EventType | None, bool]:
    """The event that a change fires, if any, and whether its row is active afterwards.

    `active` says whether the row was in the kept set; it is ignored without hysteresis. A row that
    leaves the view is no longer active. The same image again fires nothing.
    """
    was = active if condition.unmatch else change.before is not None and change.was.match
    now = change.after is not None and is_active(condition, change.becomes, before=was)
    if was == now:
        return None, now
    return (EventType.MATCH if now else EventType.UNMATCH), now


class Machine:
    """One trigger's rows of one tenant: takes changes in order, keeps the active keys.

    `active` are the keys (`Change.key`, with the tenant in them) that were active before; a caller
    may pass only those that the changes concern. The keys that `added` and `removed` name are what
    a store of the set must change to follow.
    """

    def __init__(self, condition: Condition, active: Iterable[str] = ()) -> None:
        self.condition = condition
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

    def take(self, changes: Iterable[Stamped]) -> Iterator[Fired]:
        """Move the rows of the changes, which are in order for each key; yield what fires."""
        for change, timestamp in changes:
            fired, now = moved(self.condition, change, active=change.key in self._active)
            self._set(change.key, now=now)
            if fired is not None:
                yield Fired(type=fired, change=change, timestamp=timestamp)

    def seed(self, rows: Iterable[Stamped], initial: Initial) -> Iterator[Fired]:
        """Begin with the rows of a snapshot: those that match are active.

        Each of them gives a MATCH if `initial` is FIRE.
        """
        self._active.clear()
        for row, timestamp in rows:
            self._set(row.key, now=row.becomes.match)
            if row.becomes.match and initial is Initial.FIRE:
                yield Fired(type=EventType.MATCH, change=row, timestamp=timestamp)

    def reconcile(self, rows: Iterable[Stamped]) -> None:
        """Agree with the rows of a snapshot after a gap, without an event.

        A row that meets neither condition stays as it was; one that is gone is no longer active.
        """
        was = frozenset(self._active)
        self._active.clear()
        for row, _ in rows:
            self._set(row.key, now=is_active(self.condition, row.becomes, before=row.key in was))

    def _set(self, key: str, *, now: bool) -> None:
        if now:
            self._active.add(key)
        else:
            self._active.discard(key)
