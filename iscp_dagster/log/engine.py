"""Database engines for the ISCP log: SQLite for one machine, PostgreSQL for production."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event, exc
from sqlalchemy.pool import NullPool

from iscp_dagster.core.errors import ConfigError, UnavailableError

BUSY_SECONDS = 30
"""How long a writer waits for another one on SQLite."""

WAL_ATTEMPTS = 100

ENSURE_LOCK = 0x15C9_106
"""The PostgreSQL advisory lock that `ensure` takes; any constant of its own."""

_WRITES = "iscp_writes"
_DRIVERS = {
    "sqlite": "sqlite",
    "postgresql": "postgresql+psycopg",
    "postgres": "postgresql+psycopg",
}


def open_engine(url: str | sa.URL) -> sa.Engine:
    """An engine for `sqlite:///file` or `postgresql://…`. Connects on first use.

    Raises ConfigError for a URL that is malformed, of another database, or of a SQLite
    database in memory.
    """
    parsed = _parse(url)
    try:
        # No pool: a connection kept would leak into forked runs, and each use is one transaction.
        return sa.create_engine(parsed, poolclass=NullPool, hide_parameters=True)
    except ModuleNotFoundError:
        raise ConfigError(
            "The ISCP log on PostgreSQL needs psycopg; pip install 'iscp_dagster[postgres]'."
        ) from None


def prepare(engine: sa.Engine) -> sa.Engine:
    """Make SQLite wait for other writers and lock before it reads what it will write."""
    if engine.dialect.name == "sqlite" and not event.contains(engine, "begin", _begin_sqlite):
        event.listen(engine, "connect", _connect_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    return engine


def shown(url: sa.URL) -> str:
    """The URL without its password and options."""
    return url.set(query={}).render_as_string(hide_password=True)


@contextmanager
def transaction(engine: sa.Engine, *, writes: bool) -> Iterator[sa.Connection]:
    """One transaction; committed at the end, rolled back by any error.

    A database that fails or does not answer raises UnavailableError without its secrets.
    """
    try:
        with engine.execution_options(**{_WRITES: writes}).begin() as connection:
            yield connection
    except (exc.OperationalError, exc.InterfaceError, exc.ProgrammingError) as error:
        raise _unavailable(engine, error.orig) from None


def use_wal(engine: sa.Engine) -> None:
    """Let SQLite's readers and its writer work side by side; kept in the file. Idempotent."""
    for _ in range(WAL_ATTEMPTS):
        if _switched_to_wal(engine):
            return
        # The switch never waits for another process's; a transaction does.
        with transaction(engine, writes=True):
            pass
    raise UnavailableError(
        f"ISCP log {shown(engine.url)}: other processes keep the file locked; try again."
    )


def _switched_to_wal(engine: sa.Engine) -> bool:
    with engine.connect() as connection:
        cursor = connection.connection.cursor()
        try:
            cursor.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error):
                raise _unavailable(engine, error) from None
            return False
        finally:
            cursor.close()
    return True


def _parse(url: str | sa.URL) -> sa.URL:
    try:
        parsed = sa.make_url(url)
        driver = _DRIVERS[parsed.drivername.partition("+")[0]]
    except exc.ArgumentError:
        raise ConfigError(
            "ISCP_LOG_URL is not a database URL; give sqlite:///file or "
            "postgresql://user:password@host/database."
        ) from None
    except KeyError:
        raise ConfigError(
            f"ISCP_LOG_URL {shown(parsed)}: the ISCP log lives in sqlite or postgresql only."
        ) from None
    if driver == "sqlite" and parsed.database in {None, "", ":memory:"}:
        raise ConfigError("ISCP_LOG_URL names no file; give sqlite:///file.")
    return parsed.set(drivername=driver)


def _unavailable(engine: sa.Engine, error: BaseException | None) -> UnavailableError:
    reason = _without_secrets(str(error).strip(), engine.url)
    return UnavailableError(
        f"ISCP log {shown(engine.url)}: {reason}. Check ISCP_LOG_URL and that the database is up "
        "and set up."
    )


def _without_secrets(text: str, url: sa.URL) -> str:
    secrets = [url.password, url.query.get("password")]
    for secret in secrets:
        text = text.replace(str(secret), "***") if secret else text
    return text


def _connect_sqlite(connection: Any, _record: Any) -> None:
    # The driver would begin by itself, and late; _begin_sqlite does it.
    connection.isolation_level = None
    connection.execute(f"PRAGMA busy_timeout = {BUSY_SECONDS * 1000}")
    # The log says what was written where: it must outlive a power cut.
    connection.execute("PRAGMA synchronous = FULL")


def _begin_sqlite(connection: sa.Connection) -> None:
    writes = connection.get_execution_options().get(_WRITES, True)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
