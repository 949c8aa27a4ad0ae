"""Reads the declarations in `defs.yaml`: a table, and views and triggers over it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from dagster import Model, ResolutionContext

from iscp_dagster.clickhouse.types.declared_types import check_types
from iscp_dagster.location.component.schema import is_template
from iscp_dagster.model.declared.endpoints import Endpoint
from iscp_dagster.model.declared.eventtriggers import Trigger
from iscp_dagster.model.declared.kinds import load_kinds
from iscp_dagster.model.declared.lineage import sort_views
from iscp_dagster.model.declared.linking.attach import Declarations, index_of_view
from iscp_dagster.model.declared.services import ServiceConsumer
from iscp_dagster.model.declared.tables import Index, SourceTable
from iscp_dagster.model.declared.views import View
from iscp_dagster.model.errors import ConfigError
from iscp_dagster.model.imports import import_object

_IMPORTED = ("load", "tenants", "load_config")


def parse_declarations(context: ResolutionContext, model: Model) -> Declarations:
    """What the attributes declare. Raises ConfigError with file and line."""
    attributes = {
        name: _resolve_templates(context.at_path(name), value)
        for name, value in _get_given_attributes(model).items()
    }
    for name in _IMPORTED:
        if isinstance(attributes.get(name), str):
            with _locate_errors(context.at_path(name)):
                attributes[name] = import_object(attributes[name], name)
    if isinstance(indexes := attributes.get("indexes"), list | tuple):
        indexes_context = context.at_path("indexes")
        attributes["indexes"] = [
            _build_index(indexes_context.at_path(number), entry)
            for number, entry in enumerate(indexes)
        ]
    if "services" in attributes:
        attributes["services"] = _build_services(
            context.at_path("services"), attributes["services"]
        )
    nested = {name: attributes.pop(name, ()) for name in ("views", "triggers", "endpoints")}
    with _locate_errors(context):
        table = SourceTable(**attributes)
        for index in table.indexes:
            check_types(table, index)
    views = _build_views(context.at_path("views"), table, nested["views"])
    return Declarations(
        tables=[table],
        views=[*views.values()],
        triggers=_build_triggers(context.at_path("triggers"), table, views, nested["triggers"]),
        endpoints=_build_endpoints(context.at_path("endpoints"), nested["endpoints"]),
    )


def _build_views(
    context: ResolutionContext, table: SourceTable, entries: Sequence[Mapping[str, Any]]
) -> dict[str, View]:
    with _locate_errors(context):
        order = sort_views([(str(entry["name"]), entry.get("of")) for entry in entries], table.name)
    positions = {str(entry["name"]): number for number, entry in enumerate(entries)}
    views: dict[str, View] = {}
    for name in order:
        entry = entries[positions[name]]
        with _locate_errors(context.at_path(positions[name])):
            views[name] = View(
                **{**entry, "of": _find_table_or_view(entry.get("of"), table, views)}
            )
            check_types(table, index_of_view(views[name]))
    return views


def _build_triggers(
    context: ResolutionContext,
    table: SourceTable,
    views: Mapping[str, View],
    entries: Sequence[Mapping[str, Any]],
) -> list[Trigger]:
    triggers = []
    for number, entry in enumerate(entries):
        options = {name: value for name, value in entry.items() if name != "of"}
        with _locate_errors(context.at_path(number)):
            triggers.append(
                Trigger(**options, on=_find_table_or_view(entry.get("of"), table, views))
            )
    return triggers


def _build_endpoints(
    context: ResolutionContext, entries: Sequence[Mapping[str, Any]]
) -> list[Endpoint]:
    endpoints = []
    for number, entry in enumerate(entries):
        with _locate_errors(context.at_path(number)):
            endpoints.append(Endpoint(**entry))
    return endpoints


def _build_services(
    context: ResolutionContext, entries: Sequence[Mapping[str, Any]]
) -> list[ServiceConsumer]:
    services = []
    for number, entry in enumerate(entries):
        with _locate_errors(context.at_path(number)):
            services.append(ServiceConsumer(**entry))
    return services


def _find_table_or_view(
    name: str | None, table: SourceTable, views: Mapping[str, View]
) -> SourceTable | View:
    """The table, or the view of that name. Raises ConfigError if there is neither."""
    if name in {None, table.name}:
        return table
    if name in views:
        return views[str(name)]
    raise ConfigError(
        f"{name!r} is neither the table {table.name!r} nor a view declared with it, which are: "
        f"{', '.join(views) or 'none'}."
    )


def format_position(context: ResolutionContext) -> str:
    """The position of the attributes, such as `defs.yaml:3`; empty without a file."""
    tree = context.source_position_tree
    if tree is None:
        return ""
    position = tree.lookup_closest_and_path(context.path, None)[0]
    return f"{position.filename}:{position.start.line}"


def _build_index(context: ResolutionContext, entry: Any) -> Index:
    with _locate_errors(context):
        if isinstance(entry, Index):
            return entry
        kind = entry.get("kind") if isinstance(entry, Mapping) else None
        if kind not in load_kinds():
            raise ConfigError(
                f"{entry!r} is not an index; give its kind: {', '.join(load_kinds())}."
            )
        options = {name: value for name, value in entry.items() if name != "kind"}
        index: Index = load_kinds()[str(kind)](**options)
        return index


@contextmanager
def _locate_errors(context: ResolutionContext) -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        where = ".".join(map(str, context.path))
        raise ConfigError(
            f"{', '.join(filter(None, (format_position(context), where)))}: {error}"
        ) from error


def _get_given_attributes(model: Model) -> Mapping[str, Any]:
    """The attributes that were set; the declaration has its own defaults."""
    return {name: getattr(model, name) for name in model.model_fields_set}


def _resolve_templates(context: ResolutionContext, value: Any) -> Any:
    """The value with its templates filled in. Dagster itself would turn '1' into a number."""
    if isinstance(value, Model):
        value = _get_given_attributes(value)
    if isinstance(value, Mapping):
        return {
            name: _resolve_templates(context.at_path(name), child) for name, child in value.items()
        }
    if isinstance(value, list | tuple):
        return [
            _resolve_templates(context.at_path(number), child) for number, child in enumerate(value)
        ]
    return context.resolve_value(value) if is_template(value) else value
