"""Keeps track of changed tenants not yet reported, to report a bounded number at a time.

Reporting one tenant to Dagster takes some 10 ms, so a commit that touches every tenant is spread
over several reports. What is left is remembered as ranges of versions and the last tenant reported,
never as a list of tenants.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from iscp_dagster.model.moment import Moment


@dataclass(frozen=True, kw_only=True)
class Untold:
    """The tenants changed in (after, upto], or all if `after` is None, that sort after `told`."""

    after: Moment | None
    upto: Moment
    told: str = ""

    def to_json(self) -> list[str | None]:
        return [None if self.after is None else str(self.after), str(self.upto), self.told]

    @classmethod
    def from_json(cls, value: Sequence[str | None]) -> Untold:
        """Read what `to_json` gave."""
        after, upto, told = value
        first = None if after is None else Moment.parse(after)
        return cls(after=first, upto=Moment.parse(upto or ""), told=told or "")


@dataclass(frozen=True, kw_only=True)
class Told:
    """The tenants of one range to report now, sorted."""

    after: Moment | None
    upto: Moment
    tenants: tuple[str, ...]


def with_range(pending: Sequence[Untold], after: Moment | None, upto: Moment) -> list[Untold]:
    """Add (after, upto] to `pending`; extends its last range if none of that was reported yet."""
    if pending and not pending[-1].told:
        return [*pending[:-1], replace(pending[-1], upto=upto)]
    return [*pending, Untold(after=after, upto=upto)]


def tell(
    pending: Sequence[Untold], changed: Callable[[Untold], Collection[str]], room: int
) -> tuple[list[Told], list[Untold]]:
    """At most `room` tenants to report, oldest range first, and what stays pending."""
    news: list[Told] = []
    rest: list[Untold] = list(pending)
    while rest and room > 0:
        first = rest.pop(0)
        tenants = sorted(each for each in changed(first) if each > first.told)
        now = tuple(tenants[:room])
        news.append(Told(after=first.after, upto=first.upto, tenants=now))
        room -= len(now)
        if len(tenants) > len(now):
            rest.insert(0, replace(first, told=now[-1]))
    return news, rest
