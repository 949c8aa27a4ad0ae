"""What one look of the runner found, and what it remembers until the next."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field

from iscp_dagster.delta.log.mark import LogMark
from iscp_dagster.joblog.history import Bookmark
from iscp_dagster.joblog.iterations import Iteration
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.planning.news import Untold
from iscp_dagster.planning.problems import Problem, sign

UNTOLD, TOLD, HEARD = "untold", "told", "heard"
AT_REST = "|"
"""Separates a table's mark from the terms under which it is at rest."""


@dataclass(frozen=True, kw_only=True)
class Dispatch:
    """An iteration to run; `name` is its name in the ISCP log until its run begins."""

    source: SourceTable
    iteration: Iteration
    name: str


@dataclass(kw_only=True)
class Look:
    """What one look found. `cursor` holds one mark per table, never an entry per tenant.

    `present` has, by table, the tenants that must be partitions: those found, or those that a
    source can load.
    """

    cursor: str = "{}"
    dispatches: list[Dispatch] = field(default_factory=list)
    present: dict[str, tuple[str, ...]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    """All current problems."""
    risen: frozenset[str] = frozenset()
    """The tables whose problems are new, or differ from those reported before."""
    settled: frozenset[str] = frozenset()
    """The tables whose problems are over."""
    elsewhere: frozenset[str] = frozenset()
    """The tables that another runner on the same log looks at."""
    left_out: frozenset[str] = frozenset()
    """The tables in `elsewhere`, and those that this look had no time for."""
    forgot: bool = False
    """Whether the cursor could not be read; the look then ran as after a restart."""

    def add(self, problem: Problem) -> None:
        if problem not in self.problems:
            self.problems.append(problem)

    def of(self, table: str) -> list[Problem]:
        """The problems of that table."""
        return [each for each in self.problems if each.table == table]

    def signs(self) -> dict[str, str]:
        """A digest of the problems of each table that has any."""
        return {name: sign(self.of(name)) for name in sorted({e.table for e in self.problems})}

    @property
    def quiet(self) -> bool:
        """Whether it found nothing to do or to report."""
        return not (self.dispatches or self.risen or self.settled or self.forgot)


@dataclass(kw_only=True)
class Cursor:
    """What the runner remembers between looks, or the reporter between reports, by table."""

    marks: dict[str, str] = field(default_factory=dict)
    at_rest: dict[str, str] = field(default_factory=dict)
    """The tables at rest, with their terms (`planning.declared`): after a restart the runner only
    needs to find out what happened to them since."""
    heard: Bookmark | None = None
    """How far the ISCP log's history was read for `at_rest`."""
    untold: dict[str, list[Untold]] = field(default_factory=dict)
    """The ranges whose tenants are not all reported yet."""
    told: dict[str, str] = field(default_factory=dict)
    """By table, a digest of the problems that were reported."""
    unreadable: bool = False

    @classmethod
    def parse(cls, text: str | None) -> Cursor:
        """Read what `str` wrote; None is an empty cursor, any other text an `unreadable` one."""
        try:
            held = json.loads(text or "{}")
            untold, told = held.pop(UNTOLD, {}), held.pop(TOLD, {})
            heard = Bookmark.parse(held.pop(HEARD)) if HEARD in held else None
            ranges = {name: [Untold.from_json(e) for e in each] for name, each in untold.items()}
            parts = {name: each.partition(AT_REST) for name, each in held.items()}
            for mark, _, _ in parts.values():
                LogMark.parse(mark)
            dict[str, str](told)
        except (ValueError, TypeError, AttributeError, KeyError):
            return cls(unreadable=True)
        marks = {name: mark for name, (mark, _, _) in parts.items()}
        at_rest = {name: terms for name, (_, _, terms) in parts.items() if terms}
        return cls(marks=marks, at_rest=at_rest, heard=heard, untold=ranges, told=told)

    def seen(self, table: str) -> LogMark | None:
        """The latest commit seen of the table."""
        found = self.marks.get(table)
        return None if found is None else LogMark.parse(found)

    def __str__(self) -> str:
        untold = {name: [e.to_json() for e in each] for name, each in self.untold.items() if each}
        heard = None if self.heard is None else str(self.heard)
        more = ((UNTOLD, untold), (TOLD, self.told), (HEARD, heard))
        rest = {name: held for name, held in more if held}
        marks = dict(self.marks)
        for name, terms in self.at_rest.items():
            marks[name] += AT_REST + terms
        return json.dumps({**marks, **rest}, separators=(",", ":"))


def marks_of(before: Cursor, sources: Iterable[SourceTable]) -> dict[str, str]:
    """The marks of the tables that are still declared."""
    names = [source.name for source in sources]
    return {name: before.marks[name] for name in names if name in before.marks}


def remember(before: Cursor, after: Cursor, look: Look) -> tuple[frozenset[str], frozenset[str]]:
    """Note the problems reported so far in `after`; return the tables with new and settled ones."""
    kept = {name: said for name, said in before.told.items() if name in look.left_out}
    after.told = kept | look.signs()
    risen = (name for name in look.signs() if before.told.get(name) != after.told[name])
    return frozenset(risen), frozenset(before.told.keys() - after.told.keys())
