"""The batch state machine: one pure decision over two ranges.

Offsets are commit versions. A range is half-open, (from, to]: `minOffset` elsewhere is `from + 1`
here, `maxOffset` is `to`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType
from typing import Any

from iscp_dagster.model.errors import BatchError
from iscp_dagster.model.moment import START, Moment

Layout = Mapping[str, Any]
"""How a range is cut into chunks; JSON that only the writer reads."""
SAME_LAYOUT: Mapping[str, Layout] = MappingProxyType({})
"""No tenant's layout differs from the iteration's."""


@dataclass(frozen=True, kw_only=True)
class Range:
    """The commits after `from_` up to and including `to`; at least one."""

    from_: Moment
    to: Moment

    def __post_init__(self) -> None:
        if self.from_.version >= self.to.version:
            raise BatchError(
                f"The range ({self.from_.version}, {self.to.version}] is empty; "
                "an iteration covers at least one version."
            )

    def __str__(self) -> str:
        return f"({self.from_.version}, {self.to.version}]"

    @property
    def initial(self) -> bool:
        """Whether it starts before the first commit: an initial synchronization."""
        return self.from_.version == START.version


class Phase(str, Enum):
    """Whether the insert of a batch is known to have succeeded."""

    BEFORE = "BEFORE"
    AFTER = "AFTER"


@dataclass(frozen=True, kw_only=True)
class BatchRecord:
    """The record of a job's previous batch."""

    range: Range
    phase: Phase
    layout: Layout = field(default_factory=dict, hash=False)


class Case(str, Enum):
    """How an incoming range relates to the previous one."""

    NONE = "none"
    SAME = "same"
    OVERLAPPING = "overlapping"
    CONTAINS = "contains"
    NEW = "new"
    INVALID = "invalid"


class BatchAction(str, Enum):
    """What to do with a range."""

    REPLAY = "replay"
    """Insert again exactly as recorded: same range, same layout, same tokens."""
    INSERT = "insert"
    """Insert for the first time, with a layout of the writer's choice."""
    SKIP = "skip"
    """Do nothing: it has been inserted."""
    DEAD_LETTER = "dead_letter"
    """Set it aside for a person: it can be neither replayed nor skipped."""
    REJECT = "reject"
    """Write nothing: it contradicts the record."""


WRITES = frozenset({BatchAction.REPLAY, BatchAction.INSERT})
SETTLES = WRITES | {BatchAction.DEAD_LETTER}
"""The actions that finish a range."""


@dataclass(frozen=True, kw_only=True)
class BatchStep:
    """One action on one range; `layout` is the recorded one, if it must be kept."""

    action: BatchAction
    range: Range
    layout: Layout | None = field(default=None, hash=False)


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The steps to take in order; `cropped` is the part dropped from the incoming range first."""

    case: Case
    steps: tuple[BatchStep, ...]
    cropped: Range | None = None


def decide(
    previous: BatchRecord | None,
    incoming: Range,
    *,
    tolerate_state_mismatch: bool = False,
    repeatable: bool = True,
) -> Decision:
    """Decide what to do with `incoming` after `previous` (docs/exactly-once.md has the table).

    `tolerate_state_mismatch` skips an invalid range instead of rejecting it. Without `repeatable`
    an unconfirmed range is set aside, since its chunks cannot be made again. Delta's ranges, unlike
    Kafka's, can be read again, hence two refinements: a new range after an unconfirmed one
    replays that one first, so no data is skipped; and a range that begins inside the previous one
    and ends after it counts as overlapping.
    """
    if previous is None:
        return Decision(case=Case.NONE, steps=(_make_insert_step(incoming),))
    kept, cropped = _crop(previous.range, incoming)
    case = _classify_range(previous.range, kept)
    if case is Case.INVALID:
        action = BatchAction.SKIP if tolerate_state_mismatch else BatchAction.REJECT
        return Decision(case=case, steps=(BatchStep(action=action, range=incoming),))
    confirmed = previous.phase is Phase.AFTER
    if confirmed:
        steps = _decide_confirmed(case, previous, kept)
    else:
        steps = _decide_unconfirmed(case, previous, kept, repeatable=repeatable)
    return Decision(case=case, steps=steps, cropped=cropped)


def plan_steps(
    previous: BatchRecord | None,
    incoming: Range,
    layout: Layout,
    *,
    tolerate_state_mismatch: bool = False,
    repeatable: bool = True,
) -> tuple[Case, tuple[BatchStep, ...]]:
    """The steps an iteration over `incoming` takes, each with its layout.

    An initial synchronization starts from scratch. The range grows to cover an
    unconfirmed batch, since Delta can be read again; so the case is never `contains`, and only a
    batch that is not `repeatable` goes to the dead letters.
    """
    if incoming.initial:
        return Case.NONE, (BatchStep(action=BatchAction.INSERT, range=incoming, layout=layout),)
    widened = _widen_range(previous, incoming)
    decision = decide(
        previous,
        widened,
        tolerate_state_mismatch=tolerate_state_mismatch,
        repeatable=repeatable,
    )
    return decision.case, tuple(
        step if step.layout is not None else replace(step, layout=layout) for step in decision.steps
    )


def _widen_range(previous: BatchRecord | None, incoming: Range) -> Range:
    if previous is None or previous.phase is Phase.AFTER:
        return incoming
    stored = previous.range
    starts_inside = stored.from_.version < incoming.from_.version < stored.to.version
    ends_inside = stored.from_.version < incoming.to.version < stored.to.version
    return Range(
        from_=stored.from_ if starts_inside else incoming.from_,
        to=stored.to if ends_inside else incoming.to,
    )


def _crop(previous: Range, incoming: Range) -> tuple[Range, Range | None]:
    """Cut off what lies before the previous range, unless nothing would remain."""
    edge = previous.from_
    if not incoming.from_.version < edge.version < incoming.to.version:
        return incoming, None
    return Range(from_=edge, to=incoming.to), Range(from_=incoming.from_, to=edge)


def _classify_range(previous: Range, incoming: Range) -> Case:
    if incoming.to.version <= previous.from_.version:
        return Case.INVALID
    if incoming.from_.version >= previous.to.version:
        return Case.NEW
    if incoming.to.version > previous.to.version:
        return Case.OVERLAPPING
    same_from = incoming.from_.version == previous.from_.version
    same_to = incoming.to.version == previous.to.version
    return Case.SAME if same_from and same_to else Case.CONTAINS


def _decide_confirmed(case: Case, previous: BatchRecord, incoming: Range) -> tuple[BatchStep, ...]:
    if case is Case.NEW:
        return (_make_insert_step(incoming),)
    if case is Case.OVERLAPPING:
        return (_make_insert_step(_compute_remainder(previous, incoming)),)
    return (BatchStep(action=BatchAction.SKIP, range=incoming),)


def _decide_unconfirmed(
    case: Case, previous: BatchRecord, incoming: Range, *, repeatable: bool
) -> tuple[BatchStep, ...]:
    action = BatchAction.REPLAY if repeatable else BatchAction.DEAD_LETTER
    first = BatchStep(action=action, range=previous.range, layout=previous.layout)
    if case is Case.NEW:
        return first, _make_insert_step(incoming)
    if case is Case.OVERLAPPING:
        return first, _make_insert_step(_compute_remainder(previous, incoming))
    if case is Case.SAME:
        return (first,)
    return (BatchStep(action=BatchAction.DEAD_LETTER, range=incoming),)


def _compute_remainder(previous: BatchRecord, incoming: Range) -> Range:
    return Range(from_=previous.range.to, to=incoming.to)


def _make_insert_step(range_: Range) -> BatchStep:
    return BatchStep(action=BatchAction.INSERT, range=range_)
