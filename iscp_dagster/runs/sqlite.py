"""Dagster's storage in SQLite, in the same files as its default, for a tenth of the time."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from dagster import DagsterEventType, EventLogEntry
from sqlalchemy import Connection, Engine, create_engine
from sqlalchemy.pool import NullPool
from sqlalchemy.util import LRUCache

from iscp_dagster.runs.home import InDagsterHome
from iscp_dagster.runs.internals import (
    SQLITE_BUSY_TIMEOUT_SECONDS,
    AssetKeyTable,
    DagsterSqliteStorage,
    SqlEventLogStorageTable,
    SqliteEventLogStorage,
    SqliteRunStorage,
    SqliteScheduleStorage,
    _event_logs_directory,
    _runs_directory,
    _schedule_directory,
)

_MOST_ENGINES, _MOST_STATEMENTS = 50, 500
_TOGETHER = ({DagsterEventType.ASSET_MATERIALIZATION}, {DagsterEventType.ASSET_OBSERVATION})


class SqliteStorage(InDagsterHome, DagsterSqliteStorage):
    """Runs, events and ticks in the files of Dagster's default.

    The default makes an SQLAlchemy engine for each transaction, so its statements are compiled anew
    each time; this one keeps its engines. It also stores a batch's events in one transaction.
    """

    folder = ""

    def __init__(self, base_dir: str, inst_data: Any = None) -> None:
        self.base_dir = base_dir
        with _lock_folder(base_dir):
            self._run_storage = CachedRunStorage.from_local(_runs_directory(base_dir))
            self._event_log_storage = CachedEventStorage(_event_logs_directory(base_dir))
            self._schedule_storage = CachedTickStorage.from_local(_schedule_directory(base_dir))
        self._inst_data = inst_data
        super(DagsterSqliteStorage, self).__init__()  # type: ignore[no-untyped-call]


@contextmanager
def _lock_folder(base_dir: str) -> Iterator[None]:
    """Let two processes that open a new folder, such as daemon and code server, make it once.

    Both would stamp its files with Alembic's version, and Alembic rejects two such rows.
    """
    folder = Path(base_dir)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "storage.lock").open("w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class _CachedEngineMixin:
    """Connects with an engine that is kept; it keeps no connection, so a fork may use it."""

    _conn_string: str

    @cached_property
    def _engine(self) -> Engine:
        return create_engine(self._conn_string, poolclass=NullPool)

    @contextmanager
    def connect(self) -> Iterator[Connection]:
        """Begin a transaction."""
        with self._engine.begin() as connection:
            yield connection


class CachedRunStorage(_CachedEngineMixin, SqliteRunStorage):
    """Runs, their tags, and the daemons' heartbeats."""


class CachedTickStorage(_CachedEngineMixin, SqliteScheduleStorage):
    """The ticks of sensors and schedules, and their cursors."""


class CachedEventStorage(SqliteEventLogStorage):
    """Events: each run's in a file of its own, and the assets' also in the index.

    DAGSTER_EVENT_BATCH_SIZE says how many events a batch may have; if it is not set, Dagster
    stores one at a time here too.
    """

    def __init__(self, base_dir: str, inst_data: Any = None) -> None:
        self._engines: dict[str, Engine] = {}
        self._statements = LRUCache[Any, Any](_MOST_STATEMENTS)
        self._found_names: set[str] = set()
        super().__init__(base_dir, inst_data)

    @contextmanager
    def _connect(self, shard: str) -> Iterator[Connection]:
        """Begin a transaction in the shard's file, which is made if it is missing."""
        with self._db_lock:
            engine = self._get_engine(shard)
            if shard not in self._initialized_dbs:
                self._initdb(engine)
                self._initialized_dbs.add(shard)
            options = {"compiled_cache": self._statements}
            with engine.connect().execution_options(**options) as connection, connection.begin():
                yield connection

    def _get_engine(self, shard: str) -> Engine:
        engine = self._engines.pop(shard, None) or create_engine(
            self.conn_string_for_shard(shard),
            poolclass=NullPool,
            connect_args={"timeout": SQLITE_BUSY_TIMEOUT_SECONDS},
        )
        self._engines[shard] = engine
        if len(self._engines) > _MOST_ENGINES:
            del self._engines[next(iter(self._engines))]
        return engine

    def has_table(self, table_name: str) -> bool:
        """Whether the index has the table; remembers those that it has."""
        if table_name not in self._found_names and super().has_table(table_name):
            self._found_names.add(table_name)
        return table_name in self._found_names

    def _has_asset_key_col_on_connection(self, conn: Connection, column_name: str) -> bool:
        column = f"{AssetKeyTable.name}.{column_name}"
        if column not in self._found_names and super()._has_asset_key_col_on_connection(
            conn, column_name
        ):
            self._found_names.add(column)
        return column in self._found_names

    def store_event_batch(self, events: Sequence[EventLogEntry]) -> None:
        """Store the events of one run in its file, then the assets' also in the index.

        Not idempotent. If the second step fails, only the run's log shows the events.
        """
        kinds = {event.get_dagster_event().event_type for event in events}
        if kinds not in _TOGETHER or len({event.run_id for event in events}) > 1:
            super().store_event_batch(events)
            return
        rows, table = [self._event_to_row(event) for event in events], SqlEventLogStorageTable
        with self.run_connection(events[0].run_id) as run:
            run.execute(table.insert(), rows)
        insert = table.insert().returning(table.c.id, sort_by_parameter_order=True)
        with self.index_transaction() as index:
            ids = index.execute(insert, rows).scalars().all()
            self._store_asset_event_tags(index, events, ids)
            # An asset's row shows only its latest event.
            latest = {
                event.get_dagster_event().asset_key: (event, id_)
                for event, id_ in zip(events, ids, strict=True)
            }
            for event, id_ in latest.values():
                self._store_asset_event(index, event, id_)
