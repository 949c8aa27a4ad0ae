"""Database engines for the ISCP log: SQLite for one machine, PostgreSQL for production."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event, exc
from sqlalchemy.pool import NullPool

from iscp_dagster.core.errors import ConfigError, UnavailableError

BUSY_SECONDS = 30
"""How long a writer waits for another one on SQLite."""

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
    database in memory. A forked child gets connections of its own.
    """
    parsed = _parse(url)
    if parsed.get_backend_name() == "sqlite":
        return sa.create_engine(parsed, poolclass=NullPool, hide_parameters=True)
    try:
        engine = sa.create_engine(parsed, pool_pre_ping=True, hide_parameters=True)
    except ModuleNotFoundError:
        raise ConfigError(
            "The ISCP log on PostgreSQL needs psycopg; pip install 'iscp_dagster[postgres]'."
        ) from None
    _forget_after_fork(engine)
    return engine


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
        reason = _without_secrets(str(error.orig).strip(), engine.url)
        raise UnavailableError(
            f"ISCP log {shown(engine.url)}: {reason}. Check ISCP_LOG_URL and that the database "
            "is up and set up."
        ) from None


def use_wal(engine: sa.Engine) -> None:
    """Let SQLite's readers and its writer work side by side; kept in the file. Idempotent."""
    with engine.connect() as connection:
        cursor = connection.connection.cursor()
        try:
            cursor.execute("PRAGMA journal_mode = WAL")
        finally:
            cursor.close()


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


def _forget_after_fork(engine: sa.Engine) -> None:
    # A connection of the parent's, used by the child, would mix up both.
    kept = weakref.ref(engine)
    os.register_at_fork(after_in_child=_forgetting(kept))


def _forgetting(kept: weakref.ref[sa.Engine]) -> Callable[[], None]:
    def forget() -> None:
        engine = kept()
        if engine is not None:
            engine.dispose(close=False)

    return forget
