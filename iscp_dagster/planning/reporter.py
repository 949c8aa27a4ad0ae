"""Reports what the runner's looks found: changed tenants, and problems of tables.

Kept apart from the looks, so that reporting a thousand tenants delays no run. What is not yet
reported lies between the last report and how far the runner has looked.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from iscp_dagster.delta.log.mark import LogMark
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.planning.look import LookResult, SensorCursor, select_marks, update_reported
from iscp_dagster.planning.news import NewsBatch, PendingNews, add_range, take_batches
from iscp_dagster.planning.problems import Problem
from iscp_dagster.planning.runner import Runner

MOST_NEWS = 1_000
"""Most events in one report: one takes Dagster about 10 ms."""
MOST_TENANTS_IN_BUCKETS = 1_000_000
"""Most changed tenants of a table in one report, if they share buckets, and thus events."""


@dataclass(frozen=True, kw_only=True)
class TenantNews:
    """Tenants of a source table, each with the last version that is known to have changed it."""

    source: SourceTable
    versions: Mapping[str, int]

    @property
    def tenants(self) -> tuple[str, ...]:
        return tuple(self.versions)


@dataclass(kw_only=True)
class NewsReport:
    """What to report now; `cursor` holds a mark and ranges per table, never an entry per tenant."""

    cursor: str
    news: list[TenantNews] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    """All current problems."""
    new_problem_tables: frozenset[str] = frozenset()
    """The tables whose problems are new, or differ from those reported before."""
    resolved_tables: frozenset[str] = frozenset()
    """The tables whose problems are over."""

    def list_problems(self, table: str) -> list[Problem]:
        """The problems of that table."""
        return [problem for problem in self.problems if problem.table == table]


@dataclass(frozen=True)
class Reporter:
    """Reports what `runner` saw. Shares the runner's log and watches, so never run both at once."""

    runner: Runner

    def report(self, cursor: str | None) -> NewsReport:
        """What is new since `cursor`; nothing before the runner has looked."""
        look = self.runner.latest
        if look is None:
            return NewsReport(cursor=cursor or str(SensorCursor()))
        before = SensorCursor.parse(cursor)
        after = SensorCursor(
            marks=select_marks(before, self.runner.sources), pending=before.pending
        )
        report = NewsReport(cursor="", problems=list(look.problems))
        for name, mark in self._get_marks(look).items():
            pending, last_mark = after.pending.get(name, []), before.get_mark(name)
            after.pending[name] = _extend_pending(pending, last_mark, mark)
            after.marks[name] = str(mark)
        self._add_news(after.pending, report, look)
        report.new_problem_tables, report.resolved_tables = update_reported(before, after, look)
        report.cursor = str(after)
        return report

    def _get_marks(self, look: LookResult) -> Mapping[str, LogMark]:
        """The marks of the tables that the look covered."""
        marks = {name: watch.mark for name, watch in self.runner.watches.items()}
        return {name: mark for name, mark in marks.items() if mark and name not in look.left_out}

    def _add_news(
        self, pending: dict[str, list[PendingNews]], report: NewsReport, look: LookResult
    ) -> None:
        """Report changed tenants while there is room, shared among the tables.

        Only for tables that the look covered: waiting for another's store may take as long again.
        """
        marks = self._get_marks(look)
        sources = [
            source
            for source in self.runner.sources
            if source.name in marks and pending.get(source.name)
        ]
        remaining = MOST_NEWS
        for number, source in enumerate(sources):
            room = max(remaining // (len(sources) - number), 1)
            room = MOST_TENANTS_IN_BUCKETS if source.buckets else room
            with self.runner.catch_problems(source, report.problems):
                portions, rest = take_batches(
                    pending[source.name], self._make_tenant_finder(source), room
                )
                report.news += [self._build_news(source, portion) for portion in portions]
                remaining -= sum(_count_events(source, portion) for portion in portions)
                pending[source.name] = rest

    def _build_news(self, source: SourceTable, portion: NewsBatch) -> TenantNews:
        delta_log, upto = self.runner.get_delta_log(source), portion.upto.version
        last_changes = (
            None
            if portion.after is None
            else delta_log.find_last_changes(portion.after.version, upto)
        )
        versions = {tenant: (last_changes or {}).get(tenant, upto) for tenant in portion.tenants}
        return TenantNews(source=source, versions=versions)

    def _make_tenant_finder(self, source: SourceTable) -> Callable[[PendingNews], Collection[str]]:
        """The tenants that a range changed, except those whose indexes already have it.

        Dagster would show those as out of date for ever, since no run follows. A range without a
        beginning is the whole table, also if its jobs are stranded: their indexes are behind.
        """
        delta_log = self.runner.get_delta_log(source)
        log, table_id = self.runner.deployment.log, delta_log.get_table_id()

        def changed(range_: PendingNews) -> Collection[str]:
            upto = range_.upto.version
            behind = log.list_tenants(table_id, behind=upto)
            tenants = None
            if range_.after is not None:
                tenants = delta_log.list_changed_tenants(range_.after.version, upto)
            tenants = {*delta_log.list_tenants(upto), *behind} if tenants is None else tenants
            return tenants - (log.list_tenants(table_id) - behind)

        return changed


def _count_events(source: SourceTable, portion: NewsBatch) -> int:
    return min(len(portion.tenants), source.buckets or len(portion.tenants))


def _extend_pending(
    pending: list[PendingNews], last_mark: LogMark | None, mark: LogMark
) -> list[PendingNews]:
    if mark == last_mark:
        return pending
    after = last_mark.moment if last_mark is not None and _is_newer(mark, last_mark) else None
    return add_range([] if after is None else pending, after, mark.moment)


def _is_newer(mark: LogMark, last_mark: LogMark) -> bool:
    return last_mark.is_same_table(mark) and last_mark.moment.version < mark.moment.version
