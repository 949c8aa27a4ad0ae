"""The attributes of a table in `defs.yaml`, as in a Python declaration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from functools import cache
from inspect import getdoc
from typing import Annotated, Any, Literal, Union, get_type_hints

from dagster import Model
from pydantic import ConfigDict, PydanticSchemaGenerationError, TypeAdapter, create_model
from pydantic import Field as PydanticField
from pydantic_core import core_schema

from iscp_dagster.model.declared.endpoints import Endpoint
from iscp_dagster.model.declared.eventtriggers import INITIAL, Trigger
from iscp_dagster.model.declared.kinds import load_kinds
from iscp_dagster.model.declared.services import ServiceConsumer
from iscp_dagster.model.declared.sharding import DEFAULT_HASH, FUNCTIONS
from iscp_dagster.model.declared.tables import ERRORS, ON_REPLACE, SourceTable
from iscp_dagster.model.declared.views import View

TEMPLATE = r"\{\{.*\}\}"
_STRICT = ConfigDict(extra="forbid", strict=True)


class SpreadModel(Model):
    """Which of the deployment's ClickHouse servers a row lies on."""

    model_config = _STRICT
    hash_function: Literal[tuple(sorted(FUNCTIONS))] = DEFAULT_HASH  # type: ignore[valid-type]
    key: str | Sequence[str]


# defs.yaml takes an import path where Python takes an object, and lists the allowed values.
_IMPORTED = Annotated[str, PydanticField(description="package.module:name")]
_OVERRIDDEN_TYPES: Mapping[str, Any] = {
    "errors": Literal[ERRORS],
    "on_replace": Literal[ON_REPLACE],
    "sharding": SpreadModel | None,
    "load": _IMPORTED | None,
    "tenants": _IMPORTED | None,
    "load_config": _IMPORTED | None,
}


_VIEW_NAME = Annotated[str | None, PydanticField(description="a view's name; left out: the table")]
_OMITTED = object()
"""Marks an option that does not exist in YAML."""
_NESTED_DECLARATIONS: Mapping[str, tuple[type[Any], Mapping[str, Any]]] = {
    "views": (View, {"of": _VIEW_NAME}),
    "triggers": (
        Trigger,
        {"on": _VIEW_NAME, "to": Sequence[str], "initial": Literal[INITIAL]},
    ),
    "endpoints": (Endpoint, {}),
    "services": (ServiceConsumer, {"on": _OMITTED}),
}
"""What is declared with the table, by attribute; a name refers to a view or endpoint."""


_RENAMED_ATTRIBUTES = {"on": "of"}
"""Attributes with another name than in Python: YAML reads `on` as true."""


class _TemplateValidator:
    """Also accepts a template, which Dagster fills in when it loads the component."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        return core_schema.no_info_wrap_validator_function(_validate_non_template, handler(source))

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        # With anyOf, a validator would say only that no alternative fits.
        return {"if": {"type": "string", "pattern": TEMPLATE}, "else": handler(schema)}


@dataclass(frozen=True, eq=False)
class _KindValidator:
    """Validates an index against its own kind only, so that an error names the field."""

    offered: Mapping[str, type[Model]]

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        return core_schema.no_info_wrap_validator_function(self._validate_kind, handler(source))

    def _validate_kind(self, value: Any, handler: Any) -> Any:
        kind = value.get("kind") if isinstance(value, dict) else None
        model = self.offered.get(kind) if isinstance(kind, str) else None
        return model.model_validate(value) if model else handler(value)

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        places = handler(schema)["discriminator"]["mapping"]
        return {
            "type": "object",
            "properties": {"kind": {"enum": [*places]}},
            "required": ["kind"],
            "allOf": [
                {
                    "if": {"properties": {"kind": {"const": kind}}, "required": ["kind"]},
                    "then": {"$ref": place},
                }
                for kind, place in places.items()
            ],
        }


def _validate_non_template(value: Any, handler: Any) -> Any:
    return value if is_template(value) else handler(value)


def is_template(value: object) -> bool:
    """Whether the value is a template for Dagster to fill in."""
    return isinstance(value, str) and "{{" in value


@cache
def build_table_model() -> type[Model]:
    """The attributes of a table: the fields of `SourceTable`, and what is declared over it."""
    offered = {
        name: _build_model(kind.__name__, kind, {}, kind=(Literal[name], ...))
        for name, kind in load_kinds().items()
    }
    union: Any = Union[tuple(offered.values())]  # noqa: UP007 - known only at run time
    index_model: Any = Annotated[
        union, PydanticField(discriminator="kind"), _KindValidator(offered)
    ]
    nested: dict[str, Any] = {
        name: (
            list[_build_model(kind.__name__, kind, overrides)],  # type: ignore[misc]
            PydanticField(default_factory=list),
        )
        for name, (kind, overrides) in _NESTED_DECLARATIONS.items()
    }
    overrides = {"indexes": list[index_model], "left_out": _OMITTED}
    return _build_model("SourceTable", SourceTable, overrides, **nested)


def _build_model(
    name: str, declared: type[Any], overrides: Mapping[str, Any], **first: Any
) -> type[Model]:
    hints = {**_get_hints(declared), **_OVERRIDDEN_TYPES, **overrides}
    attributes = {
        _RENAMED_ATTRIBUTES.get(field.name, field.name): (
            _allow_template(hints.get(field.name, Any)),
            None if hints.get(field.name) is _VIEW_NAME else _get_default(field),
        )
        for field in fields(declared)
        if field.init and field.name not in first and overrides.get(field.name) is not _OMITTED
    }
    base = type("Attributes", (Model,), {"model_config": _STRICT, "__module__": __name__})
    doc = getdoc(declared)
    return create_model(name, __base__=base, __doc__=doc, **(first | attributes))


def _get_hints(declared: type[Any]) -> dict[str, Any]:
    try:
        return get_type_hints(declared, include_extras=True)
    except NameError:
        # Another package's kind may import types for type checkers only.
        return {}


def _allow_template(hint: Any) -> Any:
    """The type or a template; any value if pydantic has no schema: then the kind validates it."""
    try:
        TypeAdapter(hint)
    except PydanticSchemaGenerationError:
        return Any
    return hint if hint in {str, Any} else Annotated[hint, _TemplateValidator()]


def _get_default(field: Field[Any]) -> Any:
    if field.default_factory is not MISSING:
        return PydanticField(default_factory=field.default_factory)
    return ... if field.default is MISSING else field.default
