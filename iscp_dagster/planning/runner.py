"""The runner: finds what is new since its last look and plans the iterations that are due.

A look is a function of (cursor, table logs, ISCP log): it starts no Spark and keeps nothing that
a restart would lose.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime

from iscp_dagster.delta.log.deltalog import DeltaLog
from iscp_dagster.delta.log.mark import LogMark
from iscp_dagster.delta.log.storage_errors import catch_panics
from iscp_dagster.joblog.history import Bookmark
from iscp_dagster.joblog.results import ChangedTenants
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.model.errors import IscpError
from iscp_dagster.planning.job_specs import hash_table_jobs
from iscp_dagster.planning.joining import DueIteration, join_iterations
from iscp_dagster.planning.look import (
    Dispatch,
    LookResult,
    SensorCursor,
    select_marks,
    update_reported,
)
from iscp_dagster.planning.problems import Problem, make_problem
from iscp_dagster.planning.watch import TableWatch, TenantsByTable
from iscp_dagster.sync.deployment import Deployment

MOST_DISPATCHES = 200
"""Iterations dispatched in one look; Dagster submits six or seven runs a second."""
FIRST_LOOK_SECONDS = 20.0
"""Seconds of a look for taking in tables not looked at since the start; the others wait for the
next look, since Dagster limits a tick to a minute."""


@dataclass(frozen=True, kw_only=True)
class _RankedIteration:
    """An iteration that may be dispatched, and its place among those of its table."""

    watch: TableWatch
    due: DueIteration
    rank: int
    """How many iterations of the same tenant come before it in this look."""

    @property
    def priority(self) -> int:
        return self.due.iteration.priority

    @property
    def began(self) -> datetime:
        return self.due.oldest_start_at


@dataclass
class Runner:
    """Looks at `sources`; `watches` remember them between looks, to read each commit once.

    Of several runners on one log only one looks at a table, as long as it renews its lease;
    runners of other owners stand by. If two look at once nevertheless, the log lets only one of
    them queue an iteration.
    """

    deployment: Deployment
    sources: Sequence[SourceTable]
    owner: str = "runner"
    watches: dict[str, TableWatch] = field(default_factory=dict)
    poll_seconds: float = 0.0
    """Seconds between two polls of a table in an object store."""
    monotonic: Callable[[], float] = time.monotonic
    ending: Callable[[], bool] = bool
    """Whether the process is ending: it then queues nothing more, since nobody would run it."""
    _lease_until: dict[str, float] = field(default_factory=dict)
    """By table, until when this runner certainly holds its lease, by `monotonic`."""
    _last_look: dict[str, int] = field(default_factory=dict)
    """In which look each table was last looked at."""
    _last_poll: dict[str, float] = field(default_factory=dict)
    """When each table was last polled for its next commit, by `monotonic`."""
    _looks: int = 0
    _missed_since: Bookmark | None = None
    """The bookmark after which the ISCP log has events that some watch has not taken in."""
    _heard_since: Bookmark | None = None
    """Where the ISCP log's history ended when the last look began; later events are new."""
    latest: LookResult | None = None

    def look(self, cursor: str | None) -> LookResult:
        """Find what is new since `cursor`, queue what is due; a problem stops only its table."""
        self._looks += 1
        before = SensorCursor.parse(cursor)
        look = LookResult(forgot=before.unreadable)
        after = SensorCursor(marks=select_marks(before, self.sources))
        events, at_rest = self._read_job_events(before)
        touched, standing = _group_by_table(events), self.deployment.log.list_standing()
        look.elsewhere = self._take_table_leases()
        deadline, left_out = self.monotonic() + FIRST_LOOK_SECONDS, set(look.elsewhere)
        due: list[_RankedIteration] = []
        for source in self._order_sources(before):
            if source.name in look.elsewhere:
                self.watches.pop(source.name, None)
                continue
            with self.catch_problems(source, look.problems):
                new = source.name not in self.watches or self.watches[source.name].mark is None
                if (new or look.problems) and self.monotonic() > deadline:
                    left_out.add(source.name)
                    continue
                self._last_look[source.name] = self._looks
                watch, last_mark = self._get_watch(source), before.get_mark(source.name)
                if (
                    new
                    and last_mark
                    and at_rest.get(source.name) == hash_table_jobs(source, standing)
                ):
                    watch.resume(last_mark, at_rest[source.name])
                mark = watch.refresh(last_mark, touched, standing, poll=self._should_poll(watch))
                due += self._collect_due(watch, look)
                after.marks[source.name] = str(mark)
        self._dispatch_due(due, look)
        self._add_loadable_tenants(look)
        look.left_out = frozenset(left_out)
        self._update_cursor(after, look, at_rest, events)
        look.new_problem_tables, look.resolved_tables = update_reported(before, after, look)
        look.cursor = str(after)
        self.latest = look
        return look

    def _order_sources(self, before: SensorCursor) -> list[SourceTable]:
        """Tables without problems first: a store that does not answer takes long.

        Then tables left out the longest; among equals, as at the start, tables at rest, which cost
        next to nothing.
        """

        def get_rank(source: SourceTable) -> tuple[bool, int, bool]:
            name = source.name
            return name in before.reported, self._last_look.get(name, 0), name not in before.at_rest

        return sorted(self.sources, key=get_rank)

    def _collect_due(self, watch: TableWatch, look: LookResult) -> list[_RankedIteration]:
        """What is due for the table; puts its tenants and problems into `look`."""
        due = _rank_due(watch)
        if watch.found_tenants is not None:
            look.present[watch.source.name] = watch.found_tenants
        for problem in watch.problems:
            look.add(problem)
        return due

    @contextmanager
    def catch_problems(self, source: SourceTable, problems: list[Problem]) -> Iterator[None]:
        """Let any error, expected or not, stop only this table; its watch starts over."""
        try:
            with catch_panics():
                yield
        except Exception as error:  # noqa: BLE001 - a table may raise anything
            self.watches.pop(source.name, None)
            problem = make_problem(source, error)
            if problem not in problems:
                problems.append(problem)

    def _should_poll(self, watch: TableWatch) -> bool:
        """Whether to poll the table for a commit: in an object store every `poll_seconds`."""
        now, name = self.monotonic(), watch.source.name
        # A look comes a little early or late.
        next_poll = self._last_poll.get(name, float("-inf")) + 0.9 * self.poll_seconds
        if watch.delta_log.files.local or now >= next_poll:
            self._last_poll[name] = now
            return True
        return False

    def get_delta_log(self, source: SourceTable) -> DeltaLog:
        """The table's log as this runner reads it."""
        return self._get_watch(source).delta_log

    def _get_watch(self, source: SourceTable) -> TableWatch:
        if source.name not in self.watches:
            delta_log = self.deployment.make_delta_log(source)
            self.watches[source.name] = TableWatch(self.deployment, source, delta_log)
        return self.watches[source.name]

    def _take_table_leases(self) -> frozenset[str]:
        """The tables that another runner looks at; takes the leases of the others."""
        now, seconds = self.monotonic(), self.deployment.log.leases.runner
        names = {
            f"runner of {source.name}": source.name
            for source in self.sources
            if now >= self._lease_until.get(source.name, now)
        }
        taken = {
            names[lease] for lease in self.deployment.log.take_leases(names, self.owner, seconds)
        }
        # Renewed long before they run out; most idle looks still write nothing.
        self._lease_until |= dict.fromkeys(taken, now + seconds / 3)
        others = frozenset(names.values()) - taken
        for name in others:
            self._lease_until.pop(name, None)
        return others

    def _read_job_events(self, before: SensorCursor) -> tuple[ChangedTenants, Mapping[str, str]]:
        """The tenants with job events that not every table has taken in, and the tables at rest.

        If the ISCP log does not say what happened, the runner trusts nothing that it remembers.
        """
        log, since = self.deployment.log, self._missed_since
        events = log.read_changed_tenants(since)
        if not events.complete:
            self.watches.clear()
            self._missed_since = events.upto
        self._heard_since = events.upto
        if before.bookmark in {None, since}:
            return events, before.at_rest if events.complete else {}
        # The bookmark of an earlier runner, or of an older look of this one.
        assert before.bookmark is not None
        earlier_events = log.read_changed_tenants(before.bookmark)
        if not earlier_events.complete:
            return events, {}
        if self._missed_since is None or before.bookmark.position < self._missed_since.position:
            self._missed_since = before.bookmark
        return replace(events, tenants=events.tenants | earlier_events.tenants), before.at_rest

    def _update_cursor(
        self,
        after: SensorCursor,
        look: LookResult,
        at_rest: Mapping[str, str],
        events: ChangedTenants,
    ) -> None:
        """Put into the cursor what spares a runner that starts from it work."""
        skipped = look.left_out - look.elsewhere
        behind = {name for name, watch in self.watches.items() if watch.mark} | at_rest.keys()
        since = self._missed_since if self._missed_since and behind & skipped else events.upto
        # The bookmark must also name the newest entry: a log without it is another one.
        self._missed_since = replace(
            self.deployment.log.read_changed_tenants(None).upto, position=since.position
        )
        not_at_rest = skipped | {problem.table for problem in look.problems}
        after.at_rest = {name: at_rest[name] for name in at_rest.keys() & skipped} | {
            name: watch.jobs_digest
            for name, watch in self.watches.items()
            if watch.at_rest and name not in not_at_rest
        }
        after.bookmark = self._missed_since if after.at_rest else None

    def has_new_commit(self) -> bool:
        """Whether a table has a new commit since the last look; costs two stats a table.

        Tables in object stores, or not looked at yet, are left to the next look.
        """
        return any(map(_has_new_commit, self.watches.values()))

    def has_unregistered_tenants(self) -> bool:
        """Whether the last look left tenants for the next one to register."""
        return any(watch.unregistered for watch in self.watches.values())

    def has_new_history(self) -> bool:
        """Whether something happened to a job since the last look began; one statement."""
        return bool(self.deployment.log.read_changed_tenants(self._heard_since).tenants)

    def _dispatch_due(self, due: list[_RankedIteration], look: LookResult) -> None:
        """Queue what is due, highest priority first; within a priority tables take turns."""
        for ranked in _order_by_turns(due)[:MOST_DISPATCHES]:
            if self.ending():
                return
            name, source = secrets.token_hex(8), ranked.watch.source
            with self.catch_problems(source, look.problems):
                if (queued := ranked.due.enqueue(self.deployment.log, name)) is not None:
                    look.dispatches.append(Dispatch(source=source, iteration=queued, name=name))

    def _add_loadable_tenants(self, look: LookResult) -> None:
        """Add to `look.present` the tenants that can be loaded into tables with problems."""
        for source in self.sources:
            if (
                source.load is not None
                and source.tenants is not None
                and look.list_problems(source.name)
            ):
                with self.catch_problems(source, look.problems):
                    look.present.setdefault(source.name, tuple(source.tenants()))


def _group_by_table(events: ChangedTenants) -> TenantsByTable:
    """The tenants by table id, shortened as in marks."""
    ids = {table_id for table_id, _ in events.tenants}
    shortened = {table_id: LogMark.hash_table_id(table_id) for table_id in ids}
    by_table: dict[str, set[str]] = {}
    for table_id, tenant in events.tenants:
        by_table.setdefault(shortened[table_id], set()).add(tenant)
    return {table: frozenset(tenants) for table, tenants in by_table.items()}


def _has_new_commit(watch: TableWatch) -> bool:
    if watch.mark is None or not watch.delta_log.files.local:
        return False
    try:
        return not watch.delta_log.is_latest(watch.mark)
    except IscpError:
        return True


def _rank_due(watch: TableWatch) -> list[_RankedIteration]:
    """What is due, joined by rank: all tenants' first iterations, then the second, and so on."""
    by_rank: dict[int, list[DueIteration]] = {}
    ranks: Counter[str] = Counter()
    for candidate in watch.plan_due():
        (tenant,) = candidate.iteration.tenants
        by_rank.setdefault(ranks[tenant], []).append(candidate)
        ranks[tenant] += 1
    return [
        _RankedIteration(watch=watch, due=due, rank=rank)
        for rank, members in by_rank.items()
        for due in join_iterations(members, watch.delta_log)
    ]


def _order_by_turns(due: Iterable[_RankedIteration]) -> list[_RankedIteration]:
    """Order by priority; within one, tables take turns, and within a table tenants do.

    The longest-waiting come first, so that the next look takes up what this one leaves over.
    """
    turns: Counter[tuple[str, int]] = Counter()
    ordered: list[tuple[int, int, datetime, _RankedIteration]] = []
    for ranked in sorted(due, key=lambda ranked: (-ranked.priority, ranked.rank, ranked.began)):
        series = ranked.watch.source.name, ranked.priority
        ordered.append((-ranked.priority, turns[series], ranked.began, ranked))
        turns[series] += 1
    return [ranked for *_, ranked in sorted(ordered, key=lambda entry: entry[:3])]
