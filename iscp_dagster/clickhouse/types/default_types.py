"""ClickHouse types of Delta types (docs: clickhouse.com "Data types"; Delta protocol, "Schema")."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from iscp_dagster.clickhouse.connect.quoting import quote_identifier
from iscp_dagster.model.declared.schema import Array, Decimal, DeltaType, Map, Primitive, Struct
from iscp_dagster.model.errors import SchemaError

DEFAULT_TYPES: Mapping[str, str] = MappingProxyType(
    {
        "boolean": "Bool",
        "byte": "Int8",
        "short": "Int16",
        "integer": "Int32",
        "long": "Int64",
        "float": "Float32",
        "double": "Float64",
        "string": "String",
        "binary": "String",
        "date": "Date32",
        "timestamp": "DateTime64(6, 'UTC')",
        "timestamp_ntz": "DateTime64(6, 'UTC')",
        "variant": "String",
    }
)


def to_clickhouse_type(type_: DeltaType, *, nullable: bool, column: str) -> str:
    """Return the type that holds every value of `type_`; messages name it by `column`.

    ClickHouse has no null arrays, maps or tuples: `nullable` does not apply to them, but to a
    tuple's members, which are null where it is. Raises SchemaError for an unknown type.
    """
    if isinstance(type_, Array):
        inner = to_clickhouse_type(type_.element, nullable=type_.nullable, column=f"{column}[]")
        return f"Array({inner})"
    if isinstance(type_, Map):
        key = to_clickhouse_type(type_.key, nullable=False, column=f"{column}.key")
        value = to_clickhouse_type(type_.value, nullable=type_.nullable, column=f"{column}.value")
        return f"Map({key}, {value})"
    if isinstance(type_, Struct):
        parts = (
            to_clickhouse_type(f.type, nullable=f.nullable or nullable, column=f"{column}.{f.name}")
            for f in type_.fields
        )
        members = (
            f"{quote_identifier(f.name)} {part}"
            for f, part in zip(type_.fields, parts, strict=True)
        )
        return f"Tuple({', '.join(members)})"
    scalar = _to_scalar_type(type_, column)
    return f"Nullable({scalar})" if nullable else scalar


def _to_scalar_type(type_: Primitive | Decimal, at: str) -> str:
    if isinstance(type_, Decimal):
        return f"Decimal({type_.precision}, {type_.scale})"
    scalar = DEFAULT_TYPES.get(type_.name)
    if scalar is None:
        raise SchemaError(
            f"Column {at!r} is {type_}, which has no ClickHouse type here; leave it out with "
            f"exclude=[...], or cast it in the source. Known: {', '.join(DEFAULT_TYPES)}, "
            "decimal, array, map, struct."
        )
    return scalar
