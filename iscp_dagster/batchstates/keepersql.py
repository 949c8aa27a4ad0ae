"""The KeeperMap store's statements (ClickHouse doc: KeeperMap)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from iscp_dagster.batchstates.compare import compute_state_id, to_text
from iscp_dagster.batchstates.protocol import StateWrite
from iscp_dagster.clickhouse.connect.quoting import quote_identifier, quote_string
from iscp_dagster.model.errors import ConfigError
from iscp_dagster.model.portions import split_into_portions

TABLE = "iscp_states"
COLUMNS = ("state_id", "account_id", "table_id", "job_name", "job_id", "held")
ROW_FORMAT = "JSONCompactEachRow"
MOST_ROWS = 200
"""Rows per statement; one that fails is settled row by row."""
MOST_CHARACTERS = 60_000
"""States' length per statement; Keeper takes 1 MB in one, ClickHouse 128 KiB per parameter."""

RETRY_SETTINGS = {
    # Retry for about a second when Keeper fails; after that the next iteration retries.
    "keeper_max_retries": 4,
    "keeper_retry_initial_backoff_ms": 50,
    "keeper_retry_max_backoff_ms": 500,
    "insert_keeper_max_retries": 4,
    "insert_keeper_retry_initial_backoff_ms": 50,
    "insert_keeper_retry_max_backoff_ms": 500,
}

STRICT = {
    **RETRY_SETTINGS,
    # An INSERT creates and never overwrites; an UPDATE writes only over the version that it read.
    "keeper_map_strict_mode": 1,
    "async_insert": 0,
}


@dataclass(frozen=True, kw_only=True)
class KeeperStatements:
    """`table` quoted, and the statements that name it."""

    table: str
    path: str
    """The path in Keeper, quoted."""
    create_database: str
    """Makes the database; empty for `default`, which always exists."""
    create: str
    read_engine: str
    read: str
    update: str
    forget: str


def build_statements(database: str, path: str) -> KeeperStatements:
    """The statements for the table at the Keeper's `path`."""
    table = quote_identifier(database, TABLE)
    return KeeperStatements(
        table=table,
        path=quote_string(path),
        create_database=""
        if database == "default"
        else f"CREATE DATABASE IF NOT EXISTS {quote_identifier(database)}",
        read_engine=_READ_ENGINE.replace(":database", quote_string(database)).replace(
            ":name", quote_string(TABLE)
        ),
        create=_CREATE.replace(":table", table).replace(":path", quote_string(path)),
        read=_READ.replace(":table", table),
        update=_UPDATE.replace(":table", table),
        forget=_FORGET.replace(":table", table),
    )


def split_writes(writes: Iterable[StateWrite]) -> Iterator[Sequence[StateWrite]]:
    """Yield the writes in order, as many at a time as a statement takes.

    Raises ConfigError for one that is too long by itself.
    """
    return split_into_portions(
        writes, most=MOST_ROWS, size=_measure_write, most_size=MOST_CHARACTERS
    )


def _measure_write(write: StateWrite) -> int:
    states = [state for state in (write.new_state, write.expected) if state is not None]
    # A backslash is escaped for the parameter, and perhaps again on its way.
    size = max(len(text) + 3 * text.count("\\") for text in map(to_text, states))
    if size > MOST_CHARACTERS:
        raise ConfigError(
            f"State of job {write.key}: {size} characters with its layout, but KeeperMap takes "
            f"at most {MOST_CHARACTERS}; keep states in sql."
        )
    return size


def format_rows(writes: Iterable[StateWrite]) -> bytes:
    """The rows of new states, in the format LINES."""
    return "\n".join(json.dumps(_to_row(write)) for write in writes).encode()


def _to_row(write: StateWrite) -> list[str | int]:
    key = write.key
    names = (key.tenant, key.table_id, key.job_name, key.registration)
    return [compute_state_id(key), *names, to_text(write.new_state)]


# The columns between `state_id` and `held` are for people to read; the id is their hash.
_CREATE = """
CREATE TABLE IF NOT EXISTS :table (
    state_id String, account_id String, table_id String, job_name String, job_id Int64, held String
) ENGINE = KeeperMap(:path) PRIMARY KEY state_id
"""

_READ_ENGINE = "SELECT engine_full FROM system.tables WHERE database = :database AND name = :name"

_READ = "SELECT state_id, held FROM :table WHERE state_id IN {ids:Array(String)}"

# All rows or none: a row that is not as seen fails the statement, in the server when it reads the
# row, or in Keeper's transaction if the row's version has moved since.
_UPDATE = """
ALTER TABLE :table
UPDATE held = transform(state_id, {ids:Array(String)}, {new:Array(String)}, held)
WHERE state_id IN {ids:Array(String)}
AND NOT throwIf(held != transform(state_id, {ids:Array(String)}, {seen:Array(String)}, held))
"""

# Not strict: it deletes whatever is held.
_FORGET = "ALTER TABLE :table DELETE WHERE state_id IN {ids:Array(String)}"
