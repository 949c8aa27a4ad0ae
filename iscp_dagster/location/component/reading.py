"""Reads the table that the attributes in `defs.yaml` declare."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from dagster import Model, ResolutionContext

from iscp_dagster.clickhouse.types.asked import check_types
from iscp_dagster.location.component.schema import is_template
from iscp_dagster.model.declared.kinds import kinds
from iscp_dagster.model.declared.tables import Index, SourceTable
from iscp_dagster.model.errors import ConfigError
from iscp_dagster.model.imports import object_at

_IMPORTED = ("load", "tenants", "load_config")


def table_of(context: ResolutionContext, model: Model) -> SourceTable:
    """The table that the attributes declare. Raises ConfigError with file and line."""
    said = {name: _filled(context.at_path(name), value) for name, value in _said(model).items()}
    for name in _IMPORTED:
        if isinstance(said.get(name), str):
            with _told(context.at_path(name)):
                said[name] = object_at(said[name], name)
    if isinstance(indexes := said.get("indexes"), list | tuple):
        at = context.at_path("indexes")
        said["indexes"] = [_index(at.at_path(number), each) for number, each in enumerate(indexes)]
    with _told(context):
        table = SourceTable(**said)
        for index in table.indexes:
            check_types(table, index)
    return table


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
