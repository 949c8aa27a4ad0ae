"""The table of docs/types.md, made from the cells that the code uses."""

from __future__ import annotations

from collections.abc import Iterator

from iscp_dagster.clickhouse.types.cells import CELLS, FAMILIES
from iscp_dagster.clickhouse.types.storage import LOW_CARDINALITY
from iscp_dagster.clickhouse.types.type_parser import GEO
from iscp_dagster.clickhouse.types.types import PRIMITIVES

HEAD = ("Delta", "by default", "or as", "which holds")
_RINGS = [f"`{name}`" for name in GEO if name != "Point"]
CONTAINERS = (
    (
        "`array<E>`",
        "`Array(...)`",
        f"`Array(T)`; of structs `Nested(...)`; of points {', '.join(_RINGS)}",
        "arrays whose elements T holds; a null is written as `nulls=` says",
    ),
    (
        "`map<K,V>`",
        "`Map(..., ...)`",
        "`Map(T, U)`",
        "maps whose keys T and values U hold; a null is written as `nulls=` says",
    ),
    (
        "`struct<...>`",
        "`Tuple(...)`",
        "`Tuple(...)` of the same fields, with or without their names; `Point` for two `double`",
        "structs whose fields it holds; a null is written as `nulls=` says",
    ),
    (
        "each without parts",
        "",
        "`Dynamic`; `Variant(...)` with the default among its members",
        "what the default holds",
    ),
    (
        "each without parts",
        "",
        f"`LowCardinality(T)`, T one of {', '.join(f'`{name}`' for name in LOW_CARDINALITY)}",
        "what T holds",
    ),
)


def type_table() -> str:
    """Return the table in Markdown, one line a cell."""
    lines = [HEAD, ("---",) * len(HEAD), *_cells(), *CONTAINERS]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cells() -> Iterator[tuple[str, ...]]:
    for family, cells in CELLS.items():
        names = [name for name, of in FAMILIES.items() if of == family] or ["decimal(p,s)"]
        kept = [PRIMITIVES.get(name, "Decimal(p, s)") for name in names]
        delta, default = (", ".join(f"`{each}`" for each in line) for line in (names, kept))
        for at, cell in enumerate(cells):
            yield delta, default if at == 0 else "", cell.label, cell.domain
