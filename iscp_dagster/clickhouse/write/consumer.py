"""The consumer that keeps an index table; it runs in Spark's executors, where the rows are.

It imports neither dagster nor pyspark.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from iscp_dagster.clickhouse.connect.barrier import build_epoch_settings
from iscp_dagster.clickhouse.connect.endpoint import ClickHouseEndpoint
from iscp_dagster.clickhouse.connect.failures import OvertakenError, RefusedRowsError
from iscp_dagster.clickhouse.connect.quoting import quote_identifier
from iscp_dagster.clickhouse.types.formatting import format_row
from iscp_dagster.clickhouse.write.chunks import cut_pieces, hash_rows
from iscp_dagster.clickhouse.write.conversion import fit_keys, fit_rows
from iscp_dagster.clickhouse.write.inserts import call_with_retries, insert
from iscp_dagster.clickhouse.write.letters import DeadLetters, Refusal, get_tenant
from iscp_dagster.clickhouse.write.shard_selection import ShardSelector
from iscp_dagster.clickhouse.write.targets import Target
from iscp_dagster.clickhouse.write.tenant_split import bisect_tenants, get_row_tenants
from iscp_dagster.clickhouse.write.tokens import make_chunk_token
from iscp_dagster.model.consumers.protocol import DataRetriever, DataType
from iscp_dagster.model.declared.schema import DELETED, VERSION
from iscp_dagster.model.errors import IscpError, KeyColumnError, SchemaError

Write = Callable[[pa.Table, int], None]
"""Writes a piece of a chunk, given the number of its first row; raises if it is refused."""


MOST_REFUSED = 1_000
"""Rows of one chunk that become dead letters."""


class TooManyRefusedError(IscpError):
    """So many rows of one chunk were refused that the cause must lie elsewhere."""

    code = 10_440


TENANT_ERRORS = (
    KeyColumnError,
    SchemaError,
    RefusedRowsError,
    TooManyRefusedError,
    OvertakenError,
)
"""Errors that stop only the tenant whose rows caused them."""


@dataclass(frozen=True)
class _ChunkName:
    """The tenants that a chunk's tokens name, and how many of their chunks came before it."""

    tenants: frozenset[str]
    number: int


@dataclass(frozen=True, kw_only=True)
class IndexConsumer:
    """Writes rows to `target`: one insert for each piece of a chunk, under a token.

    The same rows written again are dropped by the token, or replaced by key. Picklable, so that
    Spark can ship it.
    """

    endpoint: ClickHouseEndpoint
    target: Target
    placement: ShardSelector | None = None
    """Selects the rows that are the target's; None: all."""
    sleep: Callable[[float], None] = time.sleep

    def select_rows(self, rows: pa.Table) -> pa.Table:
        """Return the scan's rows that are the target's. Raises IscpError."""
        placement = self.placement
        return (
            rows
            if placement is None
            else call_with_retries(lambda: placement.select_rows(rows), self.sleep)
        )

    def consume(self, retriever: DataRetriever) -> None:
        """Write all chunks. Raises IscpError if rows do not fit or ClickHouse refuses them."""
        numbers = Counter[frozenset[str]]()
        while (chunk := retriever.read_marked_rows()) is not None:
            tenants = self._list_token_tenants(retriever, chunk)
            chunk_name = _ChunkName(tenants, numbers[tenants])
            write = partial(self._write_piece, retriever, chunk_name)
            refusals: list[Refusal] = []
            # Chunks for staging already have a good size.
            staged = retriever.data_type is DataType.SNAPSHOT
            for start, rows in [(0, chunk)] if staged else cut_pieces(chunk):
                refusals += self._write_rows(retriever, write, rows, start)
            self._write_dead_letters(retriever, write, refusals, chunk_name.number)
            numbers[tenants] += 1

    def _list_token_tenants(self, retriever: DataRetriever, chunk: pa.Table) -> frozenset[str]:
        """Return the tenants that the chunk's tokens name: without a key, only the rows' own.

        So its tokens stay the same, whatever other tenants take part.
        """
        column, staged = self.target.tenant, retriever.data_type is DataType.SNAPSHOT
        if self.target.keys or staged or column is None:
            return retriever.tenants
        return frozenset(pc.unique(get_row_tenants(chunk, column)).to_pylist())

    def _write_rows(
        self, retriever: DataRetriever, write: Write, rows: pa.Table, start: int
    ) -> list[Refusal]:
        """Write the rows; return the refused ones, if the index sets them aside.

        Each of several tenants is stopped by its own rows only. A chunk of several tenants has a
        key: without one, parts of it would be repeated under other tokens.
        """

        def write_some(part: pa.Table) -> list[Refusal]:
            if self.target.keeps_dead_letters:
                return list(write_and_yield_refusals(write, part, start))
            write(part, start)
            return []

        def write_alone(part: pa.Table) -> list[Refusal]:
            if self.target.keeps_dead_letters:
                return write_some(part)
            self._write_or_stop(write, part, start)
            return []

        column = self.target.tenant
        if column is None or len(retriever.tenants) == 1:
            return write_alone(rows)
        refusals, errors = bisect_tenants(rows, column, write_some, TENANT_ERRORS, write_alone)
        for tenant, error in errors.items():
            retriever.refuse(tenant, error)
        return [refusal for part in refusals for refusal in part]

    def _write_or_stop(self, write: Write, rows: pa.Table, start: int) -> None:
        """Write the rows; if ClickHouse refuses one, find out which it is.

        A refused delete need not be stored: the rows under its key are deleted instead. Without a
        key this does not search: it would repeat parts of the chunk under other tokens.
        """
        try:
            write(rows, start)
        except RefusedRowsError:
            deleted = []
            for refused in write_and_yield_refusals(write, rows, start) if self.target.keys else ():
                if not refused.row[self.target.deleted_column][0].as_py():
                    raise _make_stop_error(self.target, refused) from None
                deleted.append(refused.row)
            if not deleted:
                raise
            self._delete_earlier_rows(pa.concat_tables(deleted))

    def _write_piece(
        self, retriever: DataRetriever, chunk_name: _ChunkName, rows: pa.Table, start: int
    ) -> None:
        try:
            fit = fit_rows(self.target, rows)
        except pa.ArrowException as error:
            name = self.target.name
            raise SchemaError(f"{name}: Arrow cannot shape the rows: {error}") from error
        if fit.num_rows:
            token = self._make_token(retriever, chunk_name, fit, start)
            if insert_fitted_rows(self.endpoint, self.target, fit, token, self.sleep):
                retriever.report_resend()

    def _write_dead_letters(
        self, retriever: DataRetriever, write: Write, refusals: Sequence[Refusal], number: int
    ) -> None:
        """Write dead letters for the refused rows, and stop serving older rows of their keys."""
        if not refusals:
            return
        target = self.target
        letters = DeadLetters(endpoint=self.endpoint, database=target.database, sleep=self.sleep)
        if letters.write(
            target,
            refusals,
            registrations=retriever.registrations,
            range_=retriever.range,
            task=retriever.task,
            chunk=number,
        ):
            retriever.report_resend()
        live = [
            refusal for refusal in refusals if not refusal.row[target.deleted_column][0].as_py()
        ]
        retriever.set_aside(Counter(get_tenant(refusal.row, target) for refusal in live))
        if retriever.data_type is DataType.TAIL:
            self._stop_serving(write, pa.concat_tables([refusal.row for refusal in refusals]))

    def _stop_serving(self, write: Write, rows: pa.Table) -> None:
        """Stop serving earlier versions of the rows with these keys; later ones stay.

        The rows are inserted as deleted. If the table refuses even that, earlier versions are
        deleted, for which ClickHouse goes through every part of the table.
        """
        if not self.target.keys:
            return
        try:
            write(_mark_deleted(rows, self.target.identity), 0)
        except (RefusedRowsError, SchemaError):
            self._delete_earlier_rows(rows)

    def _delete_earlier_rows(self, rows: pa.Table) -> None:
        """Delete earlier versions of the rows with these keys; later ones stay."""
        for version in pc.unique(rows[VERSION]).to_pylist():
            self._delete_keys(rows.filter(pc.equal(rows[VERSION], version)), version)

    def _delete_keys(self, rows: pa.Table, before: int) -> None:
        target = self.target
        key_rows = fit_keys(target, rows.select([*target.identity]).drop_null())
        keys = [tuple(row.values()) for row in key_rows.to_pylist()]
        if not target.keys or not keys:
            return
        names, types = (
            ", ".join(map(quote_identifier, target.identity)),
            ", ".join(target.identity.values()),
        )
        statement = (
            f"DELETE FROM {quote_identifier(target.database, target.table)} "
            f"WHERE ({names},) IN {{keys:Array(Tuple({types}))}} "
            f"AND {quote_identifier(VERSION)} < {{before:UInt64}}"
        )

        def delete() -> None:
            with self.endpoint.translate_errors(f"delete from {target.database}.{target.table}"):
                self.endpoint.get_client().command(
                    statement,
                    parameters={"keys": keys, "before": before},
                    settings={
                        "lightweight_deletes_sync": 2,
                        **build_epoch_settings(target.database, target.table, target.epochs.rows),
                    },
                )

        call_with_retries(delete, self.sleep)

    def _make_token(
        self, retriever: DataRetriever, chunk_name: _ChunkName, rows: pa.Table, start: int
    ) -> str:
        """Return the piece's token.

        It names the piece's place, since ClickHouse would drop a chunk equal to another. The start
        is part of it, as pieces of one chunk may be equal. Staged rows are never written again
        under the same build, so their place is enough.
        """
        staged = retriever.data_type is DataType.SNAPSHOT
        content = "" if staged else hash_rows(rows)
        return make_chunk_token(
            min(retriever.registrations[tenant] for tenant in chunk_name.tenants),
            chunk_name.tenants,
            retriever.range,
            task_no=retriever.task,
            chunk_no=chunk_name.number,
            content_digest=f"{content}@{start}" if start else content,
            build=retriever.batch_name,
        )


def _mark_deleted(rows: pa.Table, identity: Collection[str]) -> pa.Table:
    """Return the rows that have a key, marked as deleted."""
    for column in identity:
        rows = rows.filter(pc.is_valid(rows[column]))
    index, flag_type = rows.schema.get_field_index(DELETED), rows[DELETED].type
    deleted = pa.repeat(pa.scalar(1).cast(flag_type), rows.num_rows)
    return rows.set_column(index, rows.schema.field(index), deleted)


def insert_fitted_rows(
    endpoint: ClickHouseEndpoint,
    target: Target,
    rows: pa.Table,
    token: str,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Insert fitted rows once per token; see `insert`. Every attempt sends the same rows."""
    return insert(
        endpoint,
        target.database,
        target.table,
        rows,
        token=token,
        name=target.name,
        epoch=target.epochs.rows,
        sleep=sleep,
    )


def write_and_yield_refusals(write: Write, rows: pa.Table, start: int = 0) -> Iterator[Refusal]:
    """Write the rows; find the refused ones by halving, and yield them.

    Raises TooManyRefusedError once there are more than a person could look at.
    """
    waiting, count = [(rows, start)], 0
    while waiting:
        part, at = waiting.pop()
        try:
            write(part, at)
        except (KeyColumnError, SchemaError, RefusedRowsError) as error:
            if part.num_rows > 1:
                half = part.num_rows // 2
                waiting += [(part.slice(half), at + half), (part.slice(0, half), at)]
                continue
            count += 1
            if count > MOST_REFUSED:
                raise TooManyRefusedError(
                    f"More than {MOST_REFUSED} rows of one chunk were refused, the last because: "
                    f"{error} Correct the source or the index's types; no more rows are set aside."
                ) from error
            yield Refusal(row=part, error=error)


def _make_stop_error(target: Target, refusal: Refusal) -> IscpError:
    """Return the error that stops the job; it names the row."""
    error = refusal.error
    if not isinstance(error, RefusedRowsError):
        return error
    key = format_row(refusal.row.select(list(target.keys or target.columns)))
    return RefusedRowsError(f"{target.name}: row {key} is refused. {error}")
