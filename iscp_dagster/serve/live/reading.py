"""Reads the next page of changes after some positions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from iscp_dagster.events.changes import StampedChange
from iscp_dagster.serve.live.images import ChangePage, SnapshotPage, Span, limit_spans
from iscp_dagster.serve.live.positions import START, ChangePosition, Positions, is_kept
from iscp_dagster.serve.where import WhereExpression


class ChangeHistory(Protocol):
    """The image rows of an index; see `ImageReader`."""

    def read_beginnings(self, tenants: Collection[str]) -> Mapping[str, int]:
        """The version that each tenant's history begins with."""

    def read_base(self, tenant: str, version: int, offset: int, max_rows: int) -> ChangePage:
        """The rows that the history begins with."""

    def read_changes(self, spans: Sequence[Span], max_changes: int) -> ChangePage:
        """Where the histories begin, and the oldest changes of the spans, at one moment."""

    def read_snapshot(
        self, at: Positions, row: tuple[str, ...], max_keys: int, where: WhereExpression
    ) -> SnapshotPage:
        """The rows as of the positions, by key, after one of them."""


@dataclass(frozen=True, kw_only=True)
class FeedStep:
    """A tenant's next position, and the change that leads there, if any."""

    tenant: str
    position: ChangePosition
    stamped_change: StampedChange | None = None


@dataclass(frozen=True, kw_only=True)
class FeedPage:
    """Steps in the order of each tenant's changes. `gaps` are tenants whose changes are not kept.

    Without steps and gaps, nothing follows.
    """

    steps: tuple[FeedStep, ...] = ()
    gaps: Mapping[str, int] = field(default_factory=dict)
    """By tenant, the version that its history begins with."""


def read_next_page(
    history: ChangeHistory, positions: Positions, upto: Positions, max_changes: int
) -> FeedPage:
    """Read at most `max_changes` changes after `positions`, of each tenant up to `upto`.

    A tenant that `positions` does not have is at START. Raises what the history raises.
    """
    pending_ends = {
        tenant: end for tenant, end in upto.items() if positions.get(tenant, START) < end
    }
    if not pending_ends:
        return FeedPage()
    all_spans = [
        Span(tenant=tenant, after=positions.get(tenant, START), upto=end)
        for tenant, end in pending_ends.items()
    ]
    spans = limit_spans(all_spans)
    changes = history.read_changes(spans, max_changes)
    gaps = _find_gaps(spans, changes.beginnings)
    readable = [span for span in spans if span.tenant not in gaps]
    steps = _read_base_steps(
        history, readable, changes.beginnings, max_changes
    ) or _build_change_steps(readable, changes)
    return FeedPage(steps=tuple(steps), gaps=gaps)


def _find_gaps(spans: Sequence[Span], begins: Mapping[str, int]) -> dict[str, int]:
    return {
        span.tenant: begin
        for span in spans
        if (begin := begins.get(span.tenant)) is not None and not is_kept(span.after, begin)
    }


def _read_base_steps(
    history: ChangeHistory, spans: Sequence[Span], begins: Mapping[str, int], max_rows: int
) -> list[FeedStep]:
    """The rows that a tenant's history begins with, if some are left to send."""
    for span in spans:
        sent, begin = span.after.base_sent, begins.get(span.tenant)
        # The rows of an unconfirmed commit may be incomplete.
        if sent is None or begin is None or ChangePosition.from_commit(begin) > span.upto:
            continue
        # If the history was replaced meanwhile there are none, and the next page has the gap.
        base = history.read_base(span.tenant, begin, sent, max_rows)
        steps = [
            FeedStep(
                tenant=span.tenant,
                position=ChangePosition.from_base(begin, sent + number),
                stamped_change=row,
            )
            for number, row in enumerate(base.stamped_changes, start=1)
        ]
        last_step = (
            [FeedStep(tenant=span.tenant, position=ChangePosition.from_commit(begin))]
            if base.complete
            else []
        )
        return [*steps, *last_step]
    return []


def _build_change_steps(spans: Sequence[Span], changes: ChangePage) -> list[FeedStep]:
    """The changes of tenants whose first rows have been sent."""
    ends = {
        span.tenant: span.upto
        for span in spans
        if span.after.base_sent is None or span.tenant not in changes.beginnings
    }
    steps = [step for step in _to_steps(changes.stamped_changes) if step.tenant in ends]
    return [
        *steps,
        *(
            FeedStep(tenant=tenant, position=end)
            for tenant, end in ends.items()
            if changes.complete
        ),
    ]


def _to_steps(changes: Sequence[StampedChange]) -> Iterator[FeedStep]:
    for change, timestamp in changes:
        at = ChangePosition(timestamp.version, timestamp.ordinal)
        yield FeedStep(tenant=change.tenant or "", position=at, stamped_change=(change, timestamp))
