"""The runner: from what it last saw to the iterations that are due.

A look is a function of (cursor, table logs, ISCP log): it starts no Spark and keeps nothing that
a restart would lose.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime

from iscp_dagster.delta.log.deltalog import DeltaLog
from iscp_dagster.delta.log.mark import LogMark
from iscp_dagster.delta.log.unreadable import calm
from iscp_dagster.joblog.protocol import Touched
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.model.errors import FenceError
from iscp_dagster.planning.joining import Due, joined
from iscp_dagster.planning.look import Cursor, Dispatch, Look, News
from iscp_dagster.planning.news import Told, Untold, tell, with_range
from iscp_dagster.planning.problems import problem_of, sign
from iscp_dagster.planning.watch import Watch
from iscp_dagster.sync.deployment import Deployment

MOST_DISPATCHES = 200
"""Iterations dispatched in one look; Dagster submits six or seven runs a second."""
MOST_NEWS = 1_000
"""Tenants told of as changed in one look; an event takes Dagster about 10 ms."""
FEW_NEWS = 50
"""The same where runs wait: Dagster stores a look's events before it submits the runs of the look,
which tell of their tenants themselves."""
BEGINNING = 20.0
"""Seconds of a look in which tables that were not looked at since the start are taken in; the
others wait for the next look, since Dagster gives a tick a minute."""


@dataclass(frozen=True, kw_only=True)
class _Ranked:
    """An iteration that may be dispatched, and its place among those of its table."""

    watch: Watch
    due: Due
    rank: int
    """How many of a tenant's come before it in this look."""

    @property
    def priority(self) -> int:
        return self.due.iteration.priority

    @property
    def began(self) -> datetime:
        return self.due.began


@dataclass
class Runner:
    """Looks at `sources`; `watches` remember them between looks, to read each commit once.

    Of several runners on one log one looks at a table, as long as it renews its lease; others,
    those of other owners, stand by. Should two look at once all the same, the log lets one of them
    queue an iteration.
    """

    deployment: Deployment
    sources: Sequence[SourceTable]
    owner: str = "runner"
    watches: dict[str, Watch] = field(default_factory=dict)
    monotonic: Callable[[], float] = time.monotonic
    _leading: dict[str, float] = field(default_factory=dict)
    """Until when the lease of a table is surely this runner's, by `monotonic`."""
    _tried: dict[str, int] = field(default_factory=dict)
    """In which look each table was last looked at."""
    _looks: int = 0
    _place: int | None = None
    """From where the ISCP log tells what happened, which no watch has missed before."""

    def look(self, cursor: str | None) -> Look:
        """What is new since `cursor`, with what is due queued; a table's problem stays its own."""
        self._looks += 1
        before = Cursor.parse(cursor)
        look = Look(forgot=before.unreadable)
        after = Cursor(marks=self._marks(before), untold=before.untold)
        happened, standing = self._happened(), self.deployment.log.standing()
        look.elsewhere = self._elsewhere()
        until, left_out = self.monotonic() + BEGINNING, set(look.elsewhere)
        due: list[_Ranked] = []
        for source in self._in_turn(before):
            if source.name in look.elsewhere:
                self.watches.pop(source.name, None)
                continue
            with self._alone(source, look):
                watch = self._watch(source)
                if (watch.mark is None or look.problems) and self.monotonic() > until:
                    left_out.add(source.name)
                    continue
                self._tried[source.name] = self._looks
                seen = before.seen(source.name)
                mark = watch.take_in(seen, happened.tenants, standing)
                due += self._found(watch, look)
                after.marks[source.name] = str(mark)
                after.untold[source.name] = _still_untold(
                    after.untold.get(source.name, []), seen, mark
                )
        if not any(watch.mark and name in left_out for name, watch in self.watches.items()):
            self._place = happened.place
        self._dispatch(due, look)
        self._tell(after.untold, look, left_out)
        self._offer(look)
        _remember(before, after, look, left_out)
        look.cursor = str(after)
        return look

    def _in_turn(self, before: Cursor) -> list[SourceTable]:
        """Those of which nothing was wrong first: a store that does not answer takes its time.

        Of the others that one which was left out the longest.
        """

        def place(source: SourceTable) -> tuple[bool, int]:
            return source.name in before.told, self._tried.get(source.name, 0)

        return sorted(self.sources, key=place)

    def _marks(self, before: Cursor) -> dict[str, str]:
        names = [source.name for source in self.sources]
        return {name: before.marks[name] for name in names if name in before.marks}

    def _found(self, watch: Watch, look: Look) -> list[_Ranked]:
        """What is due of the table."""
        due = _ranked(watch)
        if watch.found is not None:
            look.present[watch.source.name] = watch.found
        for problem in watch.problems:
            look.add(problem)
        return due

    @contextmanager
    def _alone(self, source: SourceTable, look: Look) -> Iterator[None]:
        """Whatever the table raises, expected or not, stops it alone; it then begins anew."""
        try:
            with calm():
                yield
        except Exception as error:  # noqa: BLE001 - nobody can tell what a table may raise
            self.watches.pop(source.name, None)
            look.add(problem_of(source, error))

    def delta_log_of(self, source: SourceTable) -> DeltaLog:
        """The table's log as this runner reads it."""
        return self._watch(source).delta_log

    def _watch(self, source: SourceTable) -> Watch:
        if source.name not in self.watches:
            delta_log = self.deployment.delta_log(source)
            self.watches[source.name] = Watch(self.deployment, source, delta_log)
        return self.watches[source.name]

    def _elsewhere(self) -> frozenset[str]:
        """The tables that another runner looks at; the lease of the others is this one's."""
        now, seconds = self.monotonic(), self.deployment.log.leases.runner
        found = set()
        for source in self.sources:
            if now < self._leading.get(source.name, now):
                continue
            if self.deployment.log.take(f"runner of {source.name}", self.owner, seconds):
                # Renewed long before it runs out; most idle looks write nothing all the same.
                self._leading[source.name] = now + seconds / 3
            else:
                self._leading.pop(source.name, None)
                found.add(source.name)
        return frozenset(found)

    def _happened(self) -> Touched:
        """Whose jobs something happened to since every table that is watched took it in.

        A first look asks otherwise.
        """
        happened = self.deployment.log.touched(self._place)
        self._place = happened.place if self._place is None else self._place
        return happened

    def _dispatch(self, due: list[_Ranked], look: Look) -> None:
        """Queue what is due, the highest priority first; of equals each table's in turn."""
        for each in _in_turns(due)[:MOST_DISPATCHES]:
            name, source = secrets.token_hex(8), each.watch.source
            # A fence that moved: somebody materializes it by hand.
            with self._alone(source, look), suppress(FenceError):
                each.due.flush(self.deployment.log)
                self.deployment.log.enqueue(each.due.iteration, name)
                found = Dispatch(source=source, iteration=each.due.iteration, name=name)
                look.dispatches.append(found)

    def _tell(self, untold: dict[str, list[Untold]], look: Look, left_out: Collection[str]) -> None:
        """Tell of changed tenants while there is room, of which every table has its share.

        Of those that were looked at: another one's store may take as long again to say nothing.
        """
        seen = self.watches.keys() - set(left_out)
        waiting = [each for each in self.sources if each.name in seen and untold.get(each.name)]
        left = FEW_NEWS if look.dispatches else MOST_NEWS
        for number, source in enumerate(waiting):
            room = max(left // (len(waiting) - number), 1)
            with self._alone(source, look):
                told, rest = tell(untold[source.name], self._behind(source), room)
                look.news += [self._news(source, each) for each in told]
                left -= sum(len(each.tenants) for each in told)
                untold[source.name] = rest

    def _offer(self, look: Look) -> None:
        """The tenants that can be loaded into a table that cannot be looked at."""
        for source in self.sources:
            if source.load is not None and source.tenants is not None and look.of(source.name):
                with self._alone(source, look):
                    look.present.setdefault(source.name, tuple(source.tenants()))

    def _news(self, source: SourceTable, told: Told) -> News:
        delta_log, upto = self.delta_log_of(source), told.upto.version
        last = None if told.after is None else delta_log.last_changes(told.after.version, upto)
        versions = {tenant: (last or {}).get(tenant, upto) for tenant in told.tenants}
        return News(source=source, versions=versions)

    def _behind(self, source: SourceTable) -> Callable[[Untold], Collection[str]]:
        """The tenants that a range changed, less those whose indexes have it already.

        Dagster would show those as behind the news for ever: no run follows it. A range without a
        beginning is the whole table, also that of stranded jobs, whose indexes are behind it.
        """
        delta_log = self.delta_log_of(source)
        log, table_id = self.deployment.log, delta_log.table_id()

        def changed(range_: Untold) -> Collection[str]:
            upto = range_.upto.version
            behind = log.accounts(table_id, behind=upto)
            found = None
            if range_.after is not None:
                found = delta_log.changed_tenants(range_.after.version, upto)
            found = {*delta_log.tenants(upto), *behind} if found is None else found
            return found - (log.accounts(table_id) - behind)

        return changed


def _ranked(watch: Watch) -> list[_Ranked]:
    """What is due, joined; of a tenant that has several the first ones with others' first ones."""
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
    """By priority; of equals the first of every table, then the second, each tenant's in turn.

    Who has waited longest comes first: what one look leaves over is not left over by the next.
    """
    turns: Counter[tuple[str, int]] = Counter()
    found: list[tuple[int, int, datetime, _Ranked]] = []
    for each in sorted(due, key=lambda each: (-each.priority, each.rank, each.began)):
        place = each.watch.source.name, each.priority
        found.append((-each.priority, turns[place], each.began, each))
        turns[place] += 1
    return [each for *_, each in sorted(found, key=lambda one: one[:3])]


def _still_untold(pending: list[Untold], seen: LogMark | None, mark: LogMark) -> list[Untold]:
    if mark == seen:
        return pending
    after = seen.moment if seen is not None and _follows(mark, seen) else None
    return with_range([] if after is None else pending, after, mark.moment)


def _follows(mark: LogMark, seen: LogMark) -> bool:
    return seen.same_table(mark) and seen.moment.version < mark.moment.version


def _remember(before: Cursor, after: Cursor, look: Look, left_out: Collection[str]) -> None:
    """Note which problems were told by now, and which are over."""
    wrong = {each.table for each in look.problems}
    after.told = {name: said for name, said in before.told.items() if name in left_out}
    after.told |= {name: sign(look.of(name)) for name in sorted(wrong)}
    look.risen = frozenset(n for n in wrong if before.told.get(n) != after.told[n])
    look.settled = frozenset(before.told.keys() - after.told.keys())
