"""Limits how many statements run at once, each under an id of its own."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from chdb_http.engine.engine import SERVER_DEFAULTS
from chdb_http.engine.prepare import prepare_connection, prepare_session
from chdb_http.engine.reach import detect_file_access
from chdb_http.sql.errors import Code, EngineError

if TYPE_CHECKING:
    from concurrent.futures import Future

    from chdb_http.engine.engine import Connection, Engine, Outcome
    from chdb_http.engine.options import Options
    from chdb_http.engine.query import Query
    from chdb_http.engine.sessions import Sessions


class StatementRunner:
    """Starts statements in threads; used from the event loop's thread only."""

    def __init__(self, engine: Engine, sessions: Sessions) -> None:
        self._engine = engine
        self._sessions = sessions
        self._running: set[str] = set()
        # One check at a time; many would keep Python's lock from the event loop.
        self._check_lock = threading.Lock()

    def get_max_query_bytes(self, options: Options) -> int:
        """The most bytes of the request's statement: by its settings, else by its session's."""
        session = options.session
        connection = (
            None if session is None else self._sessions.get_idle_connection(session.session_id)
        )
        if connection is None or connection.max_query_bytes is None or options.sets_query_limit:
            return options.max_query_bytes
        return connection.max_query_bytes

    def start(self, query: Query, sql: bytes) -> Future[Outcome]:
        """Run `sql` for the query in a thread of its own.

        Raises `EngineError` 202 when all slots are taken, 216 for an id that is running, and 373
        for a session that is in use.
        """
        self._check_slot(query.options.query_id)
        lease = self._lease_connection(query)
        self._running.add(query.options.query_id)
        future = self._engine.submit(lambda: self._run(query, sql, lease))
        loop = asyncio.get_running_loop()

        def schedule_release(_: Future[Outcome]) -> None:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._release_slot, query, lease)

        future.add_done_callback(schedule_release)
        return future

    def _check_slot(self, query_id: str) -> None:
        if len(self._running) >= self._engine.workers:
            raise EngineError(
                Code.TOO_MANY_SIMULTANEOUS_QUERIES,
                f"Too many simultaneous queries. Maximum: {self._engine.workers}. "
                "Send fewer at once or start the server with a larger --max-connections",
            )
        if query_id in self._running:
            raise EngineError(
                Code.QUERY_WITH_SAME_ID_IS_ALREADY_RUNNING,
                f"Query with id = {query_id} is already running",
            )

    def _lease_connection(self, query: Query) -> _SessionConnection:
        session = query.options.session
        return _SessionConnection(None if session is None else self._sessions.acquire(session))

    def _release_slot(self, query: Query, lease: _SessionConnection) -> None:
        self._running.discard(query.options.query_id)
        if query.options.session is not None:
            connection = lease.connection
            if connection is not None and connection.broken:
                connection.close()
                connection = None
            self._sessions.release(query.options.session, connection)

    def _run(self, query: Query, sql: bytes, lease: _SessionConnection) -> Outcome:
        with self._check_lock:
            reads_files = detect_file_access(query.statement.text, self._engine.folders)
        if reads_files or query.statement.input_call is not None:
            query = replace(query, uses_files=True)
        if query.options.session is not None:
            return self._run_in_session(query, sql, lease)
        connection = self._engine.connect()
        try:
            prepare_connection(connection, query)
            return connection.run(sql, query.options.default_format)
        finally:
            connection.close()

    def _run_in_session(self, query: Query, sql: bytes, lease: _SessionConnection) -> Outcome:
        if lease.connection is None:
            lease.connection = self._engine.connect()
            lease.connection.set(SERVER_DEFAULTS)
        with prepare_session(lease.connection, query):
            outcome = lease.connection.run(sql, query.options.default_format)
        if query.statement.sets:
            lease.connection.refresh_max_query_bytes()
        return outcome


class _SessionConnection:
    """The connection of a session, made by the thread that runs its first statement."""

    def __init__(self, connection: Connection | None) -> None:
        self.connection = connection
