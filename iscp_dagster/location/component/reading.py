"""Reads what the attributes in `defs.yaml` declare: a table, and views and triggers over it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from dagster import Model, ResolutionContext

from iscp_dagster.clickhouse.types.asked import check_types
from iscp_dagster.location.component.schema import is_template
from iscp_dagster.model.declared.endpoints import Endpoint
from iscp_dagster.model.declared.eventtriggers import Trigger
from iscp_dagster.model.declared.kinds import kinds
from iscp_dagster.model.declared.lineage import in_order
from iscp_dagster.model.declared.services import ServiceConsumer
from iscp_dagster.model.declared.tables import Index, SourceTable
from iscp_dagster.model.declared.together.attach import Declared, index_of_view
from iscp_dagster.model.declared.views import View
from iscp_dagster.model.errors import ConfigError
from iscp_dagster.model.imports import object_at

_IMPORTED = ("load", "tenants", "load_config")


def declared_of(context: ResolutionContext, model: Model) -> Declared:
    """What the attributes declare, the one table first. Raises ConfigError with file and line."""
    said = {name: _filled(context.at_path(name), value) for name, value in _said(model).items()}
    for name in _IMPORTED:
        if isinstance(said.get(name), str):
            with _told(context.at_path(name)):
                said[name] = object_at(said[name], name)
    if isinstance(indexes := said.get("indexes"), list | tuple):
        at = context.at_path("indexes")
        said["indexes"] = [_index(at.at_path(number), each) for number, each in enumerate(indexes)]
    if "services" in said:
        said["services"] = _services(context.at_path("services"), said["services"])
    over = {name: said.pop(name, ()) for name in ("views", "triggers", "endpoints")}
    with _told(context):
        table = SourceTable(**said)
        for index in table.indexes:
            check_types(table, index)
    views = _views(context.at_path("views"), table, over["views"])
    return Declared(
        tables=[table],
        views=[*views.values()],
        triggers=_triggers(context.at_path("triggers"), table, views, over["triggers"]),
        endpoints=_endpoints(context.at_path("endpoints"), over["endpoints"]),
    )


def _views(
    context: ResolutionContext, table: SourceTable, said: Sequence[Mapping[str, Any]]
) -> dict[str, View]:
    with _told(context):
        order = in_order([(str(each["name"]), each.get("of")) for each in said], table.name)
    at = {str(each["name"]): number for number, each in enumerate(said)}
    made: dict[str, View] = {}
    for name in order:
        each = said[at[name]]
        with _told(context.at_path(at[name])):
            made[name] = View(**{**each, "of": _named(each.get("of"), table, made)})
            check_types(table, index_of_view(made[name]))
    return made


def _triggers(
    context: ResolutionContext,
    table: SourceTable,
    views: Mapping[str, View],
    said: Sequence[Mapping[str, Any]],
) -> list[Trigger]:
    made = []
    for number, each in enumerate(said):
        given = {name: value for name, value in each.items() if name != "of"}
        with _told(context.at_path(number)):
            made.append(Trigger(**given, on=_named(each.get("of"), table, views)))
    return made


def _endpoints(context: ResolutionContext, said: Sequence[Mapping[str, Any]]) -> list[Endpoint]:
    made = []
    for number, each in enumerate(said):
        with _told(context.at_path(number)):
            made.append(Endpoint(**each))
    return made


def _services(
    context: ResolutionContext, said: Sequence[Mapping[str, Any]]
) -> list[ServiceConsumer]:
    made = []
    for number, each in enumerate(said):
        with _told(context.at_path(number)):
            made.append(ServiceConsumer(**each))
    return made


def _named(name: str | None, table: SourceTable, views: Mapping[str, View]) -> SourceTable | View:
    """The table, or the view of that name. Raises ConfigError for a name of neither."""
    if name in {None, table.name}:
        return table
    if name in views:
        return views[str(name)]
    raise ConfigError(
        f"{name!r} is neither the table {table.name!r} nor a view declared with it, which are: "
        f"{', '.join(views) or 'none'}."
    )


def place(context: ResolutionContext) -> str:
    """Where the attributes are, such as `defs.yaml:3`; empty if there is no file."""
    tree = context.source_position_tree
    if tree is None:
        return ""
    found = tree.lookup_closest_and_path(context.path, None)[0]
    return f"{found.filename}:{found.start.line}"


def _index(context: ResolutionContext, said: Any) -> Index:
    with _told(context):
        if isinstance(said, Index):
            return said
        kind = said.get("kind") if isinstance(said, Mapping) else None
        if kind not in kinds():
            raise ConfigError(f"{said!r} is not an index; give its kind: {', '.join(kinds())}.")
        options = {name: value for name, value in said.items() if name != "kind"}
        index: Index = kinds()[str(kind)](**options)
        return index


@contextmanager
def _told(context: ResolutionContext) -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        where = ".".join(map(str, context.path))
        raise ConfigError(f"{', '.join(filter(None, (place(context), where)))}: {error}") from error


def _said(model: Model) -> Mapping[str, Any]:
    """The attributes that were given; the declaration has its own defaults."""
    return {name: getattr(model, name) for name in model.model_fields_set}


def _filled(context: ResolutionContext, value: Any) -> Any:
    """The value with its templates filled in. Dagster itself would turn '1' into a number."""
    if isinstance(value, Model):
        value = _said(value)
    if isinstance(value, Mapping):
        return {name: _filled(context.at_path(name), each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_filled(context.at_path(at), each) for at, each in enumerate(value)]
    return context.resolve_value(value) if is_template(value) else value
