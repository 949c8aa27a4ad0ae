"""A source table's columns as values: the schema in the Delta log, read without Spark.

Type names are those of the Delta protocol, "Schema Serialization Format": string, long, integer,
short, byte, float, double, boolean, binary, date, timestamp, timestamp_ntz, ... This module
keeps names that it does not know: the mapping to index types rejects them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from iscp_dagster.model.errors import SchemaError

DECIMAL = re.compile(r"^decimal\(\s*(\d+)\s*,\s*(-?\d+)\s*\)$")
PHYSICAL_NAME = "delta.columnMapping.physicalName"
SQL_TYPE = "__CHAR_VARCHAR_TYPE_STRING"
"""The metadata key of a text column's type in Spark SQL, if its length is bounded."""
COLLATIONS = "__COLLATIONS"
"""The metadata that names the collation of each text within a column, by its path."""
PADDED = re.compile(r"\bchar\(", re.IGNORECASE)

SYSTEM_COLUMNS = VERSION, TIMESTAMP, DELETED = ("_version", "_timestamp", "_deleted")
"""Added to each row: the source's commit version and time, and whether the row is deleted."""
BUCKET = "_bucket"
"""Added to each row of a table whose tenants share partitions: which of these it lies in."""


@dataclass(frozen=True)
class Primitive:
    """A type without parts, under its Delta name."""

    name: str

    def __str__(self) -> str:
        return self.name


VOID = Primitive("void")


@dataclass(frozen=True)
class Decimal:
    """Fixed point: `precision` digits in all, `scale` of them after the point."""

    precision: int
    scale: int

    def __str__(self) -> str:
        return f"decimal({self.precision},{self.scale})"


@dataclass(frozen=True, kw_only=True)
class Array:
    """A list of `element`; `nullable` elements may be null."""

    element: DeltaType
    nullable: bool = True

    def __str__(self) -> str:
        return f"array<{self.element}>"


@dataclass(frozen=True, kw_only=True)
class Map:
    """Keys are never null; `nullable` values may be."""

    key: DeltaType
    value: DeltaType
    nullable: bool = True

    def __str__(self) -> str:
        return f"map<{self.key},{self.value}>"


@dataclass(frozen=True)
class Struct:
    """Named fields in order; a table's schema is one."""

    fields: tuple[DeltaField, ...]

    def __str__(self) -> str:
        return f"struct<{','.join(f'{field_.name}:{field_.type}' for field_ in self.fields)}>"


DeltaType = Primitive | Decimal | Array | Map | Struct


@dataclass(frozen=True, kw_only=True)
class DeltaField:
    """One column. `physical` is its name in the log and the files (column mapping).

    `padded`: it holds texts of CHAR(n), which Spark pads with blanks when it reads them.
    `collation` decides which of its texts are equal; empty: those with equal bytes.
    """

    name: str
    type: DeltaType
    nullable: bool = True
    comment: str = ""
    physical: str = field(default="", repr=False)
    padded: bool = field(default=False, repr=False)
    collation: str = field(default="", repr=False)


def parse_schema(text: str) -> tuple[DeltaField, ...]:
    """The columns of a `metaData.schemaString`. Raises SchemaError for anything else."""
    try:
        root = parse_type(json.loads(text))
    except (ValueError, KeyError, TypeError) as error:
        message = f"The table's schemaString cannot be read ({error!r}): {text[:200]}"
        raise SchemaError(message) from error
    if not isinstance(root, Struct):
        raise SchemaError(f"The table's schemaString must be a struct, not {root}.")
    return root.fields


def parse_stored_columns(text: str) -> tuple[DeltaField, ...]:
    """The columns that the table of a `metaData.schemaString` stores. Raises as `parse_schema`.

    A column without a type, which Spark calls VOID, is left out until it gets one.
    """
    return tuple(column for column in parse_schema(text) if column.type != VOID)


def parse_type(node: Any) -> DeltaType:
    """One node of the schema's JSON: a name, or an object with `type` and parts."""
    if isinstance(node, str):
        return parse_name(node)
    kind = node["type"]
    if kind == "struct":
        return Struct(tuple(parse_field(child) for child in node["fields"]))
    if kind == "array":
        return Array(element=parse_type(node["elementType"]), nullable=node["containsNull"])
    if kind == "map":
        return Map(
            key=parse_type(node["keyType"]),
            value=parse_type(node["valueType"]),
            nullable=node["valueContainsNull"],
        )
    return Primitive(str(kind))


def parse_name(name: str) -> DeltaType:
    """`decimal(p,s)` or the name of a primitive."""
    match = DECIMAL.match(name)
    return Decimal(int(match[1]), int(match[2])) if match else Primitive(name)


def parse_field(node: dict[str, Any]) -> DeltaField:
    """One field of a struct; all but its name and type come from its metadata."""
    metadata = node.get("metadata") or {}
    return DeltaField(
        name=node["name"],
        type=parse_type(node["type"]),
        nullable=node.get("nullable", True),
        comment=str(metadata.get("comment", "")),
        physical=str(metadata.get(PHYSICAL_NAME, node["name"])),
        padded=bool(PADDED.search(str(metadata.get(SQL_TYPE, "")))),
        collation=str((metadata.get(COLLATIONS) or {}).get(node["name"], "")),
    )


def to_schema_json(fields: Sequence[DeltaField]) -> dict[str, Any]:
    """The columns as a `metaData.schemaString` has them, parsed: what `parse_schema` reads."""
    return {
        "type": "struct",
        "fields": [
            {
                "name": column.name,
                "type": _to_type_json(column.type),
                "nullable": column.nullable,
                "metadata": {},
            }
            for column in fields
        ],
    }


def to_nullable(type_: DeltaType) -> DeltaType:
    """The type with null allowed everywhere within it."""
    if isinstance(type_, Struct):
        return Struct(
            tuple(
                replace(field_, type=to_nullable(field_.type), nullable=True)
                for field_ in type_.fields
            )
        )
    if isinstance(type_, Array):
        return Array(element=to_nullable(type_.element))
    if isinstance(type_, Map):
        return Map(key=to_nullable(type_.key), value=to_nullable(type_.value))
    return type_


def _to_type_json(type_: DeltaType) -> Any:
    if isinstance(type_, Struct):
        return to_schema_json(type_.fields)
    if isinstance(type_, Array):
        element = _to_type_json(type_.element)
        return {"type": "array", "elementType": element, "containsNull": type_.nullable}
    if isinstance(type_, Map):
        return {
            "type": "map",
            "keyType": _to_type_json(type_.key),
            "valueType": _to_type_json(type_.value),
            "valueContainsNull": type_.nullable,
        }
    return str(type_)
