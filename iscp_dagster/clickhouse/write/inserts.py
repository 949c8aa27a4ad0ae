"""Reliable inserts: whole, durable, once per token, and sent again if not confirmed."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
from tenacity import RetryCallState, Retrying, retry_if_exception, wait_exponential

from iscp_dagster.clickhouse.connect.barrier import build_epoch_settings
from iscp_dagster.clickhouse.connect.endpoint import ClickHouseEndpoint, get_shared_client
from iscp_dagster.clickhouse.connect.failures import TooManyPartsError
from iscp_dagster.clickhouse.connect.quoting import quote_identifier
from iscp_dagster.model.errors import FeedGoneError, FenceError, IscpError

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client
    from clickhouse_connect.driver.summary import QuerySummary

INSERT_SETTINGS = {
    "max_partitions_per_insert_block": 0,
    "async_insert": 0,
    "wait_end_of_query": 1,
    "insert_deduplicate": 1,
    "deduplicate_insert": "enable",
    "input_format_null_as_default": 0,
    "input_format_try_infer_dates": 0,
    "input_format_try_infer_datetimes": 0,
}
"""Whatever the user's profile says: a chunk is one insert, its values stay unchanged, the answer
comes when it has ended, and it is dropped if its token is known."""
_SINCE_26 = "deduplicate_insert"
"""Overrides `insert_deduplicate` on servers that know it; older ones refuse the name."""

ATTEMPTS = 4
FIRST_WAIT = 0.5
"""Seconds before the second attempt of a chunk; doubled for each further one."""
MOST_NAME_BYTES = 16_000
"""Most bytes of column names in a statement in the URL, where each may take three."""
MERGING_ATTEMPTS = 8
"""Attempts while ClickHouse has to merge parts first: about a minute in all."""

T = TypeVar("T")


class UnconfirmedError(IscpError):
    """ClickHouse confirms fewer rows than were sent."""

    code = 1_430


@lru_cache(maxsize=64)
def _get_insert_lock(server: str) -> Lock:
    """Make a task's consumers insert in turn: in parallel they are slower and hold more memory.

    Each server has its own lock, so that one which hangs delays no others.
    """
    del server
    return Lock()


def insert(
    endpoint: ClickHouseEndpoint,
    database: str,
    table: str,
    rows: pa.Table,
    *,
    token: str,
    name: str,
    epoch: int = 0,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Insert the rows once per token; send them again if ClickHouse does not confirm them.

    Messages call them `name`; `epoch` is what they show to the table's barrier. Returns True if
    they were sent again: an earlier attempt may still land, once the token is forgotten. Raises
    IscpError, UnconfirmedError if fewer rows are confirmed than were sent.
    """
    sent = 0

    def attempt() -> None:
        nonlocal sent
        sent += 1
        with (
            _get_insert_lock(endpoint.server),
            endpoint.translate_errors(f"insert into {database}.{table}"),
        ):
            client = endpoint.get_client()
            settings = _read_insert_settings(endpoint) | endpoint.insert_settings
            settings |= build_epoch_settings(database, table, epoch)
            settings["insert_deduplication_token"] = token
            summary = _send_rows(client, database, table, rows, settings)
        # The count includes rows that a token drops, and those of materialized views.
        if summary.written_rows < rows.num_rows:
            raise UnconfirmedError(
                f"{name}: {rows.num_rows} rows were sent to {database}.{table}, but ClickHouse "
                f"confirms {summary.written_rows}; the chunk is sent again."
            )

    call_with_retries(attempt, sleep)
    return sent > 1


def _send_rows(
    client: Client, database: str, table: str, rows: pa.Table, settings: dict[str, Any]
) -> QuerySummary:
    if sum(len(name.encode()) for name in rows.schema.names) <= MOST_NAME_BYTES:
        return client.insert_arrow(table, rows, database=database, settings=settings)
    file = pa.BufferOutputStream()
    with pa.ipc.new_file(file, rows.schema) as writer:
        writer.write_table(rows)
    # The client puts the statement before bytes, and into the URL beside anything else.
    data, into = (
        file.getvalue().to_pybytes(),
        f"{quote_identifier(database)}.{quote_identifier(table)}",
    )
    return client.raw_insert(into, rows.schema.names, data, settings, "Arrow")


@lru_cache(maxsize=64)
def _read_insert_settings(endpoint: ClickHouseEndpoint) -> dict[str, Any]:
    # The user's profile may truncate the client's own list of server settings.
    query = "SELECT count() FROM system.settings WHERE name = {name:String}"
    ((supported,),) = endpoint.get_client().query(query, {"name": _SINCE_26}).result_rows
    return {
        name: value for name, value in INSERT_SETTINGS.items() if supported or name != _SINCE_26
    }


def call_with_retries(call: Callable[[], T], sleep: Callable[[float], None]) -> T:
    """Call ClickHouse; after a temporary error, retry a few times with a new client."""
    return Retrying(
        retry=retry_if_exception(_is_temporary),
        stop=_should_give_up,
        wait=wait_exponential(FIRST_WAIT),
        before_sleep=lambda _: get_shared_client.cache_clear(),
        sleep=sleep,
        reraise=True,
    )(call)


def _should_give_up(state: RetryCallState) -> bool:
    error = state.outcome.exception() if state.outcome else None
    merging = isinstance(error, TooManyPartsError)
    return state.attempt_number >= (MERGING_ATTEMPTS if merging else ATTEMPTS)


def _is_temporary(error: BaseException) -> bool:
    if isinstance(error, FeedGoneError | FenceError):
        return False
    return isinstance(error, IscpError) and not error.permanent
