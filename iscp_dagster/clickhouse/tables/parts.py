"""The parts that ClickHouse keeps a column in; no other column may have their names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from iscp_dagster.clickhouse.types.typetext import ChType
from iscp_dagster.model.errors import SchemaError

NULL = "null"
"""ClickHouse's name for the nulls of a tuple; no element may have it."""
_OF_A_MAP = ("keys", "values")


def check_parts(table: str, types: Mapping[str, ChType]) -> None:
    """Reject columns that share the name of a part, and names that ClickHouse reserves.

    Raises SchemaError, which names them.
    """
    owners: dict[str, str] = {}
    for column, type_ in types.items():
        if NULL in _elements(type_):
            raise SchemaError(
                f"Column {column!r} of {table!r} has a field {NULL!r}, a name that ClickHouse "
                f"reserves; {_remedy(column)}"
            )
        for part in _parts(column, type_):
            other = owners.setdefault(part, column)
            if other != column:
                raise SchemaError(
                    f"Columns {other!r} and {column!r} of {table!r} both have a part {part!r} in "
                    f"ClickHouse; {_remedy(column)}"
                )


def _remedy(column: str) -> str:
    return f"rename it, or leave {column!r} out with columns=[...]."


def _parts(name: str, type_: ChType) -> Iterator[str]:
    """Yield the names of the innermost parts that the column is kept in."""
    bare = type_.bare.structure
    if bare.name == "Map":
        for part, inner in zip(_OF_A_MAP, bare.parts, strict=True):
            yield from _parts(f"{name}.{part}", inner)
    elif bare.name == "Tuple":
        names = bare.names or tuple(str(n) for n, _ in enumerate(bare.parts, 1))
        for part, inner in zip(names, bare.parts, strict=True):
            yield from _parts(f"{name}.{part}", inner)
    elif bare.name == "Array":
        yield from _parts(name, bare.parts[0])
    else:
        yield name


def _elements(type_: ChType) -> Iterator[str]:
    """Yield the names of tuples' elements, at any depth."""
    if type_.structure.name == "Tuple":
        yield from type_.structure.names
    for inner in type_.structure.parts:
        yield from _elements(inner)
