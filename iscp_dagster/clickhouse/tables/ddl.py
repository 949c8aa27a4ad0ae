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
from iscp_dagster.clickhouse.connect.engines import ALL_ROWS, render_replacing_engine
from iscp_dagster.clickhouse.connect.quoting import quote_identifier, quote_string
from iscp_dagster.clickhouse.kinds.kind import IndexKind, render_settings
from iscp_dagster.clickhouse.tables.buckets import render_bucket
from iscp_dagster.clickhouse.tables.subcolumns import check_subcolumns
from iscp_dagster.clickhouse.types import nulls
from iscp_dagster.clickhouse.types.storage import StoredType, resolve_stored_type
from iscp_dagster.clickhouse.types.type_parser import FLOATS
from iscp_dagster.clickhouse.write.chunks import FEWEST_TASKS, MOST_CHUNKS
from iscp_dagster.model.declared.kinds import list_view_suffixes
from iscp_dagster.model.declared.names import view_name
from iscp_dagster.model.declared.schema import (
    BUCKET,
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
RESERVED_COLUMNS = frozenset((*SYSTEM_COLUMNS, BUCKET, *VIRTUAL_COLUMNS))

TENANT_TYPES = (
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
"""Keep Nested as one column; accept every LowCardinality in a declaration."""

_SYSTEM_TYPES = {VERSION: "UInt64", TIMESTAMP: "DateTime64(6, 'UTC')", DELETED: "UInt8"}

DEDUPLICATION_WINDOW = 5 * FEWEST_TASKS * MOST_CHUNKS
"""How many tokens a table remembers: all tenants write to one table, so enough for five iterations
of the largest size. MergeTree's default of 0 remembers none."""


@dataclass(frozen=True, kw_only=True)
class IndexShape:
    """Names and DDL of one index of one source table with the given `fields`.

    `fields` are the source columns that the index carries. Raises SchemaError for a column with a
    reserved name, and for a sharding key or `types` that name a column it does not carry.
    """

    source: SourceTable
    index: IndexKind
    fields: Sequence[DeltaField]
    generation: int = 0
    """The number of this set of tables; it grows when the index is changed or rebuilt."""
    database: str = ""
    """The tables' database; empty: the one in the source's name."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "database", self.database or self.source.database)
        for field in self.fields:
            if field.name in {*RESERVED_COLUMNS, *self.index.list_system_columns()}:
                raise SchemaError(
                    f"Source table {self.source.name!r} has a column {field.name!r}, a name that "
                    "every index reserves; rename it, or leave it out with exclude=[...]."
                )
        if missing := [name for name in self.sharding_key if name not in self.columns]:
            raise SchemaError(
                f"Index {self.source.name}.{self.index.name}: the sharding key has {missing[0]!r}, "
                f"which the source lacks; it has: {', '.join(self.columns)}."
            )
        if unknown := sorted(set(self.index.types) - set(self.source_columns)):
            raise SchemaError(
                f"Index {self.source.name}.{self.index.name}: types names the column "
                f"{unknown[0]!r}, which it does not carry; it carries: "
                f"{', '.join(self.source_columns)}."
            )
        nulls.check_index_null_rules(self.source, self.index, self.fields)

    @property
    def view(self) -> str:
        return view_name(self.source.table, self.index.shown)

    @property
    def rows(self) -> str:
        return format_table_name(self.view, "rows", self.generation)

    def format_staging_name(self, attempt: str) -> str:
        """Return the name of the table where one attempt builds tenants."""
        return f"{format_table_name(self.view, 'staging', self.generation)}_{attempt}"

    def format_view_name(self, suffix: str) -> str:
        """Return the name of a view that a kind has beside the index's own."""
        return f"{self.view}_{suffix}"

    @property
    def views(self) -> tuple[str, ...]:
        """All views that the index may have, including those of earlier generations' kinds."""
        return (self.view, *map(self.format_view_name, list_view_suffixes()))

    @property
    def columns(self) -> tuple[str, ...]:
        """The user's columns, in the source's order; the flags of null values come last."""
        return (*self.source_columns, *self.flags)

    @property
    def source_columns(self) -> tuple[str, ...]:
        """The source's columns, in its order."""
        return tuple(field.name for field in self.fields)

    @cached_property
    def flags(self) -> Mapping[str, str]:
        """By name, the columns that say whether a column of the source was null."""
        return {
            nulls.format_flag_name(field.name): field.name
            for field in self.fields
            if nulls.is_composite(field.type) and self._get_null_rule(field) == nulls.FLAG
        }

    def _get_null_rule(self, field: DeltaField) -> str:
        return nulls.get_null_rule(self.source, self.index, field.name)

    @property
    def identity_columns(self) -> tuple[str, ...]:
        """Tenant and key columns, which identify a row if there is a key."""
        tenant = (self.source.tenant,) if self.source.tenant else ()
        return tuple(dict.fromkeys((*tenant, *self.source.keys)))

    @property
    def sharding_key(self) -> tuple[str, ...]:
        """The columns that say which shard a row lies on."""
        return tuple(self.index.placement.key) if self.index.placement else ()

    @property
    def sort_columns(self) -> tuple[str, ...]:
        """The columns that order the rows; unless they are only appended, no two rows agree in them
        all.
        """
        if self.index.append:
            return (*self.identity_columns, VERSION)
        return (*self.identity_columns, *self.index.list_extra_sort_columns())

    def qualify_name(self, table: str) -> str:
        """Return the quoted, qualified name of one of its tables or views."""
        return quote_identifier(self.database, table)

    @cached_property
    def stored_types(self) -> dict[str, StoredType]:
        """How the user's columns are kept. Raises SchemaError if one cannot be kept."""
        stored = {field.name: self._resolve_stored_type(field) for field in self.fields}
        check_subcolumns(self.source.name, {name: column.type for name, column in stored.items()})
        return stored

    def get_column_types(self) -> Mapping[str, str]:
        """Return every stored column's ClickHouse type, system columns last."""
        return self._column_types

    @cached_property
    def _column_types(self) -> Mapping[str, str]:
        columns = {name: str(column.type) for name, column in self.stored_types.items()}
        flags = dict.fromkeys(self.flags, "Bool")
        bucket = {BUCKET: "UInt16"} if self.source.buckets else {}
        return {**columns, **flags, **_SYSTEM_TYPES, **bucket, **self.index.list_system_columns()}

    def render_column(self, name: str, type_: str) -> str:
        """Return how the column is declared; rows from before it was added have nulls there."""
        default = " DEFAULT true" if name in self.flags else ""
        if name == BUCKET and self.source.tenant and self.source.buckets:
            default = f" DEFAULT {render_bucket(self.source.tenant, self.source.buckets)}"
        return f"{quote_identifier(name)} {type_}{default}"

    def _resolve_stored_type(self, field: DeltaField) -> StoredType:
        type_, requested = (
            self.index.choose_delta_type(self.source, field),
            self.index.types.get(field.name),
        )
        key = field.name in self.identity_columns
        nullable = field.nullable and not key
        rule = self._get_null_rule(field)
        stored = resolve_stored_type(
            type_, requested, nullable=nullable, column=field.name, ordered=key, nulls=rule
        )
        self.index.check_stored(self.source, field, stored, requested)
        # A tenant's name is its value's text, and a date's text is not a number's.
        tenants = ("String",) if type_ == Primitive("date") else TENANT_TYPES
        if requested and field.name == self.source.tenant and stored.type.bare.name not in tenants:
            raise SchemaError(
                f"The tenant column {field.name!r} of {self.source.name!r} cannot be kept as "
                f"{requested!r}: it is {type_}; use one of {', '.join(tenants)}."
            )
        if field.name in self.sharding_key and stored.type.bare.name in FLOATS:
            raise SchemaError(
                f"Index {self.source.name}.{self.index.name}: the sharding key's {field.name!r} is "
                f"{stored.type}, where 0 and -0 are one key with two hashes; use other columns."
            )
        # A tenant keeps the source's spelling, or nobody would find its rows.
        return replace(stored, verbatim=field.name == self.source.tenant, is_key=key)

    @property
    def definition(self) -> str:
        """What determines the tables besides the source's columns, as JSON: their comment."""
        source = {"key": list(self.source.keys), "tenant": self.source.tenant}
        definition = {
            **self.index.definition,
            **self.index.extend_definition(self.fields),
            **source,
        }
        definition |= {"buckets": self.source.buckets} if self.source.buckets else {}
        # Tables made before there were rules have none in their definition.
        rules = nulls.list_null_rules(self.source, self.index)
        definition |= {"nulls": rules} if rules else {}
        return json.dumps(definition | {OWNER: self.owner}, sort_keys=True)

    @property
    def owner(self) -> str:
        """The index that owns the tables and views."""
        return f"{self.source.name}/{self.index.shown}"

    def render_create_statements(self, barrier: Barrier | None = None) -> list[str]:
        """Create database and table, with a barrier; running them again changes nothing."""
        return [
            f"CREATE DATABASE IF NOT EXISTS {quote_identifier(self.database)}",
            self._render_create_table(barrier),
        ]

    def render_staging_table(self, attempt: str) -> str:
        """Create the table of an attempt, with the current columns of the rows.

        Its engine replaces no rows: a repeated key must stay visible until it is counted.
        """
        name, rows = (
            self.qualify_name(self.format_staging_name(attempt)),
            self.qualify_name(self.rows),
        )
        return (
            f"CREATE TABLE {name} AS {rows} ENGINE = {ALL_ROWS}\n"
            f"{self._render_layout()}\nCOMMENT {quote_string(self.definition)}"
        )

    def render_view_statements(self, lost: Sequence[str] = ()) -> list[str]:
        """Create or replace the views; columns that the source `lost` come last."""
        return [
            *self._render_view_drops(),
            *(
                f"CREATE OR REPLACE VIEW {self.qualify_name(view)} AS {select} "
                f"COMMENT {quote_string(self.render_view_comment(select))}"
                for view, select in self.render_view_selects(lost).items()
            ),
        ]

    def render_view_selects(self, lost: Sequence[str] = ()) -> dict[str, str]:
        """Return the views' SELECTs; the index view, which says what is served, comes last."""
        columns = (*self.columns, *lost)
        selected = ", ".join(map(quote_identifier, columns))
        beside = {
            self.format_view_name(end): self.index.render_suffixed_view(end, self, selected)
            for end in self.index.view_suffixes
        }
        return {**beside, self.view: self.index.render_view_select(self, columns)}

    def render_view_comment(self, select: str) -> str:
        """Return a view's comment, which differs if the view was made differently."""
        note = {"note": self.index.get_note()} if self.index.get_note() else {}
        digest = hashlib.sha256(select.encode()).hexdigest()[:16]
        comment = {OWNER: self.owner, MADE_BY: version("iscp_dagster"), "select": digest, **note}
        return json.dumps(comment, ensure_ascii=False)

    def _render_view_drops(self) -> Iterator[str]:
        """Drop the views of other kinds, which an earlier generation may have made."""
        if self.generation:
            for end in list_view_suffixes():
                if end not in self.index.view_suffixes:
                    yield f"DROP VIEW IF EXISTS {self.qualify_name(self.format_view_name(end))}"

    def _render_engine(self) -> str:
        return (
            ALL_ROWS
            if self.index.append
            else render_replacing_engine(quote_identifier(VERSION), quote_identifier(DELETED))
        )

    @property
    def final(self) -> str:
        """The FROM expression for readers: the last row of each key."""
        return self.all_rows if self.index.append else f"{self.all_rows} FINAL"

    @property
    def all_rows(self) -> str:
        return self.qualify_name(self.rows)

    def _render_create_table(self, barrier: Barrier | None) -> str:
        types, comments = self.get_column_types(), {f.name: f.comment for f in self.fields}
        has_skip_indexes = not self.source.buckets or self.index.shares_skip_indexes
        parts = [
            *(
                self.render_column(name, type_) + _render_comment(comments.get(name))
                for name, type_ in types.items()
            ),
            *(self.index.list_skip_indexes() if has_skip_indexes else ()),
            *([barrier.render_constraint(self.source.tenant)] if barrier else []),
        ]
        body, table = ",\n    ".join(parts), self.qualify_name(self.rows)
        return (
            f"CREATE TABLE IF NOT EXISTS {table} (\n    {body}\n) ENGINE = "
            f"{self._render_engine()}\n"
            f"{self._render_layout()}\nCOMMENT {quote_string(self.definition)}"
        )

    def _render_layout(self) -> str:
        column = BUCKET if self.source.buckets else self.source.tenant
        partition = quote_identifier(column) if column else "tuple()"
        window = {"non_replicated_deduplication_window": DEDUPLICATION_WINDOW}
        return (
            f"PARTITION BY {partition} ORDER BY "
            f"({', '.join(map(quote_identifier, self.sort_columns))})\n"
            f"SETTINGS {render_settings(window | {**self.index.get_table_settings()})}"
        )


def _render_comment(comment: str | None) -> str:
    return f" COMMENT {quote_string(comment)}" if comment else ""


def format_table_name(view: str, role: str, generation: int) -> str:
    """Return the name of an index's `rows` or `staging` table."""
    return f"{view}__{role}_{generation}" if generation else f"{view}__{role}"
