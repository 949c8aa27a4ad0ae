"""What of a location's declarations can stand together: a mistake leaves out only what has it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from iscp_dagster.model.declared.endpoints import Endpoint
from iscp_dagster.model.declared.eventtriggers import Trigger
from iscp_dagster.model.declared.services import ServiceConsumer
from iscp_dagster.model.declared.tables import Index, SourceTable
from iscp_dagster.model.declared.together.attach import Declarations
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


def select_consistent(given: Declarations, check: Check) -> Sound:
    """Keep as many of the declarations as stand together, the earlier ones first.

    Of two that would have one name the second is left out; with a table, all that is over it. The
    order is that of the tables, each followed by its indexes and service consumers; then endpoints,
    views, triggers and service consumers.
    """
    once = Declarations.of(given.everything, given.files)
    kept, mistakes = _drop_misfits(list(_order_declarations(once)), check, given.files)
    found = _build_declarations(kept)
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
        endpoints=found.list_endpoints(),
        mistakes=[error for _, error in mistakes],
        declared=dict(zip(origins, stands, strict=True)),
    )


@dataclass(frozen=True)
class _Declaration:
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


def _order_declarations(given: Declarations) -> Iterator[_Declaration]:
    """Each declaration after those that it needs."""
    for table in given.tables:
        yield _Declaration(table)
        yield from (_Declaration(each, table) for each in (*table.indexes, *table.services))
    named = (end for each in _list_triggers(given) for end in each.to if isinstance(end, Endpoint))
    yield from map(_Declaration, {id(each): each for each in (*given.endpoints, *named)}.values())
    yield from map(_Declaration, given.views)
    for table in given.tables:
        yield from (_Declaration(each, table) for each in table.triggers)
    yield from map(_Declaration, (*given.triggers, *given.services))


def _list_triggers(given: Declarations) -> Iterator[Trigger]:
    yield from (each for table in given.tables for each in table.triggers)
    yield from given.triggers


def _build_declarations(parts: Iterable[_Declaration]) -> Declarations:
    own: dict[int, list[object]] = defaultdict(list)
    free: list[object] = []
    for part in parts:
        (free if part.table is None else own[id(part.table)]).append(part.each)
    return Declarations.of(
        _replace_consumers(each, own[id(each)]) if isinstance(each, SourceTable) else each
        for each in free
    )


def _replace_consumers(table: SourceTable, own: Sequence[object]) -> SourceTable:
    if len(own) == len(table.consumers):
        return table
    return replace(
        table,
        indexes=[each for each in own if isinstance(each, Index)],
        triggers=[each for each in own if isinstance(each, Trigger)],
        services=[each for each in own if isinstance(each, ServiceConsumer)],
    )


def _drop_misfits(
    parts: list[_Declaration], check: Check, files: Mapping[int, str]
) -> tuple[list[_Declaration], list[tuple[str, ConfigError]]]:
    """The parts without those that do not fit the ones before them, and the mistakes by table.

    Each mistake costs as many checks as the number of parts has binary digits.
    """

    def find_error(some: Sequence[_Declaration]) -> ConfigError | None:
        try:
            check(_build_declarations(some).attached())
        except ConfigError as error:
            return error
        return None

    kept: list[_Declaration] = []
    mistakes = []
    rest = parts
    while find_error([*kept, *rest]):
        fits, fails = 0, len(rest)
        while fails - fits > 1:
            middle = (fits + fails) // 2
            if find_error([*kept, *rest[:middle]]):
                fails = middle
            else:
                fits = middle
        kept, out = [*kept, *rest[:fits]], rest[fits]
        error = find_error([*kept, out])
        assert error is not None
        mistakes.append((_get_reporting_table(out, error), _explain_error(out, error, files)))
        rest = list(_drop_dependents(out, rest[fails:], kept))
    return [*kept, *rest], mistakes


def _drop_dependents(
    out: _Declaration, rest: Iterable[_Declaration], kept: Iterable[_Declaration]
) -> Iterator[_Declaration]:
    """The rest without what is left out with it: all over a table, unless another has its name."""
    tables = [part.each for part in (out, *kept) if isinstance(part.each, SourceTable)]
    names = [each.name for each in tables]
    gone = out.over if out.each in tables and names.count(out.over) == 1 else None
    for part in rest:
        free = part.table is None and not isinstance(part.each, SourceTable)
        again = free and (part.each is out.each or part.over == gone)
        if not (again or part.table is out.each):
            yield part


def _get_reporting_table(out: _Declaration, error: ConfigError) -> str:
    """The table that shows the mistake: its own, or that with which a table would share a name."""
    is_table = isinstance(out.each, SourceTable)
    return error.beside if is_table and isinstance(error, ClashError) else out.over


def _explain_error(out: _Declaration, error: ConfigError, files: Mapping[int, str]) -> ConfigError:
    """The error with the file where it is declared, and with what is left out."""
    file = files.get(id(out.each)) or files.get(id(out.table))
    return type(error)(f"{f'{file}: ' if file else ''}{error} Until then {out} is left out.")
