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
from iscp_dagster.delta.log.unreadable import calm
from iscp_dagster.joblog.history import Bookmark
from iscp_dagster.joblog.protocol import Touched
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.model.errors import IscpError
from iscp_dagster.planning.declared import terms
from iscp_dagster.planning.joining import Due, joined
from iscp_dagster.planning.look import Cursor, Dispatch, Look, marks_of, remember
from iscp_dagster.planning.problems import Problem, problem_of
from iscp_dagster.planning.watch import Touches, Watch
from iscp_dagster.sync.deployment import Deployment

MOST_DISPATCHES = 200
"""Iterations dispatched in one look; Dagster submits six or seven runs a second."""
BEGINNING = 20.0
"""Seconds of a look for taking in tables that were not looked at since the start; the others
wait for the next look, since Dagster limits a tick to a minute."""


@dataclass(frozen=True, kw_only=True)
class _Ranked:
    """An iteration that may be dispatched, and its place among those of its table."""

    watch: Watch
    due: Due
    rank: int
    """How many iterations of the same tenant come before it in this look."""

    @property
    def priority(self) -> int:
        return self.due.iteration.priority

    @property
    def began(self) -> datetime:
        return self.due.began


@dataclass
class Runner:
    """Looks at `sources`; `watches` remember them between looks, to read each commit once.

    Of several runners on one log only one looks at a table, as long as it renews its lease; those
    of other owners stand by. If two look at once all the same, the log lets only one of them queue
    an iteration.
    """

    deployment: Deployment
    sources: Sequence[SourceTable]
    owner: str = "runner"
    watches: dict[str, Watch] = field(default_factory=dict)
    scan_seconds: float = 0.0
    """Seconds between two polls of a table in an object store."""
    monotonic: Callable[[], float] = time.monotonic
    ending: Callable[[], bool] = bool
    """Whether the process is ending: it then queues nothing more, since nobody would run it."""
    _leading: dict[str, float] = field(default_factory=dict)
    """By table, until when this runner certainly holds its lease, by `monotonic`."""
    _tried: dict[str, int] = field(default_factory=dict)
    """In which look each table was last looked at."""
    _asked: dict[str, float] = field(default_factory=dict)
    """When each table was last asked for its next commit, by `monotonic`."""
    _looks: int = 0
    _missed: Bookmark | None = None
    """From where on the ISCP log has events that some watch has not taken in."""
    _heard: Bookmark | None = None
    """From where on it has the events since the last look began."""
    latest: Look | None = None

    def look(self, cursor: str | None) -> Look:
        """Find what is new since `cursor`, queue what is due; a table's problem stops only it."""
        self._looks += 1
        before = Cursor.parse(cursor)
        look = Look(forgot=before.unreadable)
        after = Cursor(marks=marks_of(before, self.sources))
        happened, rested = self._happened(before)
        touched, standing = _by_table(happened), self.deployment.log.standing()
        look.elsewhere = self._elsewhere()
        until, left_out = self.monotonic() + BEGINNING, set(look.elsewhere)
        due: list[_Ranked] = []
        for source in self._in_turn(before):
            if source.name in look.elsewhere:
                self.watches.pop(source.name, None)
                continue
            with self.alone(source, look.problems):
                new = source.name not in self.watches or self.watches[source.name].mark is None
                if (new or look.problems) and self.monotonic() > until:
                    left_out.add(source.name)
                    continue
                self._tried[source.name] = self._looks
                watch, seen = self._watch(source), before.seen(source.name)
                if new and seen and rested.get(source.name) == terms(source, standing):
                    watch.resume(seen, rested[source.name])
                mark = watch.take_in(seen, touched, standing, poll=self._is_time(watch))
                due += self._found(watch, look)
                after.marks[source.name] = str(mark)
        self._dispatch(due, look)
        self._offer(look)
        look.left_out = frozenset(left_out)
        self._note(after, look, rested, happened)
        look.risen, look.settled = remember(before, after, look)
        look.cursor = str(after)
        self.latest = look
        return look

    def _in_turn(self, before: Cursor) -> list[SourceTable]:
        """Tables without problems first: a store that does not answer takes long.

        Then those left out the longest; of equals, as at the start, those at rest, which cost next
        to nothing.
        """

        def place(source: SourceTable) -> tuple[bool, int, bool]:
            name = source.name
            return name in before.told, self._tried.get(name, 0), name not in before.at_rest

        return sorted(self.sources, key=place)

    def _found(self, watch: Watch, look: Look) -> list[_Ranked]:
        """What is due for the table; puts its tenants and problems into `look`."""
        due = _ranked(watch)
        if watch.found is not None:
            look.present[watch.source.name] = watch.found
        for problem in watch.problems:
            look.add(problem)
        return due

    @contextmanager
    def alone(self, source: SourceTable, problems: list[Problem]) -> Iterator[None]:
        """Let whatever the table raises, expected or not, stop only it; its watch starts over."""
        try:
            with calm():
                yield
        except Exception as error:  # noqa: BLE001 - nobody can tell what a table may raise
            self.watches.pop(source.name, None)
            problem = problem_of(source, error)
            if problem not in problems:
                problems.append(problem)

    def _is_time(self, watch: Watch) -> bool:
        """Whether to ask for the table's next commit: in an object store every `scan_seconds`."""
        now, name = self.monotonic(), watch.source.name
        # A look comes a little early or late.
        again = self._asked.get(name, float("-inf")) + 0.9 * self.scan_seconds
        if watch.delta_log.files.local or now >= again:
            self._asked[name] = now
            return True
        return False

    def delta_log_of(self, source: SourceTable) -> DeltaLog:
        """The table's log as this runner reads it."""
        return self._watch(source).delta_log

    def _watch(self, source: SourceTable) -> Watch:
        if source.name not in self.watches:
            delta_log = self.deployment.delta_log(source)
            self.watches[source.name] = Watch(self.deployment, source, delta_log)
        return self.watches[source.name]

    def _elsewhere(self) -> frozenset[str]:
        """The tables that another runner looks at; takes the leases of the others."""
        now, seconds = self.monotonic(), self.deployment.log.leases.runner
        names = {
            f"runner of {source.name}": source.name
            for source in self.sources
            if now >= self._leading.get(source.name, now)
        }
        taken = {names[each] for each in self.deployment.log.take(names, self.owner, seconds)}
        # Renewed long before they run out; most idle looks still write nothing.
        self._leading |= dict.fromkeys(taken, now + seconds / 3)
        others = frozenset(names.values()) - taken
        for name in others:
            self._leading.pop(name, None)
        return others

    def _happened(self, before: Cursor) -> tuple[Touched, Mapping[str, str]]:
        """The tenants with job events that not every table has taken in, and the tables at rest.

        If the ISCP log cannot tell what happened, the runner trusts nothing that it remembers.
        """
        log, since = self.deployment.log, self._missed
        happened = log.touched(since)
        if not happened.whole:
            self.watches.clear()
            self._missed = happened.upto
        self._heard = happened.upto
        if before.heard in {None, since}:
            return happened, before.at_rest if happened.whole else {}
        # The bookmark of an earlier runner, or of an older look of this one.
        assert before.heard is not None
        others = log.touched(before.heard)
        if not others.whole:
            return happened, {}
        if self._missed is None or before.heard.place < self._missed.place:
            self._missed = before.heard
        return replace(happened, tenants=happened.tenants | others.tenants), before.at_rest

    def _note(
        self, after: Cursor, look: Look, rested: Mapping[str, str], happened: Touched
    ) -> None:
        """Put into the cursor what a runner that starts from it need not find out again."""
        out = look.left_out - look.elsewhere
        behind = {name for name, watch in self.watches.items() if watch.mark} | rested.keys()
        since = self._missed if self._missed and behind & out else happened.upto
        # The bookmark must also name the newest entry: a log without it is another one.
        self._missed = replace(self.deployment.log.touched(None).upto, place=since.place)
        unsettled = out | {each.table for each in look.problems}
        after.at_rest = {name: rested[name] for name in rested.keys() & out} | {
            name: watch.terms
            for name, watch in self.watches.items()
            if watch.at_rest and name not in unsettled
        }
        after.heard = self._missed if after.at_rest else None

    def has_new_commit(self) -> bool:
        """Whether a table has a new commit since the last look; costs two stats a table.

        Tables in object stores are left to the next look, and so are those not looked at yet.
        """
        return any(map(_moved_on, self.watches.values()))

    def has_new_event(self) -> bool:
        """Whether something happened to a job since the last look began; one statement."""
        return bool(self.deployment.log.touched(self._heard).tenants)

    def _dispatch(self, due: list[_Ranked], look: Look) -> None:
        """Queue what is due, highest priority first; within a priority tables take turns."""
        for each in _in_turns(due)[:MOST_DISPATCHES]:
            if self.ending():
                return
            name, source = secrets.token_hex(8), each.watch.source
            with self.alone(source, look.problems):
                if (queued := each.due.enqueue(self.deployment.log, name)) is not None:
                    look.dispatches.append(Dispatch(source=source, iteration=queued, name=name))

    def _offer(self, look: Look) -> None:
        """Add to `look.present` the tenants that can be loaded into tables with problems."""
        for source in self.sources:
            if source.load is not None and source.tenants is not None and look.of(source.name):
                with self.alone(source, look.problems):
                    look.present.setdefault(source.name, tuple(source.tenants()))


def _by_table(happened: Touched) -> Touches:
    """The tenants by table id, shortened as in marks."""
    ids = {table_id for table_id, _ in happened.tenants}
    shortened = {table_id: LogMark.shortened(table_id) for table_id in ids}
    found: dict[str, set[str]] = {}
    for table_id, tenant in happened.tenants:
        found.setdefault(shortened[table_id], set()).add(tenant)
    return {table: frozenset(tenants) for table, tenants in found.items()}


def _moved_on(watch: Watch) -> bool:
    if watch.mark is None or not watch.delta_log.files.local:
        return False
    try:
        return not watch.delta_log.ends_at(watch.mark)
    except IscpError:
        return True


def _ranked(watch: Watch) -> list[_Ranked]:
    """What is due, joined by rank: all tenants' first iterations, then the second, and so on."""
    by_rank: dict[int, list[Due]] = {}
    ranks: Counter[str] = Counter()
    for each in watch.due():
        (tenant,) = each.iteration.tenants
        by_rank.setdefault(ranks[tenant], []).append(each)
        ranks[tenant] += 1
    return [
        _Ranked(watch=watch, due=due, rank=rank)
        for rank, members in by_rank.items()
        for due in joined(members, watch.delta_log)
    ]


def _in_turns(due: Iterable[_Ranked]) -> list[_Ranked]:
    """Order by priority; within one, tables take turns, and within a table tenants do.

    The longest-waiting come first, so that the next look takes up what this one leaves over.
    """
    turns: Counter[tuple[str, int]] = Counter()
    found: list[tuple[int, int, datetime, _Ranked]] = []
    for each in sorted(due, key=lambda each: (-each.priority, each.rank, each.began)):
        place = each.watch.source.name, each.priority
        found.append((-each.priority, turns[place], each.began, each))
        turns[place] += 1
    return [each for *_, each in sorted(found, key=lambda one: one[:3])]
