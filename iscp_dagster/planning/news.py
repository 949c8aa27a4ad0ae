"""Keeps track of changed tenants not yet reported, to report a bounded number at a time.

Reporting one tenant to Dagster takes some 10 ms, so a commit that touches every tenant is spread
over several reports. The rest is remembered as ranges of versions and the last tenant reported,
never as a list of tenants.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from iscp_dagster.model.moment import Moment


@dataclass(frozen=True, kw_only=True)
class PendingNews:
    """The tenants changed in (after, upto], or all if `after` is None.

    Only those that sort after `last_tenant`.
    """

    after: Moment | None
    upto: Moment
    last_tenant: str = ""

    def to_json(self) -> list[str | None]:
        return [None if self.after is None else str(self.after), str(self.upto), self.last_tenant]

    @classmethod
    def from_json(cls, value: Sequence[str | None]) -> PendingNews:
        """Read what `to_json` gave."""
        after, upto, last_tenant = value
        start = None if after is None else Moment.parse(after)
        return cls(after=start, upto=Moment.parse(upto or ""), last_tenant=last_tenant or "")


@dataclass(frozen=True, kw_only=True)
class NewsBatch:
    """The tenants of one range to report now, sorted."""

    after: Moment | None
    upto: Moment
    tenants: tuple[str, ...]


def add_range(
    pending: Sequence[PendingNews], after: Moment | None, upto: Moment
) -> list[PendingNews]:
    """Add (after, upto] to `pending`; extends its last range if none of that was reported yet."""
    if pending and not pending[-1].last_tenant:
        return [*pending[:-1], replace(pending[-1], upto=upto)]
    return [*pending, PendingNews(after=after, upto=upto)]


def take_batches(
    pending: Sequence[PendingNews], changed: Callable[[PendingNews], Collection[str]], most: int
) -> tuple[list[NewsBatch], list[PendingNews]]:
    """At most `most` tenants to report, oldest range first, and what stays pending."""
    news: list[NewsBatch] = []
    rest: list[PendingNews] = list(pending)
    while rest and most > 0:
        oldest = rest.pop(0)
        tenants = sorted(tenant for tenant in changed(oldest) if tenant > oldest.last_tenant)
        batch = tuple(tenants[:most])
        news.append(NewsBatch(after=oldest.after, upto=oldest.upto, tenants=batch))
        most -= len(batch)
        if len(tenants) > len(batch):
            rest.insert(0, replace(oldest, last_tenant=batch[-1]))
    return news, rest
