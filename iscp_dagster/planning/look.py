"""What one look of the runner found, and what it remembers until the next."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field

from iscp_dagster.delta.log.mark import LogMark
from iscp_dagster.joblog.history import Bookmark
from iscp_dagster.joblog.iterations import Iteration
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.planning.news import PendingNews
from iscp_dagster.planning.problems import Problem, hash_problems

PENDING_KEY, REPORTED_KEY, BOOKMARK_KEY = "untold", "told", "heard"
TERMS_SEPARATOR = "|"
"""Separates a table's mark from the terms under which it is at rest."""


@dataclass(frozen=True, kw_only=True)
class Dispatch:
    """An iteration to run; `name` is its name in the ISCP log until its run begins."""

    source: SourceTable
    iteration: Iteration
    name: str


@dataclass(kw_only=True)
class LookResult:
    """What one look found. `cursor` holds one mark per table, never an entry per tenant.

    `present` has, by table, the tenants that must be partitions: those found, or those that a
    source can load.
    """

    cursor: str = "{}"
    dispatches: list[Dispatch] = field(default_factory=list)
    present: dict[str, tuple[str, ...]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    """All current problems."""
    new_problem_tables: frozenset[str] = frozenset()
    """The tables whose problems are new, or differ from those reported before."""
    resolved_tables: frozenset[str] = frozenset()
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

    def list_problems(self, table: str) -> list[Problem]:
        """The problems of that table."""
        return [problem for problem in self.problems if problem.table == table]

    def hash_problems_by_table(self) -> dict[str, str]:
        """A digest of the problems of each table that has any."""
        return {
            name: hash_problems(self.list_problems(name))
            for name in sorted({problem.table for problem in self.problems})
        }

    @property
    def quiet(self) -> bool:
        """Whether it found nothing to do or to report."""
        return not (
            self.dispatches or self.new_problem_tables or self.resolved_tables or self.forgot
        )


@dataclass(kw_only=True)
class SensorCursor:
    """What the runner remembers between looks, or the reporter between reports, by table."""

    marks: dict[str, str] = field(default_factory=dict)
    at_rest: dict[str, str] = field(default_factory=dict)
    """The tables at rest, with their terms (`planning.declared`): after a restart the runner only
    needs to find out what happened to them since."""
    bookmark: Bookmark | None = None
    """How far the ISCP log's history was read for `at_rest`."""
    pending: dict[str, list[PendingNews]] = field(default_factory=dict)
    """The ranges whose tenants are not all reported yet."""
    reported: dict[str, str] = field(default_factory=dict)
    """By table, a digest of the problems that were reported."""
    unreadable: bool = False

    @classmethod
    def parse(cls, text: str | None) -> SensorCursor:
        """Read what `str` wrote; None is an empty cursor, any other text an `unreadable` one."""
        try:
            stored = json.loads(text or "{}")
            pending, reported = stored.pop(PENDING_KEY, {}), stored.pop(REPORTED_KEY, {})
            bookmark = Bookmark.parse(stored.pop(BOOKMARK_KEY)) if BOOKMARK_KEY in stored else None
            ranges = {
                name: [PendingNews.from_json(value) for value in values]
                for name, values in pending.items()
            }
            parts = {name: entry.partition(TERMS_SEPARATOR) for name, entry in stored.items()}
            for mark, _, _ in parts.values():
                LogMark.parse(mark)
            dict[str, str](reported)
        except (ValueError, TypeError, AttributeError, KeyError):
            return cls(unreadable=True)
        marks = {name: mark for name, (mark, _, _) in parts.items()}
        at_rest = {name: terms for name, (_, _, terms) in parts.items() if terms}
        return cls(
            marks=marks, at_rest=at_rest, bookmark=bookmark, pending=ranges, reported=reported
        )

    def get_mark(self, table: str) -> LogMark | None:
        """The latest commit seen of the table."""
        mark = self.marks.get(table)
        return None if mark is None else LogMark.parse(mark)

    def __str__(self) -> str:
        pending = {
            name: [range_.to_json() for range_ in ranges]
            for name, ranges in self.pending.items()
            if ranges
        }
        bookmark = None if self.bookmark is None else str(self.bookmark)
        fields = ((PENDING_KEY, pending), (REPORTED_KEY, self.reported), (BOOKMARK_KEY, bookmark))
        rest = {name: value for name, value in fields if value}
        marks = dict(self.marks)
        for name, terms in self.at_rest.items():
            marks[name] += TERMS_SEPARATOR + terms
        return json.dumps({**marks, **rest}, separators=(",", ":"))


def select_marks(before: SensorCursor, sources: Iterable[SourceTable]) -> dict[str, str]:
    """The marks of the tables that are still declared."""
    names = [source.name for source in sources]
    return {name: before.marks[name] for name in names if name in before.marks}


def update_reported(
    before: SensorCursor, after: SensorCursor, look: LookResult
) -> tuple[frozenset[str], frozenset[str]]:
    """Note the problems reported so far in `after`; return the tables with new and settled ones."""
    unchanged = {name: digest for name, digest in before.reported.items() if name in look.left_out}
    after.reported = unchanged | look.hash_problems_by_table()
    new = (
        name
        for name in look.hash_problems_by_table()
        if before.reported.get(name) != after.reported[name]
    )
    return frozenset(new), frozenset(before.reported.keys() - after.reported.keys())
