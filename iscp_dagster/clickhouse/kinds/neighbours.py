"""The SELECTs that measure distances and find neighbours; see docs/adr/0003.

The engine's search by a graph answers with row numbers before FINAL has decided which rows count,
and takes its settings from the outermost query. So the graph only names candidates here, by key
and version; the rows are read with FINAL and measured themselves.
"""

from __future__ import annotations

from dataclasses import dataclass

from iscp_dagster.clickhouse.connect.quoting import ident, text
from iscp_dagster.clickhouse.kinds.kind import EXACT_FINAL, Shape, settings
from iscp_dagster.model.declared.schema import VERSION

QUERY = "{query:Array(Float32)}"
GIVEN = "{query:Array(Nullable(Float32))}"
"""The query vector with its NULLs, which ClickHouse takes for 0 where the type has none."""
COUNT = "{k:UInt32}"
CANDIDATES = f"greatest({COUNT}, least({COUNT} * 3 + 100, 1000))"
"""How many candidates the graph names; of more than 1,000 ClickHouse asks no graph."""
EXACT_ROWS, EXACT_FLOATS = 100_000, 12_000_000
"""A tenant with no more rows, counting those that merges will drop, nor more floats in its vectors,
is searched without a graph, which takes less (bench/RESULTS.md, "neighbours")."""
SHORTEST = 1e-150
"""A shorter vector has no direction: its square is beyond the range of 64 bits."""


@dataclass(frozen=True, kw_only=True)
class NeighbourSelects:
    """The SELECTs over one vector column, measured by a function of ClickHouse.

    `query`, `k` and (for a table with tenants) `tenant` are parameters of the views made of them.
    """

    function: str
    vector: str
    dimension: int
    shape: Shape
    selected: str
    """The SELECT list of the user's columns."""
    exact_rows: int
    """A tenant with no more stored rows is measured whole."""
    append: bool
    """Whether rows are only appended: then no row is deleted or replaced."""
    lacks: str
    """The column that marks rows without a vector, which are neighbours of none."""

    def select_distances(self) -> str:
        """Return the SELECT of every live row with its distance, by no graph."""
        rows = f"{self.shape.final}{self._where(self._is_fit, self._has_vector)}"
        return (
            f"SELECT {self.selected}, {self._measure()} AS {self._distance} "
            f"FROM {rows} SETTINGS {settings(EXACT_FINAL)}"
        )

    def select_nearest(self) -> str:
        """Return the SELECT of the `k` live rows that are nearest, nearest first.

        If fewer than `k` candidates are live, all rows are measured. So `k` rows come if `k` live.
        """
        source = self._among_candidates() if self.append else self._live_candidates()
        return (
            f"SELECT {self.selected}, {self._measure()} AS {self._distance} FROM {source} "
            f"ORDER BY {', '.join((self._distance, *self._keys))} LIMIT {COUNT} "
            f"SETTINGS {settings(EXACT_FINAL)}"
        )

    def _among_candidates(self) -> str:
        lacks = ident(self.lacks)
        columns = f"{self.selected}, {lacks}"
        named = f"(SELECT countIf({self._has_vector}) FROM (SELECT {lacks} {self._by_graph()}))"
        return (
            f"(SELECT * FROM (SELECT {columns} {self._by_graph()}) "
            f"WHERE {self._has_vector} AND {named} >= {COUNT} UNION ALL "
            f"SELECT {columns} FROM {self.shape.every}"
            f"{self._where(self._has_vector, f'{named} < {COUNT}')})"
        )

    def _live_candidates(self) -> str:
        row = f"({', '.join((*self._keys, ident(VERSION)))})"
        small = f"(SELECT count() <= {self.exact_rows} FROM {self.shape.every}{self._where()})"
        # ClickHouse computes both sides of an OR: a small tenant has no candidates, and no search.
        candidate = f"{row} IN (SELECT {row[1:-1]} {self._by_graph(f'NOT {small}')})"
        live = f"SELECT count() FROM {self.shape.final}{self._where(self._has_vector, candidate)}"
        exact = f"{small} OR ({live}) < {COUNT}"
        return f"{self.shape.final}{self._where(self._has_vector, f'({candidate} OR {exact})')}"

    def _by_graph(self, *conditions: str) -> str:
        """Return what follows a SELECT list to get the rows that the graph names."""
        vector, query = ident(self.vector), self._scaled() if self._is_angle else QUERY
        return (
            f"FROM {self.shape.every}{self._where(self._is_fit, *conditions)} "
            f"ORDER BY {self.function}({vector}, {query}) LIMIT {CANDIDATES}"
        )

    def _measure(self) -> str:
        """Return the distance in 64 bits, where no square of a 32-bit float is out of range."""
        # Of a plain column the engine would take the graph's own distance, also of dead rows.
        vector = f"CAST(materialize({ident(self.vector)}), 'Array(Float64)')"
        if not self._is_angle:
            return f"{self.function}({vector}, CAST({QUERY}, 'Array(Float64)'))"
        angle = f"{self.function}({vector}, {self._scaled()})"
        return f"if(L2Norm({vector}) < {SHORTEST}, nan, {angle})"

    def _scaled(self) -> str:
        """Return the query vector in 64 bits, with 1 as its largest part: its length is no matter.

        A query of zeros stays one.
        """
        largest = f"greatest(arrayMax(part -> abs(part), {QUERY}), 1e-45)"
        return f"arrayMap(part -> part / {largest}, CAST({QUERY}, 'Array(Float64)'))"

    @property
    def _is_fit(self) -> str:
        """Return a condition that holds, or refuses the query vector before any row is read."""
        fault = f"length({GIVEN}) != {self.dimension} OR has({GIVEN}, NULL)"
        said = f"query: a vector of {self.dimension} numbers is expected, none of them NULL"
        return f"NOT (SELECT throwIf({fault}, {text(said)}))"

    @property
    def _has_vector(self) -> str:
        return f"NOT {ident(self.lacks)}"

    @property
    def _is_angle(self) -> bool:
        return self.function == "cosineDistance"

    @property
    def _distance(self) -> str:
        # A column that the source has lost is selected, too.
        taken = ident("distance") in self.selected.split(", ")
        return ident("_distance" if taken else "distance")

    @property
    def _keys(self) -> tuple[str, ...]:
        return tuple(map(ident, self.shape.source.keys))

    def _where(self, *conditions: str) -> str:
        tenant = self.shape.source.tenant
        type_ = self.shape.column_types()[tenant] if tenant else ""
        of_tenant = [f"{ident(tenant)} = {{tenant:{type_}}}"] if tenant else []
        parts = [*of_tenant, *conditions]
        return f" WHERE {' AND '.join(parts)}" if parts else ""
