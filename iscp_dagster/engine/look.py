"""What one look of the runner found, and what it remembers until the next."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from iscp_dagster.core.iterations import Iteration
from iscp_dagster.core.news import Untold
from iscp_dagster.core.tables import SourceTable
from iscp_dagster.lake.mark import LogMark

UNTOLD = "untold"


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

    `news` is what is to be told of now. `present` are, by table, the tenants that must be
    partitions before: those found, or those that a source can load.
    """

    cursor: str = "{}"
    dispatches: list[Dispatch] = field(default_factory=list)
    news: list[News] = field(default_factory=list)
    present: dict[str, tuple[str, ...]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def parse_cursor(cursor: str | None) -> tuple[Mapping[str, LogMark], dict[str, list[Untold]]]:
    """A mark a table, by the table's name; and for some what is still to be told of."""
    marks = json.loads(cursor or "{}")
    untold = marks.pop(UNTOLD, {})
    return (
        {name: LogMark.parse(text) for name, text in marks.items()},
        {name: [Untold.from_json(each) for each in ranges] for name, ranges in untold.items()},
    )


def written_cursor(marks: Mapping[str, str], untold: Mapping[str, Sequence[Untold]]) -> str:
    """What `parse_cursor` reads."""
    pending = {
        name: [each.to_json() for each in ranges] for name, ranges in untold.items() if ranges
    }
    rest = {UNTOLD: pending} if pending else {}
    return json.dumps({**marks, **rest}, separators=(",", ":"))
