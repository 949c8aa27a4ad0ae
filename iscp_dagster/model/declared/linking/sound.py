"""Finds a location's consistent declarations: a mistake leaves out only what has it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from iscp_dagster.model.declared.endpoints import Endpoint
from iscp_dagster.model.declared.eventtriggers import Trigger
from iscp_dagster.model.declared.linking.attach import Declarations
from iscp_dagster.model.declared.linking.clashes import ClashError
from iscp_dagster.model.declared.services import ServiceConsumer
from iscp_dagster.model.declared.tables import Index, SourceTable
from iscp_dagster.model.declared.views import View
from iscp_dagster.model.errors import ConfigError

Check = Callable[[Sequence[SourceTable]], None]
"""Raises ConfigError for tables that cannot be in one location."""


@dataclass(frozen=True, kw_only=True)
class ConsistentDeclarations:
    """The consistent declarations of a location, the tables with all that is over them."""

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
        reported = {id(error) for table in self.tables for error in table.left_out}
        return [error for error in self.mistakes if id(error) not in reported]


def select_consistent(declarations: Declarations, check: Check) -> ConsistentDeclarations:
    """Keep the declarations that are consistent with the ones kept before them.

    Of two with one name the second is left out; with a table, all that is over it. The order: the
    tables, each followed by its indexes and service consumers; then endpoints, views, triggers and
    service consumers.
    """
    unique = Declarations.of(declarations.everything, declarations.files)
    parts, mistakes = _drop_misfits(list(_order_declarations(unique)), check, declarations.files)
    consistent = _build_declarations(parts)
    tables = consistent.build_tables()
    left_out: dict[str, list[ConfigError]] = defaultdict(list)
    for table_name, error in mistakes:
        left_out[table_name].append(error)
    sound_tables = [
        replace(table, left_out=left_out[table.name]) if table.name in left_out else table
        for table in tables
    ]
    origins = [id(part.declared) for part in parts if isinstance(part.declared, SourceTable)]
    return ConsistentDeclarations(
        tables=sound_tables,
        endpoints=consistent.list_endpoints(),
        mistakes=[error for _, error in mistakes],
        declared=dict(zip(origins, sound_tables, strict=True)),
    )


@dataclass(frozen=True)
class _Declaration:
    """A declaration; `table` if it is declared within that table."""

    declared: object
    table: SourceTable | None = None

    @property
    def over(self) -> str:
        """The name of the table that it is, or is over; empty for an endpoint."""
        source = getattr(self.declared, "source", None) or getattr(self.declared, "on", None)
        return getattr(self.table or source, "name", "")

    def __str__(self) -> str:
        for type_, noun in _NOUNS.items():
            if isinstance(self.declared, type_):
                name = getattr(self.declared, "name", "")
                return f"the {noun} {f'{self.table.name}/{name}' if self.table else name}"
        return repr(self.declared)


_NOUNS: Mapping[type, str] = {
    SourceTable: "source table",
    Index: "index",
    View: "view",
    Trigger: "trigger",
    Endpoint: "endpoint",
    ServiceConsumer: "service consumer",
}


def _order_declarations(declarations: Declarations) -> Iterator[_Declaration]:
    """Each declaration after those that it needs."""
    for table in declarations.tables:
        yield _Declaration(table)
        yield from (_Declaration(consumer, table) for consumer in (*table.indexes, *table.services))
    trigger_endpoints = (
        endpoint
        for trigger in _list_triggers(declarations)
        for endpoint in trigger.to
        if isinstance(endpoint, Endpoint)
    )
    yield from map(
        _Declaration,
        {
            id(endpoint): endpoint for endpoint in (*declarations.endpoints, *trigger_endpoints)
        }.values(),
    )
    yield from map(_Declaration, declarations.views)
    for table in declarations.tables:
        yield from (_Declaration(trigger, table) for trigger in table.triggers)
    yield from map(_Declaration, (*declarations.triggers, *declarations.services))


def _list_triggers(declarations: Declarations) -> Iterator[Trigger]:
    yield from (trigger for table in declarations.tables for trigger in table.triggers)
    yield from declarations.triggers


def _build_declarations(parts: Iterable[_Declaration]) -> Declarations:
    by_table: dict[int, list[object]] = defaultdict(list)
    independent: list[object] = []
    for part in parts:
        (independent if part.table is None else by_table[id(part.table)]).append(part.declared)
    return Declarations.of(
        _replace_consumers(declaration, by_table[id(declaration)])
        if isinstance(declaration, SourceTable)
        else declaration
        for declaration in independent
    )


def _replace_consumers(table: SourceTable, consumers: Sequence[object]) -> SourceTable:
    if len(consumers) == len(table.consumers):
        return table
    return replace(
        table,
        indexes=[consumer for consumer in consumers if isinstance(consumer, Index)],
        triggers=[consumer for consumer in consumers if isinstance(consumer, Trigger)],
        services=[consumer for consumer in consumers if isinstance(consumer, ServiceConsumer)],
    )


def _drop_misfits(
    parts: list[_Declaration], check: Check, files: Mapping[int, str]
) -> tuple[list[_Declaration], list[tuple[str, ConfigError]]]:
    """The parts that fit the ones before them, and the mistakes of the others by table.

    Each mistake costs as many checks as the number of parts has binary digits.
    """

    def find_error(parts: Sequence[_Declaration]) -> ConfigError | None:
        try:
            check(_build_declarations(parts).build_tables())
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
        kept, misfit = [*kept, *rest[:fits]], rest[fits]
        error = find_error([*kept, misfit])
        assert error is not None
        mistakes.append((_get_reporting_table(misfit, error), _explain_error(misfit, error, files)))
        rest = list(_drop_dependents(misfit, rest[fails:], kept))
    return [*kept, *rest], mistakes


def _drop_dependents(
    misfit: _Declaration, rest: Iterable[_Declaration], kept: Iterable[_Declaration]
) -> Iterator[_Declaration]:
    """The rest without what depends on it: all over a table, unless another has its name."""
    tables = [part.declared for part in (misfit, *kept) if isinstance(part.declared, SourceTable)]
    names = [table.name for table in tables]
    dropped_table = (
        misfit.over if misfit.declared in tables and names.count(misfit.over) == 1 else None
    )
    for part in rest:
        independent = part.table is None and not isinstance(part.declared, SourceTable)
        dependent = independent and (part.declared is misfit.declared or part.over == dropped_table)
        if not (dependent or part.table is misfit.declared):
            yield part


def _get_reporting_table(misfit: _Declaration, error: ConfigError) -> str:
    """The table that shows the mistake: its own; for a table, the one whose name it would share."""
    is_table = isinstance(misfit.declared, SourceTable)
    return error.beside if is_table and isinstance(error, ClashError) else misfit.over


def _explain_error(
    misfit: _Declaration, error: ConfigError, files: Mapping[int, str]
) -> ConfigError:
    """The error with the file where it is declared, and with what is left out."""
    file = files.get(id(misfit.declared)) or files.get(id(misfit.table))
    return type(error)(f"{f'{file}: ' if file else ''}{error} Until then {misfit} is left out.")
