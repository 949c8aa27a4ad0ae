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

from iscp_dagster.clickhouse.connect.barrier import shown
from iscp_dagster.clickhouse.connect.endpoint import Endpoint
from iscp_dagster.clickhouse.connect.failures import OvertakenError, RefusedRowsError
from iscp_dagster.clickhouse.connect.quoting import ident
from iscp_dagster.clickhouse.types.shown import row_shown
from iscp_dagster.clickhouse.write.chunks import digest, pieces
from iscp_dagster.clickhouse.write.fitting import fitted, fitting_keys
from iscp_dagster.clickhouse.write.inserts import insert, patiently
from iscp_dagster.clickhouse.write.letters import DeadLetters, Refusal, tenant_of
from iscp_dagster.clickhouse.write.placement import Placement
from iscp_dagster.clickhouse.write.targets import Target
from iscp_dagster.clickhouse.write.tenantwise import halved, named
from iscp_dagster.clickhouse.write.tokens import chunk_token
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


TENANTS_OWN = (
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

    owners: frozenset[str]
    number: int


@dataclass(frozen=True, kw_only=True)
class IndexConsumer:
    """Writes rows to `target`: one insert for each piece of a chunk, under a token.

    The same rows written again are dropped by the token, or replaced by key. Picklable, so that
    Spark can ship it.
    """

    endpoint: Endpoint
    target: Target
    placement: Placement | None = None
    """Selects the rows that are the target's; None: all."""
    sleep: Callable[[float], None] = time.sleep

    def mine(self, rows: pa.Table) -> pa.Table:
        """Return the scan's rows that are the target's. Raises IscpError."""
        placement = self.placement
        return rows if placement is None else patiently(lambda: placement.mine(rows), self.sleep)

    def consume(self, retriever: DataRetriever) -> None:
        """Write all chunks. Raises IscpError if rows do not fit or ClickHouse refuses them."""
        numbers = Counter[frozenset[str]]()
        while (chunk := retriever.marked()) is not None:
            owners = self._owners(retriever, chunk)
            place = _ChunkName(owners, numbers[owners])
            write = partial(self._write, retriever, place)
            refusals: list[Refusal] = []
            # Chunks for staging already have a good size.
            staged = retriever.data_type is DataType.SNAPSHOT
            for start, rows in [(0, chunk)] if staged else pieces(chunk):
                refusals += self._written(retriever, write, rows, start)
            self._bury(retriever, write, refusals, place.number)
            numbers[owners] += 1

    def _owners(self, retriever: DataRetriever, chunk: pa.Table) -> frozenset[str]:
        """Return the tenants that the chunk's tokens name: without a key, only the rows' own.

        So its tokens stay the same, whatever other tenants take part.
        """
        column, staged = self.target.tenant, retriever.data_type is DataType.SNAPSHOT
        if self.target.keys or staged or column is None:
            return retriever.tenants
        return frozenset(pc.unique(named(chunk, column)).to_pylist())

    def _written(
        self, retriever: DataRetriever, write: Write, rows: pa.Table, start: int
    ) -> list[Refusal]:
        """Write the rows; return those that are refused, if the index sets them aside.

        Each of several tenants is stopped by its own rows only. A chunk of several tenants has a
        key: without one, parts of it would be repeated under other tokens.
        """

        def act(some: pa.Table) -> list[Refusal]:
            if self.target.buries:
                return list(isolated(write, some, start))
            write(some, start)
            return []

        def alone(some: pa.Table) -> list[Refusal]:
            if self.target.buries:
                return act(some)
            self._write_or_stop(write, some, start)
            return []

        column = self.target.tenant
        if column is None or len(retriever.tenants) == 1:
            return alone(rows)
        found, wrong = halved(rows, column, act, TENANTS_OWN, alone)
        for tenant, error in wrong.items():
            retriever.refuse(tenant, error)
        return [each for some in found for each in some]

    def _write_or_stop(self, write: Write, rows: pa.Table, start: int) -> None:
        """Write the rows; if ClickHouse refuses one, find out which it is.

        A refused delete need not be stored: the rows under its key are deleted instead. Without a
        key this does not search: it would repeat parts of the chunk under other tokens.
        """
        try:
            write(rows, start)
        except RefusedRowsError:
            gone = []
            for refused in isolated(write, rows, start) if self.target.keys else ():
                if not refused.row[self.target.deleted][0].as_py():
                    raise _stopped(self.target, refused) from None
                gone.append(refused.row)
            if not gone:
                raise
            self._delete_earlier(pa.concat_tables(gone))

    def _write(
        self, retriever: DataRetriever, place: _ChunkName, rows: pa.Table, start: int
    ) -> None:
        try:
            fit = fitted(self.target, rows)
        except pa.ArrowException as error:
            name = self.target.name
            raise SchemaError(f"{name}: Arrow cannot shape the rows: {error}") from error
        if fit.num_rows:
            token = self._token(retriever, place, fit, start)
            if inserted(self.endpoint, self.target, fit, token, self.sleep):
                retriever.sent_again()

    def _bury(
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
            retriever.sent_again()
        live = [each for each in refusals if not each.row[target.deleted][0].as_py()]
        retriever.set_aside(Counter(tenant_of(each.row, target) for each in live))
        if retriever.data_type is DataType.TAIL:
            self._take_back(write, pa.concat_tables([each.row for each in refusals]))

    def _take_back(self, write: Write, rows: pa.Table) -> None:
        """Stop serving earlier versions of the rows with these keys; later ones stay.

        The rows are inserted as deleted. If the table refuses even that, earlier versions are
        deleted, for which ClickHouse goes through every part of the table.
        """
        if not self.target.keys:
            return
        try:
            write(_as_deleted(rows, self.target.identity), 0)
        except (RefusedRowsError, SchemaError):
            self._delete_earlier(rows)

    def _delete_earlier(self, rows: pa.Table) -> None:
        """Delete earlier versions of the rows with these keys; later ones stay."""
        for each in pc.unique(rows[VERSION]).to_pylist():
            self._delete(rows.filter(pc.equal(rows[VERSION], each)), each)

    def _delete(self, rows: pa.Table, before: int) -> None:
        target = self.target
        held = fitting_keys(target, rows.select([*target.identity]).drop_null())
        keys = [tuple(each.values()) for each in held.to_pylist()]
        if not target.keys or not keys:
            return
        names, types = ", ".join(map(ident, target.identity)), ", ".join(target.identity.values())
        statement = (
            f"DELETE FROM {ident(target.database, target.table)} "
            f"WHERE ({names},) IN {{keys:Array(Tuple({types}))}} "
            f"AND {ident(VERSION)} < {{before:UInt64}}"
        )

        def delete() -> None:
            with self.endpoint.errors(f"delete from {target.database}.{target.table}"):
                self.endpoint.client().command(
                    statement,
                    parameters={"keys": keys, "before": before},
                    settings={
                        "lightweight_deletes_sync": 2,
                        **shown(target.database, target.table, target.epochs.rows),
                    },
                )

        patiently(delete, self.sleep)

    def _token(
        self, retriever: DataRetriever, place: _ChunkName, rows: pa.Table, start: int
    ) -> str:
        """Return the piece's token; without one ClickHouse would drop a chunk equal to another.

        The start is part of it, as pieces of one chunk may be equal. Staged rows are never written
        again under the same build, so their place is enough.
        """
        staged = retriever.data_type is DataType.SNAPSHOT
        content = "" if staged else digest(rows)
        return chunk_token(
            min(retriever.registrations[tenant] for tenant in place.owners),
            place.owners,
            retriever.range,
            partition_no=retriever.task,
            chunk_no=place.number,
            content_digest=f"{content}@{start}" if start else content,
            build=retriever.build,
        )


def _as_deleted(rows: pa.Table, identity: Collection[str]) -> pa.Table:
    """Return the rows that have a key, marked as deleted."""
    for column in identity:
        rows = rows.filter(pc.is_valid(rows[column]))
    place, marks = rows.schema.get_field_index(DELETED), rows[DELETED].type
    gone = pa.repeat(pa.scalar(1).cast(marks), rows.num_rows)
    return rows.set_column(place, rows.schema.field(place), gone)


def inserted(
    endpoint: Endpoint,
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


def isolated(write: Write, rows: pa.Table, start: int = 0) -> Iterator[Refusal]:
    """Write the rows, except those that are refused: find these by halving, and yield them.

    Raises TooManyRefusedError once there are more than a person could look at.
    """
    waiting, found = [(rows, start)], 0
    while waiting:
        some, at = waiting.pop()
        try:
            write(some, at)
        except (KeyColumnError, SchemaError, RefusedRowsError) as error:
            if some.num_rows > 1:
                half = some.num_rows // 2
                waiting += [(some.slice(half), at + half), (some.slice(0, half), at)]
                continue
            found += 1
            if found > MOST_REFUSED:
                raise TooManyRefusedError(
                    f"More than {MOST_REFUSED} rows of one chunk were refused, the last because: "
                    f"{error} Correct the source or the index's types; no more rows are set aside."
                ) from error
            yield Refusal(row=some, error=error)


def _stopped(target: Target, refusal: Refusal) -> IscpError:
    """Return the error that stops the job; it names the row."""
    error = refusal.error
    if not isinstance(error, RefusedRowsError):
        return error
    key = row_shown(refusal.row.select(list(target.keys or target.columns)))
    return RefusedRowsError(f"{target.name}: row {key} is refused. {error}")
