"""Inserts that are promised: whole, durable, once a token, and sent again until that is certain."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache
from threading import Lock
from typing import Any, TypeVar

import pyarrow as pa
from tenacity import RetryCallState, Retrying, retry_if_exception, wait_exponential

from iscp_dagster.clickhouse.connect.barrier import shown
from iscp_dagster.clickhouse.connect.endpoint import Endpoint, shared_client
from iscp_dagster.clickhouse.connect.failures import TooManyPartsError
from iscp_dagster.model.errors import FeedGoneError, FenceError, IscpError

EXACTLY = {
    "max_partitions_per_insert_block": 0,
    "async_insert": 0,
    "wait_end_of_query": 1,
    "insert_deduplicate": 1,
    "deduplicate_insert": "enable",
    "input_format_null_as_default": 0,
    "input_format_try_infer_dates": 0,
    "input_format_try_infer_datetimes": 0,
}
"""One insert a chunk, in which values stay what they are, answered when it has ended, and dropped
when its token is known: whatever the user's profile says."""
_SINCE_26 = "deduplicate_insert"
"""Goes before `insert_deduplicate` where a server knows it; an older one refuses the name."""

ATTEMPTS = 4
FIRST_WAIT = 0.5
"""Seconds before the second attempt of a chunk; doubled for each further one."""
MERGING_ATTEMPTS = 8
"""Where ClickHouse has to merge parts first: a minute."""

T = TypeVar("T")


class UnconfirmedError(IscpError):
    """ClickHouse confirms fewer rows than were sent."""

    code = 1_430


@lru_cache(maxsize=64)
def _turn(server: str) -> Lock:
    """A task's consumers insert in turn: side by side they are slower, and ClickHouse holds more.

    Each server for itself, so that one which hangs holds up nobody else's.
    """
    del server
    return Lock()


def insert(
    endpoint: Endpoint,
    database: str,
    table: str,
    rows: pa.Table,
    *,
    token: str,
    name: str,
    epoch: int = 0,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Insert the rows once a token, and again where ClickHouse does not say that they are there.

    `name` is what a message calls them, `epoch` what they show to the table's barrier. True where
    they were sent again: an earlier attempt may land yet, once the token is forgotten. Raises
    IscpError, UnconfirmedError where fewer rows are confirmed than were sent.
    """
    sent = 0

    def attempt() -> None:
        nonlocal sent
        sent += 1
        with _turn(endpoint.server), endpoint.errors(f"insert into {database}.{table}"):
            client = endpoint.client()
            settings = _settings(endpoint) | endpoint.insert_settings
            settings |= shown(database, table, epoch)
            settings["insert_deduplication_token"] = token
            told = client.insert_arrow(table, rows, database=database, settings=settings)
        # Rows that a token drops are counted too, and those of materialized views beside.
        if told.written_rows < rows.num_rows:
            raise UnconfirmedError(
                f"{name}: {rows.num_rows} rows were sent to {database}.{table}, and ClickHouse "
                f"confirms {told.written_rows}; the chunk is sent again."
            )

    patiently(attempt, sleep)
    return sent > 1


@lru_cache(maxsize=64)
def _settings(endpoint: Endpoint) -> dict[str, Any]:
    # The client's own list of what the server knows may be cut short by the user's profile.
    query = "SELECT count() FROM system.settings WHERE name = {name:String}"
    ((known,),) = endpoint.client().query(query, {"name": _SINCE_26}).result_rows
    return {name: value for name, value in EXACTLY.items() if known or name != _SINCE_26}


def patiently(ask: Callable[[], T], sleep: Callable[[float], None]) -> T:
    """Ask ClickHouse, and again a few times, with a new client, where that may help."""
    return Retrying(
        retry=retry_if_exception(_passes),
        stop=_given_up,
        wait=wait_exponential(FIRST_WAIT),
        before_sleep=lambda _: shared_client.cache_clear(),
        sleep=sleep,
        reraise=True,
    )(ask)


def _given_up(state: RetryCallState) -> bool:
    error = state.outcome.exception() if state.outcome else None
    merging = isinstance(error, TooManyPartsError)
    return state.attempt_number >= (MERGING_ATTEMPTS if merging else ATTEMPTS)


def _passes(error: BaseException) -> bool:
    if isinstance(error, FeedGoneError | FenceError):
        return False
    return isinstance(error, IscpError) and not error.permanent
