"""Tables of data frames that assets return, replaced all at once or partition by partition.

Rows are staged in a table that only the attempt knows, and then swapped: readers see the old rows
of a partition or the new ones, and an attempt that dies in the middle changes no partition that it
has not replaced. Repeating it with the same rows changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa

from iscp_dagster.clickhouse.connect.endpoint import ClickHouseEndpoint
from iscp_dagster.clickhouse.connect.engines import ALL_ROWS
from iscp_dagster.clickhouse.connect.quoting import quote_identifier, quote_string
from iscp_dagster.clickhouse.tables.staging import make_attempt_id
from iscp_dagster.clickhouse.types.arrow import derive_column_types, widen_types
from iscp_dagster.model.errors import SchemaError

STAGED = "__staged_"
LEFT_OVER_HOURS = 24
"""Tables staged longer ago are left over from an attempt that died."""


@dataclass(frozen=True, kw_only=True)
class FrameTable:
    """A table `database.name` in one ClickHouse, whose rows come as frames."""

    endpoint: ClickHouseEndpoint
    database: str
    name: str
    partition: str | None = None
    """The column whose values are the partitions; None: the table is replaced as a whole."""
    order_by: tuple[str, ...] = ()
    """The columns that rows are sorted by."""

    @property
    def qualified_name(self) -> str:
        """`database.name`."""
        return f"{self.database}.{self.name}"

    def replace(self, rows: pa.Table, *, partitions: Sequence[str] = (), run_id: str) -> None:
        """Replace these partitions, or all rows if there is no partition column, by `rows`.

        Partitions are named by texts, which ClickHouse casts to the column's type; one that has no
        rows becomes empty. Makes the table, and the columns that it lacks. Idempotent, and may be
        interrupted. Raises SchemaError for rows that do not fit the table or are in none
        of the partitions, and IscpError.
        """
        rows = widen_types(rows)
        with self.endpoint.translate_errors(f"write {self.qualified_name}"):
            self._check_table()
            types = derive_column_types(rows, self._read_column_types())
            self._check_columns(types)
            self._ensure_table(types)
            with self._stage_rows(rows, types, run_id) as staged:
                if self.partition is None:
                    self._run_command(f"EXCHANGE TABLES {staged} AND {self._quote_name(self.name)}")
                else:
                    self._check_rows(staged, types[self.partition], partitions)
                    self._replace_partitions(staged, types[self.partition], partitions)

    def _quote_name(self, name: str) -> str:
        return quote_identifier(self.endpoint.resolve_database(self.database), name)

    def _run_command(self, statement: str, **settings: int) -> None:
        self.endpoint.get_client().command(statement, settings=settings)

    def _run_query(self, statement: str, **parameters: object) -> Sequence[Sequence[object]]:
        rows: Sequence[Sequence[object]]
        rows = self.endpoint.get_client().query(statement, parameters=parameters).result_rows
        return rows

    def load(self, partitions: Sequence[str] | None) -> pa.Table:
        """Return the rows of these partitions; None: all rows. Raises IscpError."""
        table, where = self._quote_name(self.name), ""
        with self.endpoint.translate_errors(f"read {table}"):
            if self.partition is not None and partitions is not None:
                column = quote_identifier(self.partition)
                # If the column is missing, the query fails.
                values = _render_partition_values(
                    self._read_column_types().get(self.partition, "String")
                )
                where = f" WHERE {column} IN (SELECT {values})"
            return self.endpoint.get_client().query_arrow(
                f"SELECT * FROM {table}{where}", parameters={"partitions": list(partitions or ())}
            )

    def _check_table(self) -> None:
        """Raise SchemaError for a view, and for a table partitioned by another column."""
        for engine, partition_key in self._run_query(
            "SELECT engine, partition_key FROM system.tables "
            "WHERE database = {database:String} AND name = {name:String}",
            database=self.endpoint.resolve_database(self.database),
            name=self.name,
        ):
            if not str(engine).endswith(ALL_ROWS):
                raise SchemaError(
                    f"Table {self.qualified_name} is a {engine}, which frames do not replace. Give "
                    "the "
                    "asset another key."
                )
            if self.partition is not None and partition_key not in {
                self.partition,
                quote_identifier(self.partition),
            }:
                raise SchemaError(
                    f"Table {self.qualified_name} is partitioned by {partition_key or 'nothing'}, "
                    "and its "
                    f"asset by {quote_identifier(self.partition)}. Drop the table and write all of "
                    "its partitions."
                )

    def _check_columns(self, types: Mapping[str, str]) -> None:
        required = [*filter(None, [self.partition]), *self.order_by]
        if missing := [name for name in required if name not in types]:
            raise SchemaError(
                f"Table {self.qualified_name}: the frame has no column {missing[0]!r}; it has: "
                f"{', '.join(types)}."
            )

    def _ensure_table(self, types: Mapping[str, str]) -> None:
        """Make the database and the table, or the columns that it lacks."""
        self._run_command(
            "CREATE DATABASE IF NOT EXISTS "
            f"{quote_identifier(self.endpoint.resolve_database(self.database))}"
        )
        table = self._quote_name(self.name)
        self._run_command(self._render_create_table(f"TABLE IF NOT EXISTS {table}", types))
        # A table replaced as a whole gets its columns in the swap.
        existing = types if self.partition is None else self._read_column_types()
        for name, type_ in types.items():
            if name not in existing:
                column = f"{quote_identifier(name)} {type_}"
                self._run_command(f"ALTER TABLE {table} ADD COLUMN IF NOT EXISTS {column}")
            elif existing[name] != type_:
                raise SchemaError(
                    f"Table {self.qualified_name}: column {name!r} is {existing[name]} and the "
                    "frame's is "
                    f"{type_}. Cast the frame's, or drop the table and write all of its partitions."
                )

    def _read_column_types(self) -> dict[str, str]:
        """The table's columns and their types; empty if there is no table."""
        columns = self._run_query(
            "SELECT name, type FROM system.columns "
            "WHERE database = {database:String} AND table = {name:String} ORDER BY position",
            database=self.endpoint.resolve_database(self.database),
            name=self.name,
        )
        return {str(name): str(type_) for name, type_ in columns}

    def _render_create_table(self, table: str, types: Mapping[str, str]) -> str:
        columns = ", ".join(f"{quote_identifier(name)} {type_}" for name, type_ in types.items())
        partition_by = f"PARTITION BY {quote_identifier(self.partition)} " if self.partition else ""
        order = ", ".join(map(quote_identifier, self.order_by))
        return (
            f"CREATE {table} ({columns}) ENGINE = {ALL_ROWS} {partition_by}ORDER BY ({order}) "
            "SETTINGS allow_nullable_key = 1"
        )

    @contextmanager
    def _stage_rows(self, rows: pa.Table, types: Mapping[str, str], run_id: str) -> Iterator[str]:
        """Yield the name of a table that has the rows until the block ends."""
        self._drop_leftovers()
        name = f"{self.name}{STAGED}{make_attempt_id(run_id)}"
        staged = self._quote_name(name)
        if self.partition is None:
            self._run_command(self._render_create_table(f"TABLE {staged}", types))
        else:
            self._run_command(f"CREATE TABLE {staged} AS {self._quote_name(self.name)}")
        try:
            if rows.num_rows:
                # Columns without values get their default; a name with a dot is quoted here.
                rows = rows.select([field.name for field in rows.schema if field.type != pa.null()])
                settings = {"max_partitions_per_insert_block": 0}
                self.endpoint.get_client().insert_arrow(staged, rows, settings=settings)
            yield staged
        finally:
            self._run_command(f"DROP TABLE IF EXISTS {staged} SYNC")

    def _drop_leftovers(self) -> None:
        leftovers = self._run_query(
            "SELECT name FROM system.tables WHERE database = {database:String} AND "
            "startsWith(name, {head:String}) AND "
            "metadata_modification_time < now() - toIntervalHour({hours:Int32})",
            database=self.endpoint.resolve_database(self.database),
            head=f"{self.name}{STAGED}",
            hours=LEFT_OVER_HOURS,
        )
        for (name,) in leftovers:
            self._run_command(f"DROP TABLE IF EXISTS {self._quote_name(str(name))} SYNC")

    def _check_rows(self, staged: str, type_: str, partitions: Sequence[str]) -> None:
        column = quote_identifier(str(self.partition))
        strays = self._run_query(
            f"SELECT toString({column}) FROM {staged} WHERE {column} IS NULL OR {column} NOT IN "
            f"(SELECT {_render_partition_values(type_)}) LIMIT 1",
            partitions=list(partitions),
        )
        for (value,) in strays:
            raise SchemaError(
                f"Table {self.qualified_name}: a row has {value!r} in its partition column "
                f"{self.partition!r}, and the run writes {', '.join(map(repr, partitions))}. Leave "
                "out the rows of other partitions."
            )

    def _replace_partitions(self, staged: str, type_: str, partitions: Sequence[str]) -> None:
        ids = self._run_query(
            f"SELECT partitionId({_render_partition_values(type_)})",
            partitions=sorted(partitions),
        )
        for (partition_id,) in ids:
            self._run_command(
                f"ALTER TABLE {self._quote_name(self.name)} REPLACE PARTITION ID "
                f"{quote_string(str(partition_id))} FROM {staged}",
                allow_replace_partition_from_empty_source=1,
            )


def _render_partition_values(type_: str) -> str:
    """Return the expression of the values whose texts are in the parameter `partitions`."""
    return f"CAST(arrayJoin({{partitions:Array(String)}}) AS {type_})"
