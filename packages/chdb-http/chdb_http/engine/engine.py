"""The one chDB engine of the process: its lock, its connections and its threads."""

from __future__ import annotations

import fcntl
import os
import time
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import chdb

from chdb_http.engine.reach import detect_file_access
from chdb_http.engine.rights import FILES_ROLE, LOCAL_DATABASE, write_engine_config
from chdb_http.errors import StartError
from chdb_http.sql.errors import Code, EngineError, from_engine
from chdb_http.sql.octets import to_bytes
from chdb_http.sql.rewrite import replace_query_ids
from chdb_http.sql.tokens import from_tsv, quote_string

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from concurrent.futures import Future
    from pathlib import Path

    from chdb_http.engine.confine import Reach

LOCK_NAME = "chdb-http.lock"
# chDB makes its own query ids; this setting, without effect here, carries the client's id.
QUERY_ID_SETTING = "distributed_cache_client_id"
# The server's defaults, where chDB has those of clickhouse-local.
SERVER_DEFAULTS = {"implicit_select": "0", "allow_introspection_functions": "0"}
_STOP_SECONDS = 3.0
# Python objects, not formats of ClickHouse.
_CHDB_FORMATS = {"dataframe", "arrowtable", "arrow_table", "debug"}
# Less than the engine's default max_query_size.
_PARSED_BYTES = 1 << 10


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The engine's counts for a finished statement (rows, bytes, nanoseconds) and its output."""

    data: bytes = b""
    result_rows: int = 0
    result_bytes: int = 0
    read_rows: int = 0
    read_bytes: int = 0
    written_rows: int = 0
    written_bytes: int = 0
    elapsed_ns: int = 0


class Connection:
    """One session of the engine: settings, current database and temporary tables of its own."""

    def __init__(self, path: str) -> None:
        self._handle = chdb.connect(path)
        self.allow_files(allowed=False)
        self.broken = False
        # Whether a client's own SET may have run; until then all settings are the server's.
        self.changed = False
        # The max_query_size after such a SET.
        self.max_query_bytes: int | None = None

    def run(self, sql: bytes, output_format: str = "TabSeparated") -> Outcome:
        """Run one statement to its end, in the calling thread. Raises `EngineError`."""
        started = time.monotonic_ns()
        # chDB takes a format's name as text.
        name = to_bytes(output_format).decode("utf-8", "replace")
        if name.lower() in _CHDB_FORMATS:
            raise EngineError(Code.UNKNOWN_FORMAT, f"Unknown format {name}")
        try:
            result: Any = self._handle.query(sql, name)
            data = bytes(result.bytes())
        except (RuntimeError, ValueError) as error:
            raise from_engine(error) from error
        return Outcome(
            data=data,
            result_rows=result.rows_read(),
            result_bytes=result.bytes_read(),
            read_rows=result.storage_rows_read() or result.rows_written(),
            read_bytes=result.storage_bytes_read() or result.bytes_written(),
            written_rows=result.rows_written(),
            written_bytes=result.bytes_written(),
            elapsed_ns=time.monotonic_ns() - started,
        )

    def set(self, settings: Mapping[str, str | None]) -> None:
        """`SET` all or none; `param_x` binds a query parameter, None restores the default."""
        pairs = [
            f"{name} = {'DEFAULT' if value is None else quote_string(value)}"
            for name, value in settings.items()
        ]
        if not pairs:
            return
        sql = to_bytes(f"SET {', '.join(pairs)}")
        # The values are not part of the client's statement, so its limit does not apply to them.
        long = len(sql) > _PARSED_BYTES
        if long:
            self.run(b"SET max_query_size = %d" % (len(sql) + 1))
        self.run(sql)
        if long and "max_query_size" not in settings:
            limit = b"DEFAULT" if self.max_query_bytes is None else b"%d" % self.max_query_bytes
            self.run(b"SET max_query_size = %s" % limit)

    def allow_files(self, *, allowed: bool) -> None:
        """Grant or revoke the right to files, for statements that begin from now on."""
        self.run(f"SET ROLE {FILES_ROLE if allowed else 'NONE'}".encode())

    def deny_files(self) -> None:
        """Revoke the right to files; if that fails, raise, and mark the connection to be closed."""
        try:
            self.allow_files(allowed=False)
        except EngineError:
            self.broken = True
            raise

    def refresh_max_query_bytes(self) -> None:
        """Read back the limit that a client's own SET may have changed."""
        value = self.run(b"SELECT value FROM system.settings WHERE name = 'max_query_size'").data
        self.max_query_bytes = int(value)

    def close(self) -> None:
        self._handle.close()


class Engine:
    """Opens the data of `reach` for this process only; `workers` statements run side by side.

    Queries may access what `reach` allows. `config_file` is ClickHouse's own configuration, which
    may name a Keeper, for example.
    """

    def __init__(self, reach: Reach, *, workers: int, config_file: Path | None = None) -> None:
        path = reach.data
        self.folders = reach.folders
        self.workers = workers
        self._lock = _lock_folder(path)
        reach.user_files.mkdir(exist_ok=True)
        rights = write_engine_config(reach, _check_config_file(config_file))
        self._path = f"{path}?user_files_path={reach.user_files}/&config-file={rights}"
        try:
            self._control = Connection(self._path)
            self._control.run(f"DROP DATABASE {LOCAL_DATABASE}".encode())
            about = self._control.run(b"SELECT version(), timezone(), hostName()").data.decode()
        except (RuntimeError, EngineError) as error:
            reason = " ".join(str(error).split())
            raise StartError(f"ClickHouse data at {path} cannot be opened: {reason}") from error
        self.version, self.timezone, self.host_name = about.rstrip("\n").split("\t")
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="statement")
        self._control_pool = ThreadPoolExecutor(1, thread_name_prefix="control")
        self._running: set[Future[Outcome]] = set()

    def connect(self) -> Connection:
        return Connection(self._path)

    def submit(self, run: Callable[[], Outcome]) -> Future[Outcome]:
        """Run a statement in a thread; control work has a thread of its own."""
        future = self._pool.submit(run)
        self._running.add(future)
        future.add_done_callback(self._running.discard)
        return future

    def kill(self, query_id: str) -> Future[bool]:
        """Cancel the statement with a client's query id; True when the engine was running it."""
        condition = f"Settings['{QUERY_ID_SETTING}'] = {quote_string(query_id)}"
        sql = to_bytes(f"KILL QUERY WHERE {condition} ASYNC")
        return self._control_pool.submit(lambda: bool(self._control.run(sql).data))

    def run_kill(self, text: bytes, output_format: str) -> Future[Outcome]:
        """Run a client's KILL statement, which may name the clients' own query ids."""
        return self._control_pool.submit(self._run_kill, text, output_format)

    def _run_kill(self, text: bytes, output_format: str) -> Outcome:
        detect_file_access(text, self.folders)
        sql = f"SELECT Settings['{QUERY_ID_SETTING}'] AS id, query_id FROM system.processes"
        rows = self._control.run(f"{sql} WHERE id != ''".encode()).data.splitlines()
        pairs = (row.split(b"\t", 1) for row in rows)
        engine_ids = {from_tsv(client): engine.decode() for client, engine in pairs}
        return self._control.run(replace_query_ids(text, engine_ids), output_format)

    def close(self) -> None:
        """Cancel what runs, wait a few seconds for it to end, and release the data."""
        cancel = f"KILL QUERY WHERE Settings['{QUERY_ID_SETTING}'] != '' ASYNC".encode()
        wait([self._control_pool.submit(self._control.run, cancel)], _STOP_SECONDS)
        self._pool.shutdown(wait=False, cancel_futures=True)
        wait(list(self._running), _STOP_SECONDS)
        self._control_pool.shutdown(wait=False)
        self._control.close()
        os.close(self._lock)


def _check_config_file(file: Path | None) -> Path | None:
    """The configuration; raises `StartError` when there is no such file."""
    resolved = file.expanduser().resolve() if file else None
    if resolved is not None and not resolved.is_file():
        raise StartError(
            f"ClickHouse's configuration {resolved} is not a file; name another --config-file"
        )
    return resolved


def _lock_folder(path: Path) -> int:
    """Hold the folder for this process; raises `StartError` when another one does."""
    path.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise StartError(
            f"ClickHouse data at {path} is in use by another server; stop it or name another --path"
        ) from error
    return descriptor
