"""Reports what the runner's looks found: changed tenants, and problems of tables.

Kept apart from the looks, so that reporting a thousand tenants delays no run. What is not yet
reported lies between the last report and how far the runner has looked.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from iscp_dagster.delta.log.mark import LogMark
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.planning.look import Cursor, Look, marks_of, remember
from iscp_dagster.planning.news import Told, Untold, tell, with_range
from iscp_dagster.planning.problems import Problem
from iscp_dagster.planning.runner import Runner

MOST_NEWS = 1_000
"""Most changed tenants in one report; an event takes Dagster about 10 ms."""


@dataclass(frozen=True, kw_only=True)
class News:
    """Tenants of a source table, each with the last version that is known to have changed it."""

    source: SourceTable
    versions: Mapping[str, int]

    @property
    def tenants(self) -> tuple[str, ...]:
        return tuple(self.versions)


@dataclass(kw_only=True)
class Report:
    """What to report now; `cursor` holds a mark and ranges per table, never an entry per tenant."""

    cursor: str
    news: list[News] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    """All current problems."""
    risen: frozenset[str] = frozenset()
    """The tables whose problems are new, or differ from those reported before."""
    settled: frozenset[str] = frozenset()
    """The tables whose problems are over."""

    def of(self, table: str) -> list[Problem]:
        """The problems of that table."""
        return [each for each in self.problems if each.table == table]


@dataclass(frozen=True)
class Reporter:
    """Reports what `runner` saw. Uses the runner's log and watches, so never run both at once."""

    runner: Runner

    def report(self, cursor: str | None) -> Report:
        """What is new since `cursor`; nothing before the runner has looked."""
        look = self.runner.latest
        if look is None:
            return Report(cursor=cursor or str(Cursor()))
        before = Cursor.parse(cursor)
        after = Cursor(marks=marks_of(before, self.runner.sources), untold=before.untold)
        report = Report(cursor="", problems=list(look.problems))
        for name, mark in self._marks(look).items():
            pending, seen = after.untold.get(name, []), before.seen(name)
            after.untold[name] = _still_untold(pending, seen, mark)
            after.marks[name] = str(mark)
        self._tell(after.untold, report, look)
        report.risen, report.settled = remember(before, after, look)
        report.cursor = str(after)
        return report

    def _marks(self, look: Look) -> Mapping[str, LogMark]:
        """The marks of the tables that the look covered."""
        found = {name: watch.mark for name, watch in self.runner.watches.items()}
        return {n: mark for n, mark in found.items() if mark and n not in look.left_out}

    def _tell(self, untold: dict[str, list[Untold]], report: Report, look: Look) -> None:
        """Report changed tenants while there is room, shared among the tables.

        Only of tables that were looked at: waiting for another's store may take as long again.
        """
        seen = self._marks(look)
        waiting = [e for e in self.runner.sources if e.name in seen and untold.get(e.name)]
        left = MOST_NEWS
        for number, source in enumerate(waiting):
            room = max(left // (len(waiting) - number), 1)
            with self.runner.alone(source, report.problems):
                told, rest = tell(untold[source.name], self._behind(source), room)
                report.news += [self._news(source, each) for each in told]
                left -= sum(len(each.tenants) for each in told)
                untold[source.name] = rest

    def _news(self, source: SourceTable, told: Told) -> News:
        delta_log, upto = self.runner.delta_log_of(source), told.upto.version
        last = None if told.after is None else delta_log.last_changes(told.after.version, upto)
        versions = {tenant: (last or {}).get(tenant, upto) for tenant in told.tenants}
        return News(source=source, versions=versions)

    def _behind(self, source: SourceTable) -> Callable[[Untold], Collection[str]]:
        """The tenants that a range changed, except those whose indexes already have it.

        Dagster would show those as out of date for ever, since no run follows. A range without a
        beginning is the whole table, also if its jobs are stranded: their indexes are behind.
        """
        delta_log = self.runner.delta_log_of(source)
        log, table_id = self.runner.deployment.log, delta_log.table_id()

        def changed(range_: Untold) -> Collection[str]:
            upto = range_.upto.version
            behind = log.tenants(table_id, behind=upto)
            found = None
            if range_.after is not None:
                found = delta_log.changed_tenants(range_.after.version, upto)
            found = {*delta_log.tenants(upto), *behind} if found is None else found
            return found - (log.tenants(table_id) - behind)

        return changed


def _still_untold(pending: list[Untold], seen: LogMark | None, mark: LogMark) -> list[Untold]:
    if mark == seen:
        return pending
    after = seen.moment if seen is not None and _follows(mark, seen) else None
    return with_range([] if after is None else pending, after, mark.moment)


def _follows(mark: LogMark, seen: LogMark) -> bool:
    return seen.same_table(mark) and seen.moment.version < mark.moment.version
