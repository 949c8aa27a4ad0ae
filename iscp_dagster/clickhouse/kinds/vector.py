"""Nearest neighbours: ClickHouse's `vector_similarity` index (ClickHouse doc: ANN indexes)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, ClassVar

from iscp_dagster.clickhouse.connect.quoting import quote_identifier, quote_string
from iscp_dagster.clickhouse.kinds.kind import (
    EXACT_FINAL,
    IndexKind,
    InsertTarget,
    TableShape,
    render_settings,
)
from iscp_dagster.clickhouse.kinds.neighbours import EXACT_FLOATS, EXACT_ROWS, NeighbourSelects
from iscp_dagster.clickhouse.kinds.searching import Neighbourhood
from iscp_dagster.clickhouse.types.type_parser import FLOATS
from iscp_dagster.model.declared.schema import Array, DeltaField, DeltaType, Primitive
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.model.errors import ConfigError, SchemaError

if TYPE_CHECKING:
    import pyarrow as pa

    from iscp_dagster.clickhouse.types.storage import StoredType

NO_VECTOR = "_no_vector"
"""The system column that marks rows without a vector; the graph has a filler for them."""
NEAREST, DISTANCES = "nearest", "distances"
"""The ends of the names of its views beside the index view."""
ROWS_PER_MARK = 256
"""Rows per granule. With MergeTree's 8,192, reading a hundred candidates reads the whole table."""


@dataclass(frozen=True)
class Vector(IndexKind):
    """A mirror with an HNSW graph on `vector`, for nearest neighbours.

    `dimension` is the number of floats in every vector of the column. `metric` is
    `cosine` or `l2`; `quantization` one of ClickHouse's (`f64 f32 f16 bf16 i8 b1`).
    A row whose vector is null or empty is in the index, but is nobody's neighbour.
    """

    vector: str
    _: KW_ONLY
    dimension: int
    metric: str = "cosine"
    quantization: str = "bf16"
    connectivity: int = 32
    """HNSW's M: links per node."""
    expansion: int = 128
    """HNSW's ef_construction: candidates while building."""
    kind: ClassVar[str] = "vector"
    view_suffixes: ClassVar[tuple[str, ...]] = (NEAREST, DISTANCES)
    # Filtered by tenant, the candidates of a graph of many tenants have few of a small one's.
    shares_skip_indexes: ClassVar[bool] = False

    METRICS: ClassVar[Mapping[str, str]] = {"cosine": "cosineDistance", "l2": "L2Distance"}

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("vector", "metric", "quantization"):
            self.check(name, str, "text")
        for name in ("dimension", "connectivity", "expansion"):
            self.check(name, int, "a whole number")
        if self.metric not in self.METRICS:
            raise ConfigError(
                f"Vector index {self.name!r}: metric {self.metric!r} is unknown; "
                f"use one of {', '.join(sorted(self.METRICS))}."
            )
        if self.dimension < 1:
            raise ConfigError(
                f"Vector index {self.name!r}: dimension {self.dimension} is below 1; "
                "give the length of the vectors."
            )

    @property
    def needed_columns(self) -> tuple[str, ...]:
        return (self.vector,)

    @property
    def distance_function(self) -> str:
        """The ClickHouse function that measures the metric."""
        return self.METRICS[self.metric]

    def choose_delta_type(self, source: SourceTable, field: DeltaField) -> DeltaType:
        if field.name != self.vector:
            return field.type
        element = field.type.element if isinstance(field.type, Array) else field.type
        if isinstance(field.type, Array) and element in {Primitive("float"), Primitive("double")}:
            return Array(element=element, nullable=False)
        raise SchemaError(
            f"Vector column {source.name}.{field.name} is {field.type}; "
            "declare it array<float> or array<double>."
        )

    def check_stored(
        self, source: SourceTable, field: DeltaField, stored: StoredType, requested: str | None
    ) -> None:
        if field.name == self.vector and stored.is_json_text:
            raise SchemaError(
                f"Vector column {field.name!r} of {source.name!r} cannot be kept as JSON text: the "
                "graph needs an array. Give nulls='empty' or 'refuse' for it."
            )
        if field.name == self.vector and stored.members[0].type.name not in FLOATS:
            raise SchemaError(
                f"Vector column {field.name!r} of {source.name!r} cannot be kept as "
                f"{requested!r}; the graph needs Array(T), where T is one of {', '.join(FLOATS)}."
            )

    @property
    def exact_rows(self) -> int:
        """Up to how many rows a tenant is searched without the graph."""
        return min(EXACT_ROWS, EXACT_FLOATS // self.dimension)

    def list_skip_indexes(self) -> Sequence[str]:
        name, column = quote_identifier(f"{self.vector}_hnsw"), quote_identifier(self.vector)
        shape = (
            f"{quote_string(self.distance_function)}, {self.dimension}, "
            f"{quote_string(self.quantization)}"
        )
        graph = f"{self.connectivity}, {self.expansion}"
        return [f"INDEX {name} {column} TYPE vector_similarity('hnsw', {shape}, {graph})"]

    def list_system_columns(self) -> Mapping[str, str]:
        return {NO_VECTOR: "Bool"}

    def get_table_settings(self) -> Mapping[str, int]:
        return {"index_granularity": ROWS_PER_MARK}

    def render_view_select(self, shape: TableShape, selected: Sequence[str]) -> str:
        quoted = quote_identifier(self.vector)
        # For ORDER BY the plain column's distance, the graph would answer, with dead rows too.
        vector = f"if({quote_identifier(NO_VECTOR)}, [], materialize({quoted})) AS {quoted}"
        columns = ", ".join(
            vector if name == self.vector else quote_identifier(name) for name in selected
        )
        return f"SELECT {columns} FROM {shape.final} SETTINGS {render_settings(EXACT_FINAL)}"

    def render_suffixed_view(self, suffix: str, shape: TableShape, selected: str) -> str:
        neighbours = NeighbourSelects(
            function=self.distance_function,
            vector=self.vector,
            dimension=self.dimension,
            shape=shape,
            selected=selected,
            exact_rows=self.exact_rows,
            append=self.append,
            no_vector_column=NO_VECTOR,
        )
        by_end = {NEAREST: neighbours.select_nearest, DISTANCES: neighbours.select_distances}
        return by_end[suffix]()

    def get_neighbourhood(self) -> Neighbourhood:
        return Neighbourhood(dimension=self.dimension, nearest=NEAREST, distances=DISTANCES)

    def fit_rows(self, target: InsertTarget, rows: pa.Table) -> pa.Table:
        """Check every live vector; mark the rows without one, and give them fillers."""
        from iscp_dagster.clickhouse.kinds.vector_rows import fit_vectors

        return fit_vectors(target, rows, self.vector, self.dimension, NO_VECTOR)
