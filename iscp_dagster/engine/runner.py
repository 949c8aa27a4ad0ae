"""The runner: from what it last saw to the iterations that are due (seed 001, "ISCP Runner").

A look is a function of (cursor, table logs, job log): it starts no Spark and keeps nothing that
a restart would lose.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from iscp_dagster.core.errors import FenceError, IscpError
from iscp_dagster.core.iterations import Iteration
from iscp_dagster.core.jobs import Job
from iscp_dagster.core.moment import START, Moment
from iscp_dagster.core.news import Told, Untold, tell, with_range
from iscp_dagster.core.states import JobState
from iscp_dagster.core.tables import SourceTable
from iscp_dagster.core.triggers import plan
from iscp_dagster.engine.context import Engine
from iscp_dagster.engine.jobs import registrations
from iscp_dagster.lake.deltalog import DeltaLog
from iscp_dagster.lake.mark import LogMark

MOST_DISPATCHES = 200
"""Iterations dispatched in one look; Dagster submits six or seven runs a second."""
MOST_NEWS = 1_000
"""Tenants told of as changed in one look; an event takes Dagster about 10 ms."""
UNTOLD = "untold"

Standings = Mapping[str, frozenset[tuple[str, int, JobState]]]
"""By table id: the names of its jobs, their watermarks' versions and states."""


@dataclass(frozen=True, kw_only=True)
class Dispatch:
    """An iteration to run; `name` is what the job log knows it by until its run begins."""

    source: SourceTable
    iteration: Iteration
    name: str


@dataclass(frozen=True, kw_only=True)
class News:
    """Tenants of a source table, each with the last version that is known to have changed it."""

    source: SourceTable
    versions: Mapping[str, int]

    @property
    def tenants(self) -> tuple[str, ...]:
        return tuple(self.versions)


@dataclass(kw_only=True)
class Look:
    """What one look found. `cursor` holds a mark a table, never an entry a tenant.

    `news` is what is to be told of now: at most MOST_NEWS tenants. `present` are, by
    table, the tenants that must be partitions before: those found, or those that a source can load.
    """

    cursor: str = "{}"
    dispatches: list[Dispatch] = field(default_factory=list)
    news: list[News] = field(default_factory=list)
    present: dict[str, tuple[str, ...]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


@dataclass
class Runner:
    """Looks at `sources`; `logs` remembers theirs between looks, to read each commit once."""

    engine: Engine
    sources: Sequence[SourceTable]
    logs: dict[str, DeltaLog] = field(default_factory=dict)

    def look(self, cursor: str | None) -> Look:
        """What is new since `cursor`, with what is due queued; a table's problem stays its own."""
        known, untold = parse_cursor(cursor)
        marks: dict[str, str] = {}
        look = Look()
        standings = self.engine.log.standings()
        for source in self.sources:
            seen = known.get(source.name)
            try:
                mark = self._look_at(source, seen, standings, look)
                marks[source.name] = str(mark)
                untold[source.name] = _still_untold(untold.get(source.name, []), seen, mark)
            except IscpError as error:
                look.problems.append(f"{source.name}: {error}")
                if seen is not None:
                    marks[source.name] = str(seen)
                _offer(source, look)
        self._tell(untold, look)
        look.cursor = _written(marks, untold)
        return look

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
        log, upto = self.logs[source.name], told.upto.version
        last = None if told.after is None else log.last_changes(told.after.version, upto)
        versions = {tenant: (last or {}).get(tenant, upto) for tenant in told.tenants}
        return News(source=source, versions=versions)

    def _behind(self, source: SourceTable) -> Callable[[Untold], Collection[str]]:
        """The tenants that a range changed, less those whose indexes have it already.

        Dagster would show those as behind the news for ever: no run follows it.
        """
        log = self.logs[source.name]
        jobs = self.engine.log.jobs(table_id=log.table_id())

        def changed(range_: Untold) -> Collection[str]:
            upto = range_.upto.version
            behind = {job.key.account for job in jobs if job.watermark.version < upto}
            indexed = {job.key.account for job in jobs}
            found = None
            if range_.after is not None:
                found = log.changed_tenants(range_.after.version, upto)
            return behind if found is None else found - (indexed - behind)

        return changed

    def _look_at(
        self, source: SourceTable, seen: LogMark | None, standings: Standings, look: Look
    ) -> LogMark:
        log = self.logs.setdefault(source.name, self.engine.delta_log(source))
        mark = log.poll(seen)
        added = 0 if seen is None else self._register_added(source, log, standings)
        if mark != seen:
            self._take_in(source, log, seen, mark, look)
        if added or mark != seen or not _settled(log, mark, standings):
            self._dispatch(source, log, mark, look)
        return mark

    def _register_added(self, source: SourceTable, log: DeltaLog, standings: Standings) -> int:
        """Register, for every tenant, the indexes that were declared after the table was known."""
        table_id = log.table_id()
        known = {name for name, _, _ in standings.get(table_id, frozenset())}
        added = [i for i in source.indexes if i.auto_register and i.name not in known]
        if not added:
            return 0
        return self.engine.log.register_many(registrations(source, table_id, log.tenants(), added))

    def _take_in(
        self, source: SourceTable, log: DeltaLog, seen: LogMark | None, mark: LogMark, look: Look
    ) -> None:
        """Register the tenants that appeared; move along those whose rows did not change."""
        table_id = log.table_id()
        same = seen if seen is not None and seen.same_table(mark) else None
        changed = _changed(log, same, mark)
        earlier = self._of_earlier_table(source, table_id) if same is None else []
        present = log.tenants() if changed is None else changed
        found = sorted({*present, *(job.key.account for job in earlier)})
        indexes = [index for index in source.indexes if index.auto_register]
        self.engine.log.register_many(registrations(source, table_id, found, indexes))
        for job in earlier:
            self.engine.log.unregister(job.key.account, job.name, job.key.table_id)
        if same is not None and changed is not None:
            accounts = {job.key.account for job in self.engine.log.jobs(table_id=table_id)}
            idle = accounts - changed
            self.engine.log.advance_idle(table_id, idle, same.moment, mark.moment)
        look.present[source.name] = tuple(found)

    def _of_earlier_table(self, source: SourceTable, table_id: str) -> list[Job]:
        """The jobs of a dropped table of that name, whose tenants' rows are still served.

        Jobs of the new table take over from them, so that its rows replace those, also by none.
        """
        name = source.database, source.table
        jobs = self.engine.log.jobs()
        return [
            job
            for job in jobs
            if (job.name.db, job.name.table) == name and job.key.table_id != table_id
        ]

    def _dispatch(self, source: SourceTable, log: DeltaLog, mark: LogMark, look: Look) -> None:
        jobs = self.engine.log.jobs(table_id=log.table_id())
        due = list(self._due(log, _declared(source, jobs), mark.moment))
        due.sort(key=lambda iteration: -iteration.priority)
        for iteration in due[: MOST_DISPATCHES - len(look.dispatches)]:
            name = secrets.token_hex(8)
            try:
                self.engine.log.enqueue(iteration, name)
            except FenceError:
                continue  # somebody materializes it by hand
            look.dispatches.append(Dispatch(source=source, iteration=iteration, name=name))

    def _due(self, log: DeltaLog, jobs: Iterable[Job], latest: Moment) -> Iterator[Iteration]:
        now = self.engine.clock()
        for _, group in groupby(sorted(jobs, key=_tenant), key=_tenant):
            for iteration in plan(list(group), latest, now):
                if _has_changes(log, iteration):
                    yield iteration
                else:
                    self.engine.log.advance_idle(
                        iteration.table_id, iteration.tenants, iteration.from_, iteration.to
                    )


def parse_cursor(cursor: str | None) -> tuple[Mapping[str, LogMark], dict[str, list[Untold]]]:
    """A mark a table, by the table's name; and for some what is still to be told of."""
    marks = json.loads(cursor or "{}")
    untold = marks.pop(UNTOLD, {})
    return (
        {name: LogMark.parse(text) for name, text in marks.items()},
        {name: [Untold.from_json(each) for each in ranges] for name, ranges in untold.items()},
    )


def _written(marks: Mapping[str, str], untold: Mapping[str, Sequence[Untold]]) -> str:
    pending = {
        name: [each.to_json() for each in ranges] for name, ranges in untold.items() if ranges
    }
    rest = {UNTOLD: pending} if pending else {}
    return json.dumps({**marks, **rest}, separators=(",", ":"))


def _still_untold(pending: list[Untold], seen: LogMark | None, mark: LogMark) -> list[Untold]:
    if mark == seen:
        return pending
    after = seen.moment if seen is not None and _follows(mark, seen) else None
    return with_range([] if after is None else pending, after, mark.moment)


def _follows(mark: LogMark, seen: LogMark) -> bool:
    return seen.same_table(mark) and seen.moment.version < mark.moment.version


def _settled(log: DeltaLog, mark: LogMark, standings: Standings) -> bool:
    """Whether every job of the table stands at `mark`, or waits for a person."""
    return all(
        state is JobState.ERROR or (state is JobState.COMPLETED and version == mark.moment.version)
        for _, version, state in standings.get(log.table_id(), frozenset())
    )


def _changed(log: DeltaLog, seen: LogMark | None, mark: LogMark) -> set[str] | None:
    """The tenants whose rows changed since `seen`; None when that cannot be told."""
    if seen is None or seen.moment.version >= mark.moment.version:
        return None
    return log.changed_tenants(seen.moment.version, mark.moment.version)


def _has_changes(log: DeltaLog, iteration: Iteration) -> bool:
    if iteration.from_.version == START.version:
        return True
    changed = log.changed_tenants(iteration.from_.version, iteration.to.version)
    return changed is None or bool(changed & iteration.tenants)


def _declared(source: SourceTable, jobs: Iterable[Job]) -> list[Job]:
    """The jobs that this location can run; a job of an index no longer declared rests."""
    names: Collection[str] = {index.name for index in source.indexes}
    return [job for job in jobs if job.key.job_name in names]


def _offer(source: SourceTable, look: Look) -> None:
    if source.load is not None and source.tenants is not None:
        look.present[source.name] = tuple(source.tenants())


def _tenant(job: Job) -> str:
    return job.key.account
