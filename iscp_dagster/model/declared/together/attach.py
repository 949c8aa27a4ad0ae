"""Gives each source table the indexes and jobs of the views, triggers and services over it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from iscp_dagster.model.declared.endpoints import Endpoint
from iscp_dagster.model.declared.eventtriggers import Trigger
from iscp_dagster.model.declared.kinds import kinds
from iscp_dagster.model.declared.services import ServiceConsumer
from iscp_dagster.model.declared.tables import Index, SourceTable
from iscp_dagster.model.declared.views import View
from iscp_dagster.model.errors import ConfigError

CHANGES = "changes"
"""The kind of a view's index."""
_SAID_BY_THE_VIEW = (
    *("name", "types", "nulls", "description", "owners", "tags", "priority"),
    "auto_register",
)


DECLARATIONS = (SourceTable, View, Trigger, Endpoint, ServiceConsumer)
"""What a location can declare."""


class UnfitError(ConfigError):
    """A view, trigger, endpoint or service consumer that does not fit the location's others."""

    code = 10_120


@dataclass(frozen=True, kw_only=True)
class Declared:
    """Everything that a location declares, its views and triggers not yet at their tables."""

    tables: Sequence[SourceTable] = ()
    views: Sequence[View] = ()
    triggers: Sequence[Trigger] = ()
    endpoints: Sequence[Endpoint] = ()
    services: Sequence[ServiceConsumer] = ()
    files: Mapping[int, str] = field(default_factory=dict, repr=False, compare=False)
    """By the `id` of each of them, the file that declares it, where that is known."""

    @classmethod
    def of(cls, declared: Iterable[object], files: Mapping[int, str] | None = None) -> Declared:
        """Sort what was declared by what it is; each once, whatever names it has."""
        each = list({id(one): one for one in declared}.values())
        return cls(
            tables=[one for one in each if isinstance(one, SourceTable)],
            views=[one for one in each if isinstance(one, View)],
            triggers=[one for one in each if isinstance(one, Trigger)],
            endpoints=[one for one in each if isinstance(one, Endpoint)],
            services=[one for one in each if isinstance(one, ServiceConsumer)],
            files=files or {},
        )

    @property
    def everything(self) -> tuple[object, ...]:
        """All of it, for `of`."""
        over = (*self.views, *self.triggers, *self.endpoints, *self.services)
        return (*self.tables, *over)

    def all_endpoints(self) -> list[Endpoint]:
        """The endpoints, also those that only a trigger names; raises UnfitError."""
        known = _known_endpoints(self.endpoints, _every_trigger(self.tables, self.triggers))
        return [known[name] for name in sorted(known)]

    def attached(self) -> list[SourceTable]:
        """The tables, see `attached`."""
        found = attached(self.tables, self.views, self.triggers, self.endpoints)
        return with_services(found, self.services)


def attached(
    tables: Sequence[SourceTable],
    views: Sequence[View] = (),
    triggers: Sequence[Trigger] = (),
    endpoints: Sequence[Endpoint] = (),
) -> list[SourceTable]:
    """The tables, each with a changes index for each view of it, and with its triggers.

    A trigger gets its endpoints by name from `endpoints`. Views and triggers find their table by
    its name; triggers that a table has already stay. Raises UnfitError.
    """
    names, every = [table.name for table in tables], _every_trigger(tables, triggers)
    over: tuple[View | Trigger, ...] = (*views, *every)
    for each in over:
        _check_table(each, names)
    known = _known_endpoints(endpoints, every)
    _check_once(every)
    return [_attached(table, views, triggers, known) for table in tables]


def with_services(
    tables: Sequence[SourceTable], services: Sequence[ServiceConsumer] = ()
) -> list[SourceTable]:
    """The tables, each with the service consumers that are `on` it; others that it has stay.

    Raises UnfitError for one that is on no table, on two, or whose service another table's
    consumer has at another address.
    """
    held = {id(each): table for table in tables for each in table.services}
    found = {table.name: list(table.services) for table in tables}
    for each in services:
        if (table := held.get(id(each))) is not None:
            _check_sole(each, table)
            continue
        if getattr(each.on, "name", None) not in found or not isinstance(each.on, SourceTable):
            raise UnfitError(_placeless(each, found))
        found[each.on.name].append(each)
    _check_addresses([each for some in found.values() for each in some])
    return [
        replace(table, services=found[table.name]) if found[table.name] else table
        for table in tables
    ]


def _check_sole(each: ServiceConsumer, table: SourceTable) -> None:
    if each.on is not None and getattr(each.on, "name", None) != table.name:
        raise UnfitError(
            f"Service consumer {each.name!r}: it is in the services of {table.name!r}, and on "
            f"{getattr(each.on, 'name', each.on)!r}; leave on= out, or declare one for each."
        )


def _placeless(each: ServiceConsumer, tables: Iterable[str]) -> str:
    known = ", ".join(tables) or "none"
    if each.on is None:
        return (
            f"Service consumer {each.name!r} is on no source table; give on=, or put it into a "
            f"table's services=[...]. The location has the tables: {known}."
        )
    return (
        f"Service consumer {each.name!r}: on={getattr(each.on, 'name', each.on)!r} is no source "
        f"table of the location, which has: {known}. Declare the table beside it."
    )


def _check_addresses(services: Iterable[ServiceConsumer]) -> None:
    """A runtime knows one address of a service, the latest that it was told."""
    known: dict[str, ServiceConsumer] = {}
    for each in services:
        other = known.setdefault(each.service, each)
        if other.url != each.url:
            raise UnfitError(
                f"Service consumer {each.name!r}: the service {each.service!r} is at {each.url}, "
                f"and {other.name!r} has it at {other.url}; give both the same url."
            )


def index_of_view(view: View) -> Index:
    """The changes index that keeps the view."""
    said: dict[str, Any] = {name: getattr(view, name) for name in _SAID_BY_THE_VIEW}
    index: Index = kinds()[CHANGES](**said, view=view.definition)
    return index


def _attached(
    table: SourceTable,
    views: Sequence[View],
    triggers: Sequence[Trigger],
    known: Mapping[str, Endpoint],
) -> SourceTable:
    own = [_resolved(each, known) for each in table.triggers]
    given = replace(table, triggers=own) if own else table
    for view in (each for each in views if each.source.name == table.name):
        with _about(view):
            given = replace(given, indexes=[*given.indexes, index_of_view(view)])
    for trigger in (each for each in triggers if each.source.name == table.name):
        with _about(trigger):
            given = replace(given, triggers=[*given.triggers, _resolved(trigger, known)])
    return given


@contextmanager
def _about(each: View | Trigger) -> Iterator[None]:
    """Say of an error which declaration is wrong."""
    try:
        yield
    except UnfitError:
        raise
    except ConfigError as error:
        raise UnfitError(f"{_called(each)}: {error}") from error


def _called(each: View | Trigger) -> str:
    return f"{'View' if isinstance(each, View) else 'Trigger'} {each.name!r}"


def _every_trigger(tables: Iterable[SourceTable], others: Iterable[Trigger]) -> list[Trigger]:
    return [*(trigger for table in tables for trigger in table.triggers), *others]


def _resolved(trigger: Trigger, known: Mapping[str, Endpoint]) -> Trigger:
    """The trigger with its endpoints themselves. Raises UnfitError for an unknown name."""
    return replace(trigger, to=[_found(trigger, name, known) for name in trigger.endpoints])


def _check_table(each: View | Trigger, names: Sequence[str]) -> None:
    if each.source.name not in names:
        raise UnfitError(
            f"{_called(each)}: its source table {each.source.name!r} is not declared in the "
            f"location, which has: {', '.join(names) or 'none'}. Declare the table beside it."
        )


def _check_once(triggers: Sequence[Trigger]) -> None:
    held: dict[str, Trigger] = {}
    for each in triggers:
        other = held.setdefault(each.name, each)
        if other is not each:
            raise UnfitError(
                f"Trigger {each.name!r} is declared twice in the location, on {other.on.name!r} "
                f"and on {each.on.name!r}; the ids of its events are made of its name, so give "
                "each its own."
            )


def _known_endpoints(
    endpoints: Sequence[Endpoint], triggers: Sequence[Trigger]
) -> Mapping[str, Endpoint]:
    used = [each for trigger in triggers for each in trigger.to if isinstance(each, Endpoint)]
    held: dict[str, Endpoint] = {}
    for each in (*endpoints, *used):
        if held.setdefault(each.name, each) is not each:
            raise UnfitError(
                f"Endpoint {each.name!r} is declared twice in the location; give each its own name."
            )
    return held


def _found(trigger: Trigger, name: str, known: Mapping[str, Endpoint]) -> Endpoint:
    if name in known:
        return known[name]
    raise UnfitError(
        f"Trigger {trigger.name!r}: to={name!r} is no endpoint of the location, which has: "
        f"{', '.join(sorted(known)) or 'none'}. Declare Endpoint({name!r}, ...)."
    )
