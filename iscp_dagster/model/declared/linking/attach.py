"""Gives each source table the indexes and jobs of the views, triggers and services over it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from iscp_dagster.model.declared.endpoints import Endpoint
from iscp_dagster.model.declared.eventtriggers import Trigger
from iscp_dagster.model.declared.kinds import load_kinds
from iscp_dagster.model.declared.services import ServiceConsumer
from iscp_dagster.model.declared.tables import Index, SourceTable
from iscp_dagster.model.declared.views import View
from iscp_dagster.model.errors import ConfigError

CHANGES = "changes"
"""The kind of a view's index."""
_VIEW_OPTIONS = (
    *("name", "types", "nulls", "description", "owners", "tags", "priority"),
    "auto_register",
)


DECLARATIONS = (SourceTable, View, Trigger, Endpoint, ServiceConsumer)
"""What a location can declare."""


class UnfitError(ConfigError):
    """A view, trigger, endpoint or service consumer that does not fit the location's others."""

    code = 10_120


@dataclass(frozen=True, kw_only=True)
class Declarations:
    """Everything that a location declares, its views and triggers not yet at their tables."""

    tables: Sequence[SourceTable] = ()
    views: Sequence[View] = ()
    triggers: Sequence[Trigger] = ()
    endpoints: Sequence[Endpoint] = ()
    services: Sequence[ServiceConsumer] = ()
    files: Mapping[int, str] = field(default_factory=dict, repr=False, compare=False)
    """By the `id` of each of them, the file that declares it, where that is known."""

    @classmethod
    def of(cls, declared: Iterable[object], files: Mapping[int, str] | None = None) -> Declarations:
        """Sort declarations by type; each once, whatever names it has."""
        unique = list({id(declaration): declaration for declaration in declared}.values())
        return cls(
            tables=[declaration for declaration in unique if isinstance(declaration, SourceTable)],
            views=[declaration for declaration in unique if isinstance(declaration, View)],
            triggers=[declaration for declaration in unique if isinstance(declaration, Trigger)],
            endpoints=[declaration for declaration in unique if isinstance(declaration, Endpoint)],
            services=[
                declaration for declaration in unique if isinstance(declaration, ServiceConsumer)
            ],
            files=files or {},
        )

    @property
    def everything(self) -> tuple[object, ...]:
        """All of it, for `of`."""
        others = (*self.views, *self.triggers, *self.endpoints, *self.services)
        return (*self.tables, *others)

    def list_endpoints(self) -> list[Endpoint]:
        """The endpoints, including any that only a trigger names; raises UnfitError."""
        by_name = _collect_endpoints(self.endpoints, _list_triggers(self.tables, self.triggers))
        return [by_name[name] for name in sorted(by_name)]

    def build_tables(self) -> list[SourceTable]:
        """The tables, see `attach_to_tables`."""
        tables = attach_to_tables(self.tables, self.views, self.triggers, self.endpoints)
        return attach_services(tables, self.services)


def attach_to_tables(
    tables: Sequence[SourceTable],
    views: Sequence[View] = (),
    triggers: Sequence[Trigger] = (),
    endpoints: Sequence[Endpoint] = (),
) -> list[SourceTable]:
    """The tables, each with a changes index for each view of it, and with its triggers.

    A trigger gets its endpoints by name from `endpoints`. Views and triggers find their table by
    its name; triggers that a table has already stay. Raises UnfitError.
    """
    names, all_triggers = [table.name for table in tables], _list_triggers(tables, triggers)
    declarations: tuple[View | Trigger, ...] = (*views, *all_triggers)
    for declaration in declarations:
        _check_table(declaration, names)
    by_name = _collect_endpoints(endpoints, all_triggers)
    _check_once(all_triggers)
    return [_attach_to_table(table, views, triggers, by_name) for table in tables]


def attach_services(
    tables: Sequence[SourceTable], services: Sequence[ServiceConsumer] = ()
) -> list[SourceTable]:
    """The tables, each with the service consumers that are `on` it; others that it has stay.

    Raises UnfitError for one that is on no table, on two, or whose service another table's
    consumer has at another address.
    """
    owners = {id(consumer): table for table in tables for consumer in table.services}
    by_table = {table.name: list(table.services) for table in tables}
    for consumer in services:
        if (table := owners.get(id(consumer))) is not None:
            _check_sole(consumer, table)
            continue
        if getattr(consumer.on, "name", None) not in by_table or not isinstance(
            consumer.on, SourceTable
        ):
            raise UnfitError(_describe_placeless(consumer, by_table))
        by_table[consumer.on.name].append(consumer)
    _check_addresses([consumer for consumers in by_table.values() for consumer in consumers])
    return [
        replace(table, services=by_table[table.name]) if by_table[table.name] else table
        for table in tables
    ]


def _check_sole(consumer: ServiceConsumer, table: SourceTable) -> None:
    if consumer.on is not None and getattr(consumer.on, "name", None) != table.name:
        place = getattr(consumer.on, "name", consumer.on)
        raise UnfitError(
            f"Service consumer {consumer.name!r}: it is in the services of {table.name!r}, and on "
            f"{place!r}; leave on= out, or declare one for each."
        )


def _describe_placeless(consumer: ServiceConsumer, tables: Iterable[str]) -> str:
    names = ", ".join(tables) or "none"
    if consumer.on is None:
        return (
            f"Service consumer {consumer.name!r} is on no source table; give on=, or put it into a "
            f"table's services=[...]. The location has the tables: {names}."
        )
    place = getattr(consumer.on, "name", consumer.on)
    return (
        f"Service consumer {consumer.name!r}: on={place!r} is not a source table of "
        f"the location, which has: {names}. Declare the table beside it."
    )


def _check_addresses(services: Iterable[ServiceConsumer]) -> None:
    """A runtime knows one address of a service, the latest that was registered."""
    by_service: dict[str, ServiceConsumer] = {}
    for consumer in services:
        other = by_service.setdefault(consumer.service, consumer)
        if other.url != consumer.url:
            raise UnfitError(
                f"Service consumer {consumer.name!r}: the service {consumer.service!r} is at "
                f"{consumer.url}, and {other.name!r} has it at {other.url}; give both the same url."
            )


def index_of_view(view: View) -> Index:
    """The changes index that keeps the view."""
    options: dict[str, Any] = {name: getattr(view, name) for name in _VIEW_OPTIONS}
    index: Index = load_kinds()[CHANGES](**options, view=view.definition)
    return index


def _attach_to_table(
    table: SourceTable,
    views: Sequence[View],
    triggers: Sequence[Trigger],
    by_name: Mapping[str, Endpoint],
) -> SourceTable:
    own_triggers = [_resolve_endpoints(trigger, by_name) for trigger in table.triggers]
    merged = replace(table, triggers=own_triggers) if own_triggers else table
    for view in (view for view in views if view.source.name == table.name):
        with _prefix_errors(view):
            merged = replace(merged, indexes=[*merged.indexes, index_of_view(view)])
    for trigger in (trigger for trigger in triggers if trigger.source.name == table.name):
        with _prefix_errors(trigger):
            merged = replace(
                merged,
                triggers=[*merged.triggers, _resolve_endpoints(trigger, by_name)],
            )
    return merged


@contextmanager
def _prefix_errors(declaration: View | Trigger) -> Iterator[None]:
    """Name the declaration that is wrong in its errors."""
    try:
        yield
    except UnfitError:
        raise
    except ConfigError as error:
        raise UnfitError(f"{_format_declaration(declaration)}: {error}") from error


def _format_declaration(declaration: View | Trigger) -> str:
    return f"{'View' if isinstance(declaration, View) else 'Trigger'} {declaration.name!r}"


def _list_triggers(tables: Iterable[SourceTable], others: Iterable[Trigger]) -> list[Trigger]:
    return [*(trigger for table in tables for trigger in table.triggers), *others]


def _resolve_endpoints(trigger: Trigger, by_name: Mapping[str, Endpoint]) -> Trigger:
    """The trigger with its endpoints themselves. Raises UnfitError for an unknown name."""
    return replace(
        trigger, to=[_find_endpoint(trigger, name, by_name) for name in trigger.endpoints]
    )


def _check_table(declaration: View | Trigger, names: Sequence[str]) -> None:
    if declaration.source.name not in names:
        raise UnfitError(
            f"{_format_declaration(declaration)}: its source table {declaration.source.name!r} is "
            f"not declared in the location, which has: {', '.join(names) or 'none'}. Declare the "
            "table beside it."
        )


def _check_once(triggers: Sequence[Trigger]) -> None:
    by_name: dict[str, Trigger] = {}
    for trigger in triggers:
        other = by_name.setdefault(trigger.name, trigger)
        if other is not trigger:
            raise UnfitError(
                f"Trigger {trigger.name!r} is declared twice in the location, on {other.on.name!r} "
                f"and on {trigger.on.name!r}; its events' ids contain its name, so give each its "
                "own."
            )


def _collect_endpoints(
    endpoints: Sequence[Endpoint], triggers: Sequence[Trigger]
) -> Mapping[str, Endpoint]:
    trigger_endpoints = [
        endpoint
        for trigger in triggers
        for endpoint in trigger.to
        if isinstance(endpoint, Endpoint)
    ]
    by_name: dict[str, Endpoint] = {}
    for endpoint in (*endpoints, *trigger_endpoints):
        if by_name.setdefault(endpoint.name, endpoint) is not endpoint:
            raise UnfitError(
                f"Endpoint {endpoint.name!r} is declared twice in the location; give each its own "
                "name."
            )
    return by_name


def _find_endpoint(trigger: Trigger, name: str, by_name: Mapping[str, Endpoint]) -> Endpoint:
    if name in by_name:
        return by_name[name]
    raise UnfitError(
        f"Trigger {trigger.name!r}: to={name!r} is not an endpoint of the location, which has: "
        f"{', '.join(sorted(by_name)) or 'none'}. Declare Endpoint({name!r}, ...)."
    )
