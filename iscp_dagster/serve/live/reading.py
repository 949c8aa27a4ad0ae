"""One step of reading changes: what follows some positions, and where it leads."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from iscp_dagster.events.changes import Stamped
from iscp_dagster.serve.live.images import Span, portion
from iscp_dagster.serve.live.positions import START, Position, Positions, is_kept
from iscp_dagster.serve.where import Expression


class History(Protocol):
    """What there is to read of an index, see `Images`."""

    def begins(self, tenants: Collection[str]) -> Mapping[str, int]:
        """The version that each tenant's history begins with."""

    def base(self, tenant: str, version: int, told: int, most: int) -> list[Stamped]:
        """The rows that it begins with."""

    def changes(self, spans: Sequence[Span], most: int) -> list[Stamped]:
        """The oldest changes of the spans."""

    def standing(
        self, at: Positions, row: tuple[str, ...], most: int, where: Expression
    ) -> list[tuple[tuple[str, ...], Stamped]]:
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
    begins = history.begins(behind)
    gaps = _gaps(at, behind, begins)
    open_ = {tenant: end for tenant, end in behind.items() if tenant not in gaps}
    steps = _base(history, at, open_, begins, most)
    if not steps:
        steps = _changes(history, at, open_, begins, most)
    # A history that was replaced meanwhile may have lost what was to be read.
    again = history.begins(open_) if steps else begins
    gaps |= {tenant: again[tenant] for tenant in open_ if again.get(tenant) != begins.get(tenant)}
    return Page(steps=tuple(each for each in steps if each.tenant not in gaps), gaps=gaps)


def _gaps(at: Positions, behind: Positions, begins: Mapping[str, int]) -> dict[str, int]:
    return {
        tenant: begin
        for tenant in behind
        if (begin := begins.get(tenant)) is not None and not is_kept(at.get(tenant, START), begin)
    }


def _base(
    history: History, at: Positions, upto: Positions, begins: Mapping[str, int], most: int
) -> list[Step]:
    """The rows that a tenant's history begins with, if one has some left to tell."""
    for tenant, end in upto.items():
        told, begin = at.get(tenant, START).base_told, begins.get(tenant)
        # Rows of a commit that is not confirmed may be there only in part.
        if told is None or begin is None or Position.after(begin) > end:
            continue
        rows = history.base(tenant, begin, told, most)
        steps = [
            Step(tenant=tenant, at=Position.in_base(begin, told + number), stamped=row)
            for number, row in enumerate(rows, start=1)
        ]
        done = [] if len(rows) == most else [Step(tenant=tenant, at=Position.after(begin))]
        return [*steps, *done]
    return []


def _changes(
    history: History, at: Positions, upto: Positions, begins: Mapping[str, int], most: int
) -> list[Step]:
    spans = portion(
        [
            Span(tenant=tenant, after=at.get(tenant, START), upto=end)
            for tenant, end in upto.items()
            if at.get(tenant, START) != START or tenant not in begins
        ]
    )
    found = history.changes(spans, most) if spans else []
    steps = list(_steps(found))
    if len(found) < most:
        steps += [Step(tenant=each.tenant, at=each.upto) for each in spans]
    return steps


def _steps(found: Sequence[Stamped]) -> Iterator[Step]:
    for change, timestamp in found:
        at = Position(timestamp.version, timestamp.ordinal)
        yield Step(tenant=change.tenant or "", at=at, stamped=(change, timestamp))
