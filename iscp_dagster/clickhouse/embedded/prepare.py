"""A connection made ready for one request, and a session's connection as it was before."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from iscp_dagster.clickhouse.embedded.engine import QUERY_ID_SETTING
from iscp_dagster.clickhouse.embedded.errors import Code, EngineError
from iscp_dagster.clickhouse.embedded.options import is_parameter
from iscp_dagster.clickhouse.embedded.tokens import quote_name, quote_string, unquote

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from iscp_dagster.clickhouse.embedded.engine import Connection
    from iscp_dagster.clickhouse.embedded.job import Job
    from iscp_dagster.clickhouse.embedded.options import Options

# Reads are allowed, and so are changes of every setting but this one (ClickHouse doc: readonly).
_READ_ONLY = {"readonly": "2"}


@dataclass(frozen=True, kw_only=True)
class ExternalTable:
    """Rows that come with a query and are a table to it (ClickHouse doc: external data)."""

    name: str
    structure: str
    format: str
    data: bytes


def make_ready(
    connection: Connection, options: Options, tables: Sequence[ExternalTable] = ()
) -> None:
    """Give a fresh connection the request's database, tables, settings and parameters.

    The query id comes last: from then on a KILL of it meets the statement itself.
    """
    _use(connection, options)
    for table in tables:
        _load(connection, table)
    settings = dict(options.settings)
    if options.read_only and "readonly" in settings:
        connection.set(_READ_ONLY)
    elif options.read_only:
        settings = {**_READ_ONLY, **settings}
    connection.set({**settings, QUERY_ID_SETTING: options.query_id})


def _use(connection: Connection, options: Options) -> None:
    if options.database:
        connection.run(f"USE {quote_name(options.database)}".encode())
    if options.role:
        connection.run(f"SET ROLE {quote_name(options.role)}".encode())


def _load(connection: Connection, table: ExternalTable) -> None:
    name = quote_name(table.name)
    connection.run(f"CREATE TEMPORARY TABLE {name} ({table.structure})".encode())
    head = f"INSERT INTO {name} FORMAT {quote_name(table.format)}\n".encode()
    if table.data:
        connection.run(head + table.data)


@contextmanager
def borrowed(connection: Connection, job: Job) -> Iterator[None]:
    """Make a session's connection ready for one request and put its settings back after it.

    The engine's readonly cannot be taken back, so a session's GET is judged by its statement.
    """
    options = job.options
    _judge(options, reads_only=job.statement.reads_only)
    wanted = {name: value for name, value in options.settings.items() if name != "readonly"}
    before = _current(connection, wanted)
    database = connection.run(b"SELECT currentDatabase()").data
    _use(connection, options)
    for table in job.tables:
        _load(connection, table)
    try:
        connection.set({**wanted, QUERY_ID_SETTING: options.query_id})
        yield
    finally:
        _restore(connection, before)
        for table in job.tables:
            connection.run(f"DROP TEMPORARY TABLE IF EXISTS {quote_name(table.name)}".encode())
        if options.database:
            connection.run(f"USE {quote_name(_unescape(database))}".encode())


def _judge(options: Options, *, reads_only: bool) -> None:
    if reads_only or not (options.read_only or options.settings.get("readonly", "0") != "0"):
        return
    raise EngineError(
        Code.READONLY,
        "default: Cannot execute query in readonly mode. For queries over HTTP, method GET implies "
        "readonly. You should use method POST for modifying queries",
    )


def _current(connection: Connection, wanted: Mapping[str, str]) -> dict[str, str | None]:
    """The values before: None where the setting has its default."""
    names = [quote_string(name) for name in wanted if not is_parameter(name)]
    if not names:
        return {}
    sql = "SELECT name, if(changed, value, NULL) FROM system.settings WHERE name IN "
    rows = connection.run(f"{sql}({','.join(names)})".encode()).data.splitlines()
    pairs = (row.split(b"\t", 1) for row in rows)
    return {n.decode(): None if v == rb"\N" else _unescape(v) for n, v in pairs}


def _unescape(value: bytes) -> str:
    """A value of TabSeparated output."""
    return unquote(b"'" + value.rstrip(b"\n") + b"'")


def _restore(connection: Connection, before: Mapping[str, str | None]) -> None:
    for name, value in before.items():
        new = "DEFAULT" if value is None else quote_string(value)
        connection.run(f"SET {name} = {new}".encode())
