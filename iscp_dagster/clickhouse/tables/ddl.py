"""The ClickHouse tables and views of one index.

For an index `docs.symbols` / `mirror` a user sees the view `docs.symbols_mirror`, and for a
vector index the parameterized views `docs.symbols_vector_nearest(tenant, query, k)` and
`docs.symbols_vector_distances(tenant, query)`. Behind them are `<view>__rows` (the rows served)
and, while tenants are being built, one `<view>__staging_...` for each attempt; the names of a later
generation include its number.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.metadata import version

from iscp_dagster.clickhouse.connect.barrier import Barrier
from iscp_dagster.clickhouse.connect.engines import ALL_ROWS, last_rows
from iscp_dagster.clickhouse.connect.quoting import ident, text
from iscp_dagster.clickhouse.kinds.kind import IndexKind, settings
from iscp_dagster.clickhouse.tables.parts import check_parts
from iscp_dagster.clickhouse.types import nulls
from iscp_dagster.clickhouse.types.stored import Stored, stored_column
from iscp_dagster.clickhouse.types.typetext import FLOATS
from iscp_dagster.clickhouse.write.chunks import FEWEST_TASKS, MOST_CHUNKS
from iscp_dagster.model.declared.kinds import views_beside
from iscp_dagster.model.declared.names import view_name
from iscp_dagster.model.declared.schema import (
    DELETED,
    SYSTEM_COLUMNS,
    TIMESTAMP,
    VERSION,
    DeltaField,
    Primitive,
)
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.model.errors import SchemaError

VIRTUAL_COLUMNS = (
    "_block_number",
    "_block_offset",
    "_database",
    "_disk_name",
    "_distance",
    "_part",
    "_part_data_version",
    "_part_granule_offset",
    "_part_index",
    "_part_offset",
    "_part_starting_offset",
    "_part_uuid",
    "_partition_id",
    "_partition_value",
    "_row_exists",
    "_sample_factor",
    "_table",
)
"""ClickHouse's virtual columns of a MergeTree; a column of such a name would hide one."""
RESERVED_COLUMNS = frozenset((*SYSTEM_COLUMNS, *VIRTUAL_COLUMNS))

TENANTS = (
    "String",
    "UUID",
    "Int8",
    "Int16",
    "Int32",
    "Int64",
    "UInt8",
    "UInt16",
    "UInt32",
    "UInt64",
)
"""Types whose text is the tenant's name in the lake."""

OWNER = "index"
"""The definition's key for the index that owns the tables."""
MADE_BY = "version"
"""The key, in a view's comment, for the version of this package that made the view."""

SETTINGS = {"flatten_nested": 0, "allow_suspicious_low_cardinality_types": 1}
"""Keep Nested as one column; accept every LowCardinality that a declaration asks for."""

_SYSTEM_TYPES = {VERSION: "UInt64", TIMESTAMP: "DateTime64(6, 'UTC')", DELETED: "UInt8"}

DEDUPLICATION_WINDOW = 5 * FEWEST_TASKS * MOST_CHUNKS
"""Blocks whose tokens a table remembers: enough for five iterations of the largest size, as all
tenants write to it, or for one of a view's. MergeTree's default of 0 remembers none."""


@dataclass(frozen=True, kw_only=True)
class IndexTable:
    """Names and DDL of one index of one source table with the given `fields`.

    `fields` are the source columns that the index carries. Raises SchemaError for a column with a
    reserved name, and for a sharding key or `types` that name a column it does not carry.
    """

    source: SourceTable
    index: IndexKind
    fields: Sequence[DeltaField]
    generation: int = 0
    """Which set of the index's tables; counts up when the index is changed or rebuilt."""
    database: str = ""
    """The tables' database; empty: the one in the source's name."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "database", self.database or self.source.database)
        for field in self.fields:
            if field.name in {*RESERVED_COLUMNS, *self.index.system_columns()}:
                raise SchemaError(
                    f"Source table {self.source.name!r} has a column {field.name!r}, a name that "
                    "every index reserves; rename it, or leave it out with exclude=[...]."
                )
        if strange := [name for name in self.sharding_key if name not in self.columns]:
            raise SchemaError(
                f"Index {self.source.name}.{self.index.name}: the sharding key has {strange[0]!r}, "
                f"which the source lacks; it has: {', '.join(self.columns)}."
            )
        if unknown := sorted(set(self.index.types) - set(self.carried)):
            raise SchemaError(
                f"Index {self.source.name}.{self.index.name}: types names the column "
                f"{unknown[0]!r}, which it does not carry; it carries: {', '.join(self.carried)}."
            )
        nulls.check_null_columns(self.source, self.index, self.fields)

    @property
    def view(self) -> str:
        return view_name(self.source.table, self.index.shown)

    @property
    def rows(self) -> str:
        return table_name(self.view, "rows", self.generation)

    def staging(self, attempt: str) -> str:
        """Return the name of the table where one attempt builds tenants."""
        return f"{table_name(self.view, 'staging', self.generation)}_{attempt}"

    def beside(self, end: str) -> str:
        """Return the name of a view that a kind has beside the index's own."""
        return f"{self.view}_{end}"

    @property
    def views(self) -> tuple[str, ...]:
        """All views that the index may have, including those of earlier generations' kinds."""
        return (self.view, *map(self.beside, views_beside()))

    @property
    def columns(self) -> tuple[str, ...]:
        """The user's columns, in the source's order; the flags of null values come last."""
        return (*self.carried, *self.flags)

    @property
    def carried(self) -> tuple[str, ...]:
        """The source's columns, in its order."""
        return tuple(field.name for field in self.fields)

    @cached_property
    def flags(self) -> Mapping[str, str]:
        """By name, the columns that tell whether a column of the source was null."""
        return {
            nulls.flag_name(field.name): field.name
            for field in self.fields
            if nulls.has_parts(field.type) and self._null_rule(field) == nulls.FLAG
        }

    def _null_rule(self, field: DeltaField) -> str:
        return nulls.null_rule(self.source, self.index, field.name)

    @property
    def order_by(self) -> tuple[str, ...]:
        """Tenant and key columns, which identify a row if there is a key."""
        tenant = (self.source.tenant,) if self.source.tenant else ()
        return tuple(dict.fromkeys((*tenant, *self.source.keys)))

    @property
    def sharding_key(self) -> tuple[str, ...]:
        """The columns that say which shard a row lies on."""
        return tuple(self.index.placement.key) if self.index.placement else ()

    def _sorted_by(self) -> tuple[str, ...]:
        if self.index.append:
            return (*self.order_by, VERSION)
        return (*self.order_by, *self.index.sorted_after())

    def name(self, which: str) -> str:
        """Return the quoted, qualified name of one of its tables or views."""
        return ident(self.database, which)

    @cached_property
    def stored(self) -> dict[str, Stored]:
        """How the user's columns are kept. Raises SchemaError for one that cannot be."""
        stored = {field.name: self._stored(field) for field in self.fields}
        check_parts(self.source.name, {name: each.type for name, each in stored.items()})
        return stored

    def column_types(self) -> Mapping[str, str]:
        """Return every stored column's ClickHouse type, system columns last."""
        return self._types

    @cached_property
    def _types(self) -> Mapping[str, str]:
        own = {name: str(each.type) for name, each in self.stored.items()}
        flags = dict.fromkeys(self.flags, "Bool")
        return {**own, **flags, **_SYSTEM_TYPES, **self.index.system_columns()}

    def column_sql(self, name: str, type_: str) -> str:
        """Return how the column is declared; rows from before it was added have nulls there."""
        default = " DEFAULT true" if name in self.flags else ""
        return f"{ident(name)} {type_}{default}"

    def _stored(self, field: DeltaField) -> Stored:
        type_, asked = self.index.kept(self.source, field), self.index.types.get(field.name)
        key = field.name in self.order_by
        nullable = field.nullable and not key
        rule = self._null_rule(field)
        stored = stored_column(
            type_, asked, nullable=nullable, at=field.name, ordered=key, nulls=rule
        )
        self.index.check_stored(self.source, field, stored, asked)
        # A tenant's name is the text of its value: a date's is none of a number.
        tenants = ("String",) if type_ == Primitive("date") else TENANTS
        if asked and field.name == self.source.tenant and stored.type.bare.name not in tenants:
            raise SchemaError(
                f"The tenant column {field.name!r} of {self.source.name!r} cannot be kept as "
                f"{asked!r}: it is {type_}; use one of {', '.join(tenants)}."
            )
        if field.name in self.sharding_key and stored.type.bare.name in FLOATS:
            raise SchemaError(
                f"Index {self.source.name}.{self.index.name}: the sharding key's {field.name!r} is "
                f"{stored.type}, where 0 and -0 are one key with two hashes; use other columns."
            )
        # A tenant keeps the source's spelling, or nobody would find its rows.
        return replace(stored, as_written=field.name == self.source.tenant, key=key)

    @property
    def definition(self) -> str:
        """What determines the tables besides the source's columns, as JSON: their comment."""
        source = {"key": list(self.source.keys), "tenant": self.source.tenant}
        said = {**self.index.definition, **self.index.described(self.fields), **source}
        # Tables that were made before there were rules name none.
        rules = nulls.null_rules(self.source, self.index)
        said |= {"nulls": rules} if rules else {}
        return json.dumps(said | {OWNER: self.owner}, sort_keys=True)

    @property
    def owner(self) -> str:
        """The index that owns the tables and views."""
        return f"{self.source.name}/{self.index.shown}"

    def create_statements(self, barrier: Barrier | None = None) -> list[str]:
        """Create database and table, with a barrier; running them again changes nothing."""
        return [f"CREATE DATABASE IF NOT EXISTS {ident(self.database)}", self._create(barrier)]

    def staging_statement(self, attempt: str) -> str:
        """Create the table of an attempt, with the current columns of the rows.

        Its engine replaces no rows: a repeated key must stay visible until it is counted.
        """
        name, rows = self.name(self.staging(attempt)), self.name(self.rows)
        return (
            f"CREATE TABLE {name} AS {rows} ENGINE = {ALL_ROWS}\n"
            f"{self._layout()}\nCOMMENT {text(self.definition)}"
        )

    def view_statements(self, lost: Sequence[str] = ()) -> list[str]:
        """Create or replace the views; columns that the source `lost` come last."""
        return [
            *self._drop_views_beside(),
            *(
                f"CREATE OR REPLACE VIEW {self.name(view)} AS {select} "
                f"COMMENT {text(self.view_comment(select))}"
                for view, select in self.selects(lost).items()
            ),
        ]

    def selects(self, lost: Sequence[str] = ()) -> dict[str, str]:
        """Return the views' SELECTs; the plain view, which says what is served, is the last."""
        columns = (*self.columns, *lost)
        selected = ", ".join(map(ident, columns))
        beside = {
            self.beside(end): self.index.view_beside(end, self, selected)
            for end in self.index.beside
        }
        return {**beside, self.view: self.index.select(self, columns)}

    def view_comment(self, select: str) -> str:
        """Return the comment of a view: by it a view that was made otherwise is recognized."""
        note = {"note": self.index.note()} if self.index.note() else {}
        digest = hashlib.sha256(select.encode()).hexdigest()[:16]
        said = {OWNER: self.owner, MADE_BY: version("iscp_dagster"), "select": digest, **note}
        return json.dumps(said, ensure_ascii=False)

    def _drop_views_beside(self) -> Iterator[str]:
        """Drop the views of other kinds: an earlier generation may have been of one."""
        if self.generation:
            for end in views_beside():
                if end not in self.index.beside:
                    yield f"DROP VIEW IF EXISTS {self.name(self.beside(end))}"

    def _engine(self) -> str:
        return ALL_ROWS if self.index.append else last_rows(ident(VERSION), ident(DELETED))

    @property
    def final(self) -> str:
        """The FROM expression for readers: the last row of each key."""
        return self.every if self.index.append else f"{self.every} FINAL"

    @property
    def every(self) -> str:
        return self.name(self.rows)

    def _create(self, barrier: Barrier | None) -> str:
        types, comments = self.column_types(), {f.name: f.comment for f in self.fields}
        parts = [
            *(self.column_sql(*each) + _comment(comments.get(each[0])) for each in types.items()),
            *self.index.skip_indexes(),
            *([barrier.sql(self.source.tenant)] if barrier else []),
        ]
        body, table = ",\n    ".join(parts), self.name(self.rows)
        return (
            f"CREATE TABLE IF NOT EXISTS {table} (\n    {body}\n) ENGINE = {self._engine()}\n"
            f"{self._layout()}\nCOMMENT {text(self.definition)}"
        )

    def _layout(self) -> str:
        partition = ident(self.source.tenant) if self.source.tenant else "tuple()"
        window = {"non_replicated_deduplication_window": DEDUPLICATION_WINDOW}
        return (
            f"PARTITION BY {partition} ORDER BY ({', '.join(map(ident, self._sorted_by()))})\n"
            f"SETTINGS {settings(window | {**self.index.table_settings()})}"
        )


def _comment(comment: str | None) -> str:
    return f" COMMENT {text(comment)}" if comment else ""


def table_name(view: str, role: str, generation: int) -> str:
    """Return the name of an index's `rows` or `staging` table."""
    return f"{view}__{role}_{generation}" if generation else f"{view}__{role}"
