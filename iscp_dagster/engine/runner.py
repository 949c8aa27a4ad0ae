"""The runner: from what it last saw to the iterations that are due (seed 001, "ISCP Runner").

A look is a function of (cursor, table logs, job log): it starts no Spark and keeps nothing that
a restart would lose.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from iscp_dagster.core.errors import FenceError, IscpError
from iscp_dagster.core.iterations import Iteration
from iscp_dagster.core.jobs import Job
from iscp_dagster.core.news import Told, Untold, tell, with_range
from iscp_dagster.core.tables import SourceTable
from iscp_dagster.engine.context import Engine
from iscp_dagster.engine.look import Dispatch, Look, News, parse_cursor, written_cursor
from iscp_dagster.engine.watch import Watch
from iscp_dagster.lake.deltalog import DeltaLog
from iscp_dagster.lake.mark import LogMark

MOST_DISPATCHES = 200
"""Iterations dispatched in one look; Dagster submits six or seven runs a second."""
MOST_NEWS = 1_000
"""Tenants told of as changed in one look; an event takes Dagster about 10 ms."""
BEGINNING = 20.0
"""Seconds of a look in which tables that were not looked at since the start are taken in; the
others wait for the next look, since Dagster gives a tick a minute."""
OVERLAP = timedelta(seconds=60)
"""Transactions of the job log that take longer than this to commit are seen at the next commit."""


@dataclass(frozen=True, kw_only=True)
class _Due:
    """An iteration that may be dispatched, with its jobs as the job log has them."""

    watch: Watch
    iteration: Iteration
    jobs: list[Job]
    rank: int
    """How many of its tenant come before it in this look."""


@dataclass
class Runner:
    """Looks at `sources`; `watches` remember them between looks, to read each commit once."""

    engine: Engine
    sources: Sequence[SourceTable]
    watches: dict[str, Watch] = field(default_factory=dict)
    monotonic: Callable[[], float] = time.monotonic
    _looked_at: datetime | None = None

    def look(self, cursor: str | None) -> Look:
        """What is new since `cursor`, with what is due queued; a table's problem stays its own."""
        known, untold = parse_cursor(cursor)
        marks: dict[str, str] = {}
        look, due = Look(), list[_Due]()
        touched = self._touched()
        standing = self.engine.log.standing()
        until = self.monotonic() + BEGINNING
        for source in self.sources:
            seen = known.get(source.name)
            try:
                watch = self._watch(source)
                if watch.mark is None and self.monotonic() > until:
                    marks.update({source.name: str(seen)} if seen else {})
                    continue
                mark = watch.take_in(seen, touched, standing)
                if watch.found is not None:
                    look.present[source.name] = watch.found
                due += _ranked(watch)
                look.problems += [f"{source.name}: {problem}" for problem in watch.problems]
                marks[source.name] = str(mark)
                untold[source.name] = _still_untold(untold.get(source.name, []), seen, mark)
            except IscpError as error:
                self.watches.pop(source.name, None)
                look.problems.append(f"{source.name}: {error}")
                if seen is not None:
                    marks[source.name] = str(seen)
                _offer(source, look)
        self._dispatch(due, look)
        self._tell(untold, look)
        look.cursor = written_cursor(marks, untold)
        return look

    def log_of(self, source: SourceTable) -> DeltaLog:
        """The table's log as this runner reads it."""
        return self._watch(source).log

    def _watch(self, source: SourceTable) -> Watch:
        if source.name not in self.watches:
            log = self.engine.delta_log(source)
            self.watches[source.name] = Watch(self.engine, source, log)
        return self.watches[source.name]

    def _touched(self) -> Collection[tuple[str, str]]:
        """Whose jobs something happened to since the last look; a first look asks otherwise."""
        last, self._looked_at = self._looked_at, self.engine.clock()
        return frozenset() if last is None else self.engine.log.touched(last - OVERLAP)

    def _dispatch(self, due: list[_Due], look: Look) -> None:
        """Queue what is due, the highest priority first, and of equals each tenant's in turn."""
        due.sort(key=lambda each: (-each.iteration.priority, each.rank))
        for each in due[:MOST_DISPATCHES]:
            name = secrets.token_hex(8)
            try:
                each.watch.flush(each.jobs)
                self.engine.log.enqueue(each.iteration, name)
            except FenceError:
                continue  # somebody materializes it by hand
            source = each.watch.source
            look.dispatches.append(Dispatch(source=source, iteration=each.iteration, name=name))

    def _tell(self, untold: dict[str, list[Untold]], look: Look) -> None:
        """Tell of changed tenants while there is room, of which every table has its share."""
        waiting = [source for source in self.sources if untold.get(source.name)]
        left = MOST_NEWS
        for number, source in enumerate(waiting):
            room = max(left // (len(waiting) - number), 1)
            try:
                news, rest = tell(untold[source.name], self._behind(source), room)
            except IscpError as error:
                look.problems.append(f"{source.name}: {error}")
                continue
            left -= sum(len(each.tenants) for each in news)
            look.news += [self._news(source, told) for told in news]
            untold[source.name] = rest

    def _news(self, source: SourceTable, told: Told) -> News:
        log, upto = self.log_of(source), told.upto.version
        last = None if told.after is None else log.last_changes(told.after.version, upto)
        versions = {tenant: (last or {}).get(tenant, upto) for tenant in told.tenants}
        return News(source=source, versions=versions)

    def _behind(self, source: SourceTable) -> Callable[[Untold], Collection[str]]:
        """The tenants that a range changed, less those whose indexes have it already.

        Dagster would show those as behind the news for ever: no run follows it.
        """
        log = self.log_of(source)
        job_log, table_id = self.engine.log, log.table_id()

        def changed(range_: Untold) -> Collection[str]:
            upto = range_.upto.version
            behind = job_log.accounts(table_id, behind=upto)
            found = None
            if range_.after is not None:
                found = log.changed_tenants(range_.after.version, upto)
            return behind if found is None else found - (job_log.accounts(table_id) - behind)

        return changed


def _ranked(watch: Watch) -> list[_Due]:
    ranks: Counter[str] = Counter()
    found = []
    for iteration, jobs in watch.due():
        (tenant,) = iteration.tenants
        found.append(_Due(watch=watch, iteration=iteration, jobs=jobs, rank=ranks[tenant]))
        ranks[tenant] += 1
    return found


def _still_untold(pending: list[Untold], seen: LogMark | None, mark: LogMark) -> list[Untold]:
    if mark == seen:
        return pending
    after = seen.moment if seen is not None and _follows(mark, seen) else None
    return with_range([] if after is None else pending, after, mark.moment)


def _follows(mark: LogMark, seen: LogMark) -> bool:
    return seen.same_table(mark) and seen.moment.version < mark.moment.version


def _offer(source: SourceTable, look: Look) -> None:
    if source.load is not None and source.tenants is not None:
        look.present[source.name] = tuple(source.tenants())
