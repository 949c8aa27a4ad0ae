"""The consumer that keeps an index table; it runs in Spark's executors, where the rows are.

It imports neither dagster nor pyspark.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_exponential

from iscp_dagster.clickhouse.chunks import digest
from iscp_dagster.clickhouse.endpoint import Endpoint, shared_client
from iscp_dagster.clickhouse.fitting import fitted
from iscp_dagster.clickhouse.targets import Target
from iscp_dagster.core.consumers import DataRetriever, DataType
from iscp_dagster.core.errors import FeedGoneError, IscpError, SchemaError
from iscp_dagster.core.tokens import chunk_token

ATTEMPTS = 4
FIRST_WAIT = 0.5
"""Seconds before the second attempt of a chunk; doubled for each further one."""


@dataclass(frozen=True, kw_only=True)
class IndexConsumer:
    """Writes what comes to `target`: one insert a batch, changes under a token.

    Writing the same rows again is dropped by the token, or replaced by key. Picklable, so that
    Spark can ship it.
    """

    endpoint: Endpoint
    target: Target
    sleep: Callable[[float], None] = time.sleep

    def consume(self, retriever: DataRetriever) -> None:
        """Raises IscpError for rows that do not fit, and when ClickHouse does not take them."""
        number = 0
        while True:
            insert, delete, no_more = retriever.next()
            if no_more:
                return
            try:
                rows = fitted(self.target, self._joined(insert, delete))
            except pa.ArrowException as error:
                name = self.target.name
                raise SchemaError(f"{name}: Arrow cannot shape the rows: {error}") from error
            if rows.num_rows:
                self._insert(rows, self._token(retriever, rows, number))
            number += 1

    def _joined(self, insert: pa.RecordBatch | None, delete: pa.RecordBatch | None) -> pa.Table:
        marked = [
            pa.Table.from_batches([batch]).append_column(
                self.target.deleted, pa.repeat(pa.scalar(gone), batch.num_rows)
            )
            for batch, gone in ((insert, False), (delete, True))
            if batch is not None
        ]
        return pa.concat_tables(marked)

    def _token(self, retriever: DataRetriever, rows: pa.Table, number: int) -> str | None:
        """None for staged rows, which nothing deduplicates."""
        if retriever.data_type is DataType.SNAPSHOT:
            return None
        return chunk_token(
            retriever.job_id,
            retriever.tenants,
            retriever.range,
            partition_no=retriever.task,
            chunk_no=number,
            content_digest=digest(rows),
        )

    def _insert(self, rows: pa.Table, token: str | None) -> None:
        """Insert, every attempt the same chunk under the same token."""
        target = self.target
        settings: dict[str, Any] = {"max_partitions_per_insert_block": 0, "async_insert": 0}
        if token is not None:
            settings["insert_deduplication_token"] = token

        def insert() -> None:
            with self.endpoint.errors(f"insert into {target.database}.{target.table}"):
                self.endpoint.client().insert_arrow(
                    target.table, rows, database=target.database, settings=settings
                )

        patiently(insert, self.sleep)


def patiently(ask: Callable[[], None], sleep: Callable[[float], None]) -> None:
    """Ask ClickHouse, and again a few times, with a new client, where that may help."""
    Retrying(
        retry=retry_if_exception(_passes),
        stop=stop_after_attempt(ATTEMPTS),
        wait=wait_exponential(FIRST_WAIT),
        before_sleep=lambda _: shared_client.cache_clear(),
        sleep=sleep,
        reraise=True,
    )(ask)


def _passes(error: BaseException) -> bool:
    return isinstance(error, IscpError) and not error.permanent and error.code != FeedGoneError.code
