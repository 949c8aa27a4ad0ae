"""The SELECTs that measure distances and find neighbours; see docs/adr/0003.

The engine's search by a graph answers with row numbers before FINAL has decided which rows count,
and takes its settings from the outermost query. So the graph only names candidates here, by key
and version; the rows are read with FINAL and measured themselves.
"""

from __future__ import annotations

from dataclasses import dataclass

from iscp_dagster.clickhouse.connect.quoting import quote_identifier, quote_string
from iscp_dagster.clickhouse.kinds.kind import EXACT_FINAL, TableShape, render_settings
from iscp_dagster.model.declared.schema import VERSION

QUERY = "{query:Array(Float32)}"
GIVEN = "{query:Array(Nullable(Float32))}"
"""The query vector with its NULLs, which ClickHouse takes for 0 where the type has none."""
COUNT = "{k:UInt32}"
CANDIDATES = f"greatest({COUNT}, least({COUNT} * 3 + 100, 1000))"
"""How many candidates the graph names; above 1,000 ClickHouse does not use the graph."""
EXACT_ROWS, EXACT_FLOATS = 100_000, 12_000_000
"""A tenant with at most so many rows, before merges, and floats in its vectors is searched without
the graph, which is faster (bench/RESULTS.md, "neighbours")."""
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
    shape: TableShape
    selected: str
    """The SELECT list of the user's columns."""
    exact_rows: int
    """A tenant with no more stored rows is searched without the graph."""
    append: bool
    """Whether rows are only appended: then no row is deleted or replaced."""
    no_vector_column: str
    """The column that marks rows without a vector, which are nobody's neighbours."""

    def select_distances(self) -> str:
        """Return the SELECT of every live row with its distance, without the graph."""
        rows = f"{self.shape.final}{self._render_where(self._query_check, self._vector_condition)}"
        return (
            f"SELECT {self.selected}, {self._render_distance()} AS {self._distance_alias} "
            f"FROM {rows} SETTINGS {render_settings(EXACT_FINAL)}"
        )

    def select_nearest(self) -> str:
        """Return the SELECT of the `k` live rows that are nearest, nearest first.

        If fewer than `k` candidates are live, all rows are measured, so `k` rows come if `k` live.
        """
        source = self._render_appended_source() if self.append else self._render_live_source()
        return (
            f"SELECT {self.selected}, {self._render_distance()} AS {self._distance_alias} FROM "
            f"{source} "
            f"ORDER BY {', '.join((self._distance_alias, *self._keys))} LIMIT {COUNT} "
            f"SETTINGS {render_settings(EXACT_FINAL)}"
        )

    def _render_appended_source(self) -> str:
        lacks = quote_identifier(self.no_vector_column)
        columns = f"{self.selected}, {lacks}"
        candidate_count = (
            f"(SELECT countIf({self._vector_condition}) FROM (SELECT {lacks} "
            f"{self._render_graph_search()}))"
        )
        return (
            f"(SELECT * FROM (SELECT {columns} {self._render_graph_search()}) "
            f"WHERE {self._vector_condition} AND {candidate_count} >= {COUNT} UNION ALL "
            f"SELECT {columns} FROM {self.shape.all_rows}"
            f"{self._render_where(self._vector_condition, f'{candidate_count} < {COUNT}')})"
        )

    def _render_live_source(self) -> str:
        row = f"({', '.join((*self._keys, quote_identifier(VERSION)))})"
        small = (
            f"(SELECT count() <= {self.exact_rows} FROM "
            f"{self.shape.all_rows}{self._render_where()})"
        )
        # ClickHouse computes both sides of an OR: a small tenant has no candidates, and no search.
        candidate = f"{row} IN (SELECT {row[1:-1]} {self._render_graph_search(f'NOT {small}')})"
        live = (
            "SELECT count() FROM "
            f"{self.shape.final}{self._render_where(self._vector_condition, candidate)}"
        )
        exact = f"{small} OR ({live}) < {COUNT}"
        where = self._render_where(self._vector_condition, f"({candidate} OR {exact})")
        return f"{self.shape.final}{where}"

    def _render_graph_search(self, *conditions: str) -> str:
        """Return what follows a SELECT list to get the rows that the graph names."""
        vector, query = (
            quote_identifier(self.vector),
            self._render_scaled_query() if self._is_angle else QUERY,
        )
        return (
            f"FROM {self.shape.all_rows}{self._render_where(self._query_check, *conditions)} "
            f"ORDER BY {self.function}({vector}, {query}) LIMIT {CANDIDATES}"
        )

    def _render_distance(self) -> str:
        """Return the distance in 64 bits, where no square of a 32-bit float is out of range."""
        # For a plain column the engine would take the graph's distance, even of dead rows.
        vector = f"CAST(materialize({quote_identifier(self.vector)}), 'Array(Float64)')"
        if not self._is_angle:
            return f"{self.function}({vector}, CAST({QUERY}, 'Array(Float64)'))"
        angle = f"{self.function}({vector}, {self._render_scaled_query()})"
        return f"if(L2Norm({vector}) < {SHORTEST}, nan, {angle})"

    def _render_scaled_query(self) -> str:
        """Return the query vector in 64 bits, scaled to a largest part of 1: only its angle counts.

        A query of zeros stays so.
        """
        largest = f"greatest(arrayMax(part -> abs(part), {QUERY}), 1e-45)"
        return f"arrayMap(part -> part / {largest}, CAST({QUERY}, 'Array(Float64)'))"

    @property
    def _query_check(self) -> str:
        """Return a condition that is true, or refuses the query vector before any row is read."""
        fault = f"length({GIVEN}) != {self.dimension} OR has({GIVEN}, NULL)"
        message = f"query: a vector of {self.dimension} numbers is expected, none of them NULL"
        return f"NOT (SELECT throwIf({fault}, {quote_string(message)}))"

    @property
    def _vector_condition(self) -> str:
        return f"NOT {quote_identifier(self.no_vector_column)}"

    @property
    def _is_angle(self) -> bool:
        return self.function == "cosineDistance"

    @property
    def _distance_alias(self) -> str:
        # A column that the source has lost is selected too.
        is_taken = quote_identifier("distance") in self.selected.split(", ")
        return quote_identifier("_distance" if is_taken else "distance")

    @property
    def _keys(self) -> tuple[str, ...]:
        return tuple(map(quote_identifier, self.shape.source.keys))

    def _render_where(self, *conditions: str) -> str:
        tenant = self.shape.source.tenant
        type_ = self.shape.get_column_types()[tenant] if tenant else ""
        tenant_condition = [f"{quote_identifier(tenant)} = {{tenant:{type_}}}"] if tenant else []
        parts = [*tenant_condition, *conditions]
        return f" WHERE {' AND '.join(parts)}" if parts else ""
