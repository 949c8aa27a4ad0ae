"""Tables of whole frames: their rows are replaced, all of them or partition by partition.

Rows are staged in a table that only the attempt knows, and then swapped: readers see the old rows
of a partition or the new ones, and an attempt that dies in the middle changes no partition that it
has not replaced. Again with the same rows it changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa

from iscp_dagster.clickhouse.connect.endpoint import Endpoint
from iscp_dagster.clickhouse.connect.engines import ALL_ROWS
from iscp_dagster.clickhouse.connect.quoting import ident, text
from iscp_dagster.clickhouse.tables.staging import new_attempt
from iscp_dagster.clickhouse.types.arrow import column_types, widen_types
from iscp_dagster.model.errors import SchemaError

STAGED = "__staged_"
LEFT_OVER_HOURS = 24
"""What was staged longer ago is left over from an attempt that died."""


@dataclass(frozen=True, kw_only=True)
class FrameTable:
    """A table `database.name` in one ClickHouse, whose rows come as frames."""

    endpoint: Endpoint
    database: str
    name: str
    partition: str | None = None
    """The column whose values are the partitions; None: the table is replaced as a whole."""
    order_by: tuple[str, ...] = ()
    """The columns that rows are sorted by."""

    @property
    def shown(self) -> str:
        """`database.name`."""
        return f"{self.database}.{self.name}"

    def replace(self, rows: pa.Table, *, partitions: Sequence[str] = (), run_id: str) -> None:
        """Replace these partitions, or without a partition column all rows, by `rows`.

        Partitions are named by texts, which ClickHouse casts to the column's type; one that has no
        rows becomes empty. Makes the table, and the columns that it lacks. Idempotent, and may be
        interrupted. Raises SchemaError for rows that the table or none of the partitions takes, and
        IscpError.
        """
        rows = widen_types(rows)
        with self.endpoint.errors(f"write {self.shown}"):
            self._check_table()
            types = column_types(rows, self._held())
            self._check_columns(types)
            self._ensure(types)
            with self._staged(rows, types, run_id) as staged:
                if self.partition is None:
                    self._command(f"EXCHANGE TABLES {staged} AND {self._named(self.name)}")
                else:
                    self._check_rows(staged, types[self.partition], partitions)
                    self._replace_partitions(staged, types[self.partition], partitions)

    def _named(self, name: str) -> str:
        return ident(self.endpoint.holds(self.database), name)

    def _command(self, statement: str, **settings: int) -> None:
        self.endpoint.client().command(statement, settings=settings)

    def _query(self, statement: str, **parameters: object) -> Sequence[Sequence[object]]:
        found: Sequence[Sequence[object]]
        found = self.endpoint.client().query(statement, parameters=parameters).result_rows
        return found

    def load(self, partitions: Sequence[str] | None) -> pa.Table:
        """The rows of these partitions, or without any all rows. Raises IscpError."""
        table, where = self._named(self.name), ""
        with self.endpoint.errors(f"read {table}"):
            if self.partition is not None and partitions is not None:
                of = ident(self.partition)
                # Without such a column it is the query that fails.
                values = _values_of(self._held().get(self.partition, "String"))
                where = f" WHERE {of} IN (SELECT {values})"
            return self.endpoint.client().query_arrow(
                f"SELECT * FROM {table}{where}", parameters={"partitions": list(partitions or ())}
            )

    def _check_table(self) -> None:
        """Raise SchemaError for a view, and for a table that is partitioned otherwise."""
        for engine, by in self._query(
            "SELECT engine, partition_key FROM system.tables "
            "WHERE database = {database:String} AND name = {name:String}",
            database=self.endpoint.holds(self.database),
            name=self.name,
        ):
            if not str(engine).endswith(ALL_ROWS):
                raise SchemaError(
                    f"Table {self.shown} is a {engine}, which frames do not replace. Give the "
                    "asset another key."
                )
            if self.partition is not None and by not in {self.partition, ident(self.partition)}:
                raise SchemaError(
                    f"Table {self.shown} is partitioned by {by or 'nothing'}, and its asset by "
                    f"{ident(self.partition)}. Drop the table and write all of its partitions."
                )

    def _check_columns(self, types: Mapping[str, str]) -> None:
        wanted = [*filter(None, [self.partition]), *self.order_by]
        if missing := [name for name in wanted if name not in types]:
            raise SchemaError(
                f"Table {self.shown}: the frame has no column {missing[0]!r}; it has: "
                f"{', '.join(types)}."
            )

    def _ensure(self, types: Mapping[str, str]) -> None:
        """Make the database and the table, or the columns that it lacks."""
        self._command(f"CREATE DATABASE IF NOT EXISTS {ident(self.endpoint.holds(self.database))}")
        table = self._named(self.name)
        self._command(self._create(f"TABLE IF NOT EXISTS {table}", types))
        # One that is replaced as a whole is swapped with its columns.
        held = types if self.partition is None else self._held()
        for name, type_ in types.items():
            if name not in held:
                column = f"{ident(name)} {type_}"
                self._command(f"ALTER TABLE {table} ADD COLUMN IF NOT EXISTS {column}")
            elif held[name] != type_:
                raise SchemaError(
                    f"Table {self.shown}: column {name!r} is {held[name]} and the frame's is "
                    f"{type_}. Cast the frame's, or drop the table and write all of its partitions."
                )

    def _held(self) -> dict[str, str]:
        """The table's columns and their types; none where there is no table."""
        found = self._query(
            "SELECT name, type FROM system.columns "
            "WHERE database = {database:String} AND table = {name:String} ORDER BY position",
            database=self.endpoint.holds(self.database),
            name=self.name,
        )
        return {str(name): str(type_) for name, type_ in found}

    def _create(self, table: str, types: Mapping[str, str]) -> str:
        columns = ", ".join(f"{ident(name)} {type_}" for name, type_ in types.items())
        by = f"PARTITION BY {ident(self.partition)} " if self.partition else ""
        order = ", ".join(map(ident, self.order_by))
        return (
            f"CREATE {table} ({columns}) ENGINE = {ALL_ROWS} {by}ORDER BY ({order}) "
            "SETTINGS allow_nullable_key = 1"
        )

    @contextmanager
    def _staged(self, rows: pa.Table, types: Mapping[str, str], run_id: str) -> Iterator[str]:
        """Give the name of a table that has the rows, for as long as the block lasts."""
        self._drop_left_over()
        name = f"{self.name}{STAGED}{new_attempt(run_id)}"
        staged = self._named(name)
        if self.partition is None:
            self._command(self._create(f"TABLE {staged}", types))
        else:
            self._command(f"CREATE TABLE {staged} AS {self._named(self.name)}")
        try:
            if rows.num_rows:
                # Those without a value are left to their default; a name with a dot is quoted here.
                rows = rows.select([each.name for each in rows.schema if each.type != pa.null()])
                settings = {"max_partitions_per_insert_block": 0}
                self.endpoint.client().insert_arrow(staged, rows, settings=settings)
            yield staged
        finally:
            self._command(f"DROP TABLE IF EXISTS {staged} SYNC")

    def _drop_left_over(self) -> None:
        found = self._query(
            "SELECT name FROM system.tables WHERE database = {database:String} AND "
            "startsWith(name, {head:String}) AND "
            "metadata_modification_time < now() - toIntervalHour({hours:Int32})",
            database=self.endpoint.holds(self.database),
            head=f"{self.name}{STAGED}",
            hours=LEFT_OVER_HOURS,
        )
        for (name,) in found:
            self._command(f"DROP TABLE IF EXISTS {self._named(str(name))} SYNC")

    def _check_rows(self, staged: str, type_: str, partitions: Sequence[str]) -> None:
        column = ident(str(self.partition))
        strange = self._query(
            f"SELECT toString({column}) FROM {staged} WHERE {column} IS NULL OR {column} NOT IN "
            f"(SELECT {_values_of(type_)}) LIMIT 1",
            partitions=list(partitions),
        )
        for (value,) in strange:
            raise SchemaError(
                f"Table {self.shown}: a row has {value!r} in its partition column "
                f"{self.partition!r}, and the run writes {', '.join(map(repr, partitions))}. Leave "
                "out the rows of other partitions."
            )

    def _replace_partitions(self, staged: str, type_: str, partitions: Sequence[str]) -> None:
        ids = self._query(
            f"SELECT partitionId({_values_of(type_)})",
            partitions=sorted(partitions),
        )
        for (each,) in ids:
            self._command(
                f"ALTER TABLE {self._named(self.name)} REPLACE PARTITION ID {text(str(each))} "
                f"FROM {staged}",
                allow_replace_partition_from_empty_source=1,
            )


def _values_of(type_: str) -> str:
    """The expression of the values that the parameter `partitions` names by texts."""
    return f"CAST(arrayJoin({{partitions:Array(String)}}) AS {type_})"
