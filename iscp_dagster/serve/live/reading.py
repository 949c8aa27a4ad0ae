"""One step of reading changes: what follows some positions, and where it leads."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from iscp_dagster.events.changes import Stamped
from iscp_dagster.serve.live.images import Found, Span, Standing, portion
from iscp_dagster.serve.live.positions import START, Position, Positions, is_kept
from iscp_dagster.serve.where import Expression


class History(Protocol):
    """What there is to read of an index, see `Images`."""

    def begins(self, tenants: Collection[str]) -> Mapping[str, int]:
        """The version that each tenant's history begins with."""

    def base(self, tenant: str, version: int, told: int, most: int) -> Found:
        """The rows that it begins with."""

    def changes(self, spans: Sequence[Span], most: int) -> Found:
        """Where the histories begin, and the oldest changes of the spans, at one moment."""

    def standing(
        self, at: Positions, row: tuple[str, ...], most: int, where: Expression
    ) -> Standing:
        """The rows that stand at the positions, by key, after one of them."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """A tenant's next position, and the change that leads there, if one does."""

    tenant: str
    at: Position
    stamped: Stamped | None = None


@dataclass(frozen=True, kw_only=True)
class Page:
    """Steps in the order of each tenant's changes. `gaps` are tenants whose changes are not kept.

    Without steps and gaps, nothing follows.
    """

    steps: tuple[Step, ...] = ()
    gaps: Mapping[str, int] = field(default_factory=dict)
    """By tenant, the version that its history begins with."""


def next_page(history: History, at: Positions, upto: Positions, most: int) -> Page:
    """Read at most `most` changes after the positions `at`, of each tenant up to `upto`.

    A tenant that `at` does not have is at START. Raises what the history raises.
    """
    behind = {tenant: end for tenant, end in upto.items() if at.get(tenant, START) < end}
    if not behind:
        return Page()
    ends = [
        Span(tenant=tenant, after=at.get(tenant, START), upto=end) for tenant, end in behind.items()
    ]
    spans = portion(ends)
    found = history.changes(spans, most)
    gaps = _gaps(spans, found.begins)
    kept = [each for each in spans if each.tenant not in gaps]
    steps = _base(history, kept, found.begins, most) or _changes(kept, found)
    return Page(steps=tuple(steps), gaps=gaps)


def _gaps(spans: Sequence[Span], begins: Mapping[str, int]) -> dict[str, int]:
    return {
        each.tenant: begin
        for each in spans
        if (begin := begins.get(each.tenant)) is not None and not is_kept(each.after, begin)
    }


def _base(
    history: History, spans: Sequence[Span], begins: Mapping[str, int], most: int
) -> list[Step]:
    """The rows that a tenant's history begins with, if one has some left to tell."""
    for each in spans:
        told, begin = each.after.base_told, begins.get(each.tenant)
        # Rows of a commit that is not confirmed may be there only in part.
        if told is None or begin is None or Position.after(begin) > each.upto:
            continue
        # If the history was replaced meanwhile there are none, and the next page has the gap.
        found = history.base(each.tenant, begin, told, most)
        steps = [
            Step(tenant=each.tenant, at=Position.in_base(begin, told + number), stamped=row)
            for number, row in enumerate(found.stamped, start=1)
        ]
        done = [Step(tenant=each.tenant, at=Position.after(begin))] if found.whole else []
        return [*steps, *done]
    return []


def _changes(spans: Sequence[Span], found: Found) -> list[Step]:
    """The changes of tenants whose history's first rows have been told."""
    ready = {
        each.tenant: each.upto
        for each in spans
        if each.after.base_told is None or each.tenant not in found.begins
    }
    steps = [each for each in _steps(found.stamped) if each.tenant in ready]
    return [*steps, *(Step(tenant=one, at=end) for one, end in ready.items() if found.whole)]


def _steps(found: Sequence[Stamped]) -> Iterator[Step]:
    for change, timestamp in found:
        at = Position(timestamp.version, timestamp.ordinal)
        yield Step(tenant=change.tenant or "", at=at, stamped=(change, timestamp))
