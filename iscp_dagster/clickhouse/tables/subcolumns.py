"""The parts that ClickHouse keeps a column in; no other column may have their names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from iscp_dagster.clickhouse.types.type_parser import ClickHouseType
from iscp_dagster.model.errors import SchemaError

NULL = "null"
"""ClickHouse's name for the nulls of a tuple; no element may have it."""
_OF_A_MAP = ("keys", "values")


def check_subcolumns(table: str, types: Mapping[str, ClickHouseType]) -> None:
    """Reject columns that share the name of a part, and names that ClickHouse reserves.

    Raises SchemaError, which names them.
    """
    columns_by_part: dict[str, str] = {}
    for column, type_ in types.items():
        if NULL in _list_elements(type_):
            raise SchemaError(
                f"Column {column!r} of {table!r} has a field {NULL!r}, a name that ClickHouse "
                f"reserves; {_format_remedy(column)}"
            )
        for part in _list_subcolumns(column, type_):
            other_column = columns_by_part.setdefault(part, column)
            if other_column != column:
                raise SchemaError(
                    f"Columns {other_column!r} and {column!r} of {table!r} both have a part "
                    f"{part!r} in ClickHouse; {_format_remedy(column)}"
                )


def _format_remedy(column: str) -> str:
    return f"rename it, or leave {column!r} out with columns=[...]."


def _list_subcolumns(name: str, type_: ClickHouseType) -> Iterator[str]:
    """Yield the names of the innermost parts that the column is kept in."""
    structure = type_.bare.structure
    if structure.name == "Map":
        for part, inner in zip(_OF_A_MAP, structure.parts, strict=True):
            yield from _list_subcolumns(f"{name}.{part}", inner)
    elif structure.name == "Tuple":
        names = structure.names or tuple(str(n) for n, _ in enumerate(structure.parts, 1))
        for part, inner in zip(names, structure.parts, strict=True):
            yield from _list_subcolumns(f"{name}.{part}", inner)
    elif structure.name == "Array":
        yield from _list_subcolumns(name, structure.parts[0])
    else:
        yield name


def _list_elements(type_: ClickHouseType) -> Iterator[str]:
    """Yield the names of tuples' elements, at any depth."""
    if type_.structure.name == "Tuple":
        yield from type_.structure.names
    for inner in type_.structure.parts:
        yield from _list_elements(inner)
