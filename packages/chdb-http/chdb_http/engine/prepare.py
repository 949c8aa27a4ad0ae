"""Prepares a connection for one request, and restores a session's connection after it."""

from __future__ import annotations

from contextlib import contextmanager
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

from chdb_http.engine.engine import QUERY_ID_SETTING, SERVER_DEFAULTS
from chdb_http.engine.options import is_parameter
from chdb_http.engine.reach import EXPRESSIONS, check_columns
from chdb_http.sql.errors import Code, EngineError
from chdb_http.sql.octets import to_bytes
from chdb_http.sql.rewrite import format_pipe_path
from chdb_http.sql.tokens import from_tsv, quote_name, quote_string

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from chdb_http.engine.engine import Connection
    from chdb_http.engine.options import Options
    from chdb_http.engine.query import ExternalTable, Query

# Allows reads, and changes of every setting but this one (ClickHouse doc: readonly).
_READ_ONLY = {"readonly": "2"}
# Bytes that the pipe's clause adds to a statement, which the engine must not count.
_ADDED_BYTES = 1 << 10


def prepare_connection(connection: Connection, query: Query) -> None:
    """Give a fresh connection the request's database, tables, settings and parameters.

    The query id is set last: from then on a KILL of it hits the statement itself.
    """
    options = query.options
    _check_readonly(options, reads_only=query.statement.reads_only)
    _select_database(connection, options)
    settings = {
        **SERVER_DEFAULTS,
        **options.settings,
        **_build_size_setting(query),
        **_build_rows_setting(query),
    }
    if query.tables:
        # The request decides how these tables' rows are parsed; its readonly must not stop them.
        connection.set({name: value for name, value in settings.items() if name != "readonly"})
    for table in query.tables:
        _create_table(connection, table)
        _fill_table(connection, table)
    if options.read_only and "readonly" in settings:
        connection.set(_READ_ONLY)
    elif options.read_only:
        settings = {**_READ_ONLY, **settings}
    connection.set({**settings, QUERY_ID_SETTING: options.query_id})
    if query.uses_files:
        connection.allow_files(allowed=True)


def _select_database(connection: Connection, options: Options) -> None:
    if options.database:
        connection.run(to_bytes(f"USE {quote_name(options.database)}"))
    if options.role:
        raise EngineError(Code.UNKNOWN_ROLE, f"There is no role `{options.role}`")


def _create_table(connection: Connection, table: ExternalTable) -> None:
    check_columns(to_bytes(table.structure))
    name = quote_name(table.name)
    connection.run(to_bytes(f"CREATE TEMPORARY TABLE {name} ({table.structure})"))


def _fill_table(connection: Connection, table: ExternalTable) -> None:
    """Insert through a file: in the text, the engine takes some rows for the statement's end."""
    if not table.data:
        return
    with TemporaryFile() as file:
        file.write(table.data)
        file.flush()
        path = quote_string(format_pipe_path(file.fileno()))
        infile = f"INSERT INTO {quote_name(table.name)} FROM INFILE {path} COMPRESSION 'none'"
        infile += " SETTINGS async_insert = 0"
        connection.run(to_bytes(f"{infile} FORMAT {quote_name(table.format)}"))


@contextmanager
def prepare_session(connection: Connection, query: Query) -> Iterator[None]:
    """Prepare a session's connection for one request and restore its settings after it.

    The engine's readonly cannot be unset, so a session's GET is judged by its statement.
    """
    options = query.options
    _check_readonly(options, reads_only=query.statement.reads_only)
    settings = {name: value for name, value in options.settings.items() if name != "readonly"}
    settings |= _build_size_setting(query) | _build_rows_setting(query)
    previous = _read_previous_settings(connection, settings)
    database = connection.run(b"SELECT currentDatabase()").data if options.database else b""
    connection.changed = connection.changed or query.statement.sets
    created: list[ExternalTable] = []
    try:
        _select_database(connection, options)
        connection.set(settings)
        for table in query.tables:
            _create_table(connection, table)
            created.append(table)
            _fill_table(connection, table)
        connection.set({QUERY_ID_SETTING: options.query_id})
        if query.uses_files:
            connection.allow_files(allowed=True)
        yield
    finally:
        if query.uses_files:
            connection.deny_files()
        connection.set(previous)
        for table in created:
            connection.run(to_bytes(f"DROP TEMPORARY TABLE IF EXISTS {quote_name(table.name)}"))
        if database:
            connection.run(to_bytes(f"USE {quote_name(from_tsv(database))}"))


def _build_size_setting(query: Query) -> dict[str, str]:
    """Make room in max_query_size for additions to the statement, whose own size was checked."""
    size, limit = len(query.statement.text), query.options.max_query_bytes
    return {"max_query_size": str(size + _ADDED_BYTES)} if size + _ADDED_BYTES > limit > 0 else {}


def _build_rows_setting(query: Query) -> dict[str, str]:
    """No queries within rows: they would have the statement's right to files, for any path."""
    return {EXPRESSIONS: "0"} if query.uses_files else {}


def _check_readonly(options: Options, *, reads_only: bool) -> None:
    """Refuse to write in readonly mode, in which the engine lets `INSERT INTO FUNCTION` pass."""
    if reads_only or not (options.read_only or options.settings.get("readonly", "0") != "0"):
        return
    raise EngineError(Code.READONLY, "default: Cannot execute query in readonly mode")


def _read_previous_settings(
    connection: Connection, settings: Mapping[str, str]
) -> dict[str, str | None]:
    """The values to set again after the request; None is the default.

    The engine never forgets a parameter, so its value is set to an empty text.
    """
    names = [name for name in settings if not is_parameter(name)]
    previous = {name: "" if is_parameter(name) else SERVER_DEFAULTS.get(name) for name in settings}
    if not (names and connection.changed):
        return previous
    listed = ", ".join(quote_string(name) for name in names)
    sql = f"SELECT name, value FROM system.settings WHERE changed AND name IN ({listed})"
    rows = connection.run(sql.encode()).data.splitlines()
    pairs = (row.split(b"\t", 1) for row in rows)
    return {**previous, **{name.decode(): from_tsv(value) for name, value in pairs}}
