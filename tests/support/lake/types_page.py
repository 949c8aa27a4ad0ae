"""The table of docs/types.md, made from the cells that the code uses."""

from __future__ import annotations

from collections.abc import Iterator

from iscp_dagster.clickhouse.types.cells import CELLS, FAMILIES
from iscp_dagster.clickhouse.types.default_types import DEFAULT_TYPES
from iscp_dagster.clickhouse.types.storage import LOW_CARDINALITY
from iscp_dagster.clickhouse.types.type_parser import GEO

HEAD = ("Delta type", "ClickHouse type by default", "with `types=`", "values that it holds")
_RINGS = [f"`{name}`" for name in GEO if name != "Point"]
CONTAINERS = (
    (
        "`array<E>`",
        "`Array(...)`",
        f"`Array(T)`; of structs `Nested(...)`; of points {', '.join(_RINGS)}",
        "arrays whose elements T holds; a null as `nulls=` says (see below)",
    ),
    (
        "`map<K,V>`",
        "`Map(..., ...)`",
        "`Map(T, U)`",
        "maps whose keys T and values U hold; a null as `nulls=` says",
    ),
    (
        "`struct<...>`",
        "`Tuple(...)`",
        "`Tuple(...)` of the same fields, with or without their names; `Point` for two `double`",
        "structs whose fields it holds; a null as `nulls=` says",
    ),
    (
        "any type above",
        "",
        "`Dynamic`, or a `Variant(...)` that has the default type among its members",
        "the values that the default type holds",
    ),
    (
        "any type above",
        "",
        f"`LowCardinality(T)`, T one of {', '.join(f'`{name}`' for name in LOW_CARDINALITY)}",
        "the values that T holds",
    ),
)


def render_type_table() -> str:
    """Return the table in Markdown, one line a cell."""
    lines = [HEAD, ("---",) * len(HEAD), *_list_rows(), *CONTAINERS]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _list_rows() -> Iterator[tuple[str, ...]]:
    for family, cells in CELLS.items():
        names = [name for name, its_family in FAMILIES.items() if its_family == family]
        names = names or ["decimal(p,s)"]
        defaults = [DEFAULT_TYPES.get(name, "Decimal(p, s)") for name in names]
        delta, default = (", ".join(f"`{name}`" for name in line) for line in (names, defaults))
        for number, cell in enumerate(cells):
            yield delta, default if number == 0 else "", cell.label, cell.domain
