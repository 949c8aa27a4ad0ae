"""The attributes of a table in `defs.yaml`: those of a declaration in Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from functools import cache
from inspect import getdoc
from typing import Annotated, Any, Literal, Union, get_type_hints

from dagster import Model
from pydantic import ConfigDict, PydanticSchemaGenerationError, TypeAdapter, create_model
from pydantic import Field as Said
from pydantic_core import core_schema

from iscp_dagster.model.declared.endpoints import Endpoint
from iscp_dagster.model.declared.eventtriggers import INITIAL, Trigger
from iscp_dagster.model.declared.kinds import kinds
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


# defs.yaml takes an import path where Python takes an object, and lists the texts it allows.
_IMPORTED = Annotated[str, Said(description="package.module:name")]
_SAID_OTHERWISE: Mapping[str, Any] = {
    "errors": Literal[ERRORS],
    "on_replace": Literal[ON_REPLACE],
    "sharding": SpreadModel | None,
    "load": _IMPORTED | None,
    "tenants": _IMPORTED | None,
    "load_config": _IMPORTED | None,
}


_NAMED = Annotated[str | None, Said(description="a view's name; left out: the table")]
_LEFT_OUT = object()
"""Marks an option that YAML does not have."""
_OVER_IT: Mapping[str, tuple[type[Any], Mapping[str, Any]]] = {
    "views": (View, {"of": _NAMED}),
    "triggers": (
        Trigger,
        {"on": _NAMED, "to": Sequence[str], "initial": Literal[INITIAL]},
    ),
    "endpoints": (Endpoint, {}),
    "services": (ServiceConsumer, {"on": _LEFT_OUT}),
}
"""What is declared with the table, by attribute; a view or endpoint is meant by its name."""


_CALLED = {"on": "of"}
"""Attributes with another name than in Python: YAML reads the word `on` as true."""


class _OrTemplate:
    """Also accepts a template, which Dagster fills in when it loads the component."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        return core_schema.no_info_wrap_validator_function(_unless_template, handler(source))

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        # With anyOf, a validator would say only that no alternative fits.
        return {"if": {"type": "string", "pattern": TEMPLATE}, "else": handler(schema)}


@dataclass(frozen=True, eq=False)
class _ByKind:
    """Validates an index against its own kind alone, so that an error names the field."""

    offered: Mapping[str, type[Model]]

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        return core_schema.no_info_wrap_validator_function(self._read, handler(source))

    def _read(self, value: Any, handler: Any) -> Any:
        kind = value.get("kind") if isinstance(value, dict) else None
        chosen = self.offered.get(kind) if isinstance(kind, str) else None
        return chosen.model_validate(value) if chosen else handler(value)

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


def _unless_template(value: Any, handler: Any) -> Any:
    return value if is_template(value) else handler(value)


def is_template(value: object) -> bool:
    """Whether the value is a template for Dagster to fill in."""
    return isinstance(value, str) and "{{" in value


@cache
def table_model() -> type[Model]:
    """The attributes of a table: those of `SourceTable`, and what is declared over it."""
    offered = {
        name: _model(kind.__name__, kind, {}, kind=(Literal[name], ...))
        for name, kind in kinds().items()
    }
    either: Any = Union[tuple(offered.values())]  # noqa: UP007 - known only at run time
    each: Any = Annotated[either, Said(discriminator="kind"), _ByKind(offered)]
    over: dict[str, Any] = {
        name: (list[_model(kind.__name__, kind, said)], Said(default_factory=list))  # type: ignore[misc]
        for name, (kind, said) in _OVER_IT.items()
    }
    own = {"indexes": list[each], "left_out": _LEFT_OUT}
    return _model("SourceTable", SourceTable, own, **over)


def _model(name: str, declared: type[Any], said: Mapping[str, Any], **first: Any) -> type[Model]:
    hints = {**_hints(declared), **_SAID_OTHERWISE, **said}
    chosen = {
        _CALLED.get(each.name, each.name): (
            _templated(hints.get(each.name, Any)),
            None if hints.get(each.name) is _NAMED else _default(each),
        )
        for each in fields(declared)
        if each.init and each.name not in first and said.get(each.name) is not _LEFT_OUT
    }
    base = type("Attributes", (Model,), {"model_config": _STRICT, "__module__": __name__})
    doc = getdoc(declared)
    return create_model(name, __base__=base, __doc__=doc, **(first | chosen))


def _hints(declared: type[Any]) -> dict[str, Any]:
    try:
        return get_type_hints(declared, include_extras=True)
    except NameError:
        # Another package's kind may import types for type checkers only.
        return {}


def _templated(hint: Any) -> Any:
    """The type or a template; any value if pydantic has no schema for it: the kind checks that."""
    try:
        TypeAdapter(hint)
    except PydanticSchemaGenerationError:
        return Any
    return hint if hint in {str, Any} else Annotated[hint, _OrTemplate()]


def _default(each: Field[Any]) -> Any:
    if each.default_factory is not MISSING:
        return Said(default_factory=each.default_factory)
    return ... if each.default is MISSING else each.default
