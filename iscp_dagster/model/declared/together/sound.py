"""What of a location's declarations can stand together: a mistake leaves out only what has it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from iscp_dagster.model.declared.endpoints import Endpoint
from iscp_dagster.model.declared.eventtriggers import Trigger
from iscp_dagster.model.declared.services import ServiceConsumer
from iscp_dagster.model.declared.tables import Index, SourceTable
from iscp_dagster.model.declared.together.attach import Declared
from iscp_dagster.model.declared.together.clashes import ClashError
from iscp_dagster.model.declared.views import View
from iscp_dagster.model.errors import ConfigError

Check = Callable[[Sequence[SourceTable]], None]
"""Raises ConfigError for tables that cannot be in one location."""


@dataclass(frozen=True, kw_only=True)
class Sound:
    """The declarations of a location that stand, the tables with all that is over them."""

    tables: list[SourceTable]
    """Each with its `left_out`."""
    endpoints: list[Endpoint]
    mistakes: list[ConfigError] = field(default_factory=list)
    """Why the others are left out."""
    declared: Mapping[int, SourceTable] = field(default_factory=dict, repr=False)
    """The tables by the `id` of what declares each."""

    @property
    def placeless(self) -> list[ConfigError]:
        """The mistakes that belong to no table of the location."""
        shown = {id(each) for table in self.tables for each in table.left_out}
        return [each for each in self.mistakes if id(each) not in shown]


def sound(given: Declared, check: Check) -> Sound:
    """Keep as many of the declarations as stand together, the earlier ones first.

    Of two that would have one name the second is left out; with a table, all that is over it. The
    order is that of the tables, each followed by its indexes and service consumers; then endpoints,
    views, triggers and service consumers.
    """
    once = Declared.of(given.everything, given.files)
    kept, mistakes = _longest(list(_parts(once)), check, given.files)
    found = _together(kept)
    tables = found.attached()
    left_out: dict[str, list[ConfigError]] = defaultdict(list)
    for table, error in mistakes:
        left_out[table].append(error)
    stands = [
        replace(each, left_out=left_out[each.name]) if each.name in left_out else each
        for each in tables
    ]
    origins = [id(part.each) for part in kept if isinstance(part.each, SourceTable)]
    return Sound(
        tables=stands,
        endpoints=found.all_endpoints(),
        mistakes=[error for _, error in mistakes],
        declared=dict(zip(origins, stands, strict=True)),
    )


@dataclass(frozen=True)
class _Part:
    """A declaration; `table` if it is one of that table's own."""

    each: object
    table: SourceTable | None = None

    @property
    def over(self) -> str:
        """The name of the table that it is, or is over; empty for an endpoint."""
        source = getattr(self.each, "source", None) or getattr(self.each, "on", None)
        return getattr(self.table or source, "name", "")

    def __str__(self) -> str:
        for type_, noun in _NOUNS.items():
            if isinstance(self.each, type_):
                name = getattr(self.each, "name", "")
                return f"the {noun} {f'{self.table.name}/{name}' if self.table else name}"
        return repr(self.each)


_NOUNS: Mapping[type, str] = {
    SourceTable: "source table",
    Index: "index",
    View: "view",
    Trigger: "trigger",
    Endpoint: "endpoint",
    ServiceConsumer: "service consumer",
}


def _parts(given: Declared) -> Iterator[_Part]:
    """Each declaration after those that it needs."""
    for table in given.tables:
        yield _Part(table)
        yield from (_Part(each, table) for each in (*table.indexes, *table.services))
    named = (end for each in _triggers(given) for end in each.to if isinstance(end, Endpoint))
    yield from map(_Part, {id(each): each for each in (*given.endpoints, *named)}.values())
    yield from map(_Part, given.views)
    for table in given.tables:
        yield from (_Part(each, table) for each in table.triggers)
    yield from map(_Part, (*given.triggers, *given.services))


def _triggers(given: Declared) -> Iterator[Trigger]:
    yield from (each for table in given.tables for each in table.triggers)
    yield from given.triggers


def _together(parts: Iterable[_Part]) -> Declared:
    own: dict[int, list[object]] = defaultdict(list)
    free: list[object] = []
    for part in parts:
        (free if part.table is None else own[id(part.table)]).append(part.each)
    return Declared.of(
        _with(each, own[id(each)]) if isinstance(each, SourceTable) else each for each in free
    )


def _with(table: SourceTable, own: Sequence[object]) -> SourceTable:
    if len(own) == len(table.consumers):
        return table
    return replace(
        table,
        indexes=[each for each in own if isinstance(each, Index)],
        triggers=[each for each in own if isinstance(each, Trigger)],
        services=[each for each in own if isinstance(each, ServiceConsumer)],
    )


def _longest(
    parts: list[_Part], check: Check, files: Mapping[int, str]
) -> tuple[list[_Part], list[tuple[str, ConfigError]]]:
    """The parts without those that do not fit the ones before them, and the mistakes by table.

    Each mistake costs as many checks as the number of parts has binary digits.
    """

    def wrong(some: Sequence[_Part]) -> ConfigError | None:
        try:
            check(_together(some).attached())
        except ConfigError as error:
            return error
        return None

    kept: list[_Part] = []
    mistakes = []
    rest = parts
    while wrong([*kept, *rest]):
        fits, fails = 0, len(rest)
        while fails - fits > 1:
            middle = (fits + fails) // 2
            if wrong([*kept, *rest[:middle]]):
                fails = middle
            else:
                fits = middle
        kept, out = [*kept, *rest[:fits]], rest[fits]
        error = wrong([*kept, out])
        assert error is not None
        mistakes.append((_shown_at(out, error), _told(out, error, files)))
        rest = list(_without(out, rest[fails:], kept))
    return [*kept, *rest], mistakes


def _without(out: _Part, rest: Iterable[_Part], kept: Iterable[_Part]) -> Iterator[_Part]:
    """The rest without what is left out with it: all over a table, unless another has its name."""
    tables = [part.each for part in (out, *kept) if isinstance(part.each, SourceTable)]
    names = [each.name for each in tables]
    gone = out.over if out.each in tables and names.count(out.over) == 1 else None
    for part in rest:
        free = part.table is None and not isinstance(part.each, SourceTable)
        again = free and (part.each is out.each or part.over == gone)
        if not (again or part.table is out.each):
            yield part


def _shown_at(out: _Part, error: ConfigError) -> str:
    """The table that shows the mistake: its own, or that with which a table would share a name."""
    is_table = isinstance(out.each, SourceTable)
    return error.beside if is_table and isinstance(error, ClashError) else out.over


def _told(out: _Part, error: ConfigError, files: Mapping[int, str]) -> ConfigError:
    """The error with the file where it is declared, and with what is left out."""
    file = files.get(id(out.each)) or files.get(id(out.table))
    return type(error)(f"{f'{file}: ' if file else ''}{error} Until then {out} is left out.")
