"""Database engines: SQLite for one machine, else PostgreSQL."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event, exc
from sqlalchemy.pool import NullPool, QueuePool

BUSY_SECONDS = 30
"""How long a writer waits for another one on SQLite."""

WAL_ATTEMPTS = 100

_WRITES = "sql_transactions_writes"
_ROLE = "sql_transactions_role"
DRIVERS = {"sqlite": "sqlite", "postgresql": "postgresql+psycopg", "postgres": "postgresql+psycopg"}
"""SQLAlchemy's driver for each supported database."""


@dataclass(frozen=True, kw_only=True)
class DatabaseUse:
    """What a program uses a database for, the setting that names it, and the errors to raise."""

    name: str
    setting: str
    invalid: type[Exception] = ValueError
    """For a URL that is malformed, or of another database."""
    unavailable: type[Exception] = ConnectionError
    """For a database that does not answer, or lacks tables."""


def open_engine(url: str | sa.URL, role: DatabaseUse, *, keep_open: bool = False) -> sa.Engine:
    """An engine for `sqlite:///file` or `postgresql://…`. Connects on first use.

    With `keep_open` a connection stays open between transactions; not for processes that fork.

    Raises the role's `invalid` for a URL that is malformed, of another database, or of a SQLite
    database in memory, and where PostgreSQL's driver is not installed.
    """
    parsed = parse_url(url, role)
    if parsed.get_backend_name() == "postgresql" and find_spec("psycopg") is None:
        raise role.invalid(
            f"The {role.name} on PostgreSQL needs psycopg: pip install 'sql-transactions[postgres]'"
        )
    options: dict[str, Any] = {"hide_parameters": True, "execution_options": {_ROLE: role}}
    if keep_open:
        return sa.create_engine(
            parsed, poolclass=QueuePool, pool_size=1, pool_pre_ping=True, **options
        )
    # No pool: a connection kept would leak into forked runs, and each use is one transaction.
    return sa.create_engine(parsed, poolclass=NullPool, **options)


def parse_url(url: str | sa.URL, role: DatabaseUse) -> sa.URL:
    """The URL with its driver. Raises the role's `invalid`."""
    try:
        parsed = sa.make_url(url)
        driver = DRIVERS[parsed.drivername.partition("+")[0]]
    except (exc.ArgumentError, ValueError):  # the latter for a port that is not a number
        raise role.invalid(
            f"{role.setting} is not a database URL; give sqlite:///file or "
            "postgresql://user:password@host/database."
        ) from None
    except KeyError:
        raise role.invalid(
            f"{role.setting} {render_url(parsed)}: the {role.name} needs sqlite or postgresql."
        ) from None
    if driver == "sqlite" and parsed.database in {None, "", ":memory:"}:
        raise role.invalid(f"{role.setting} names no file; give sqlite:///file.")
    return parsed.set(drivername=driver)


def prepare_engine(engine: sa.Engine, role: DatabaseUse) -> sa.Engine:
    """Make SQLite wait for other writers and lock before it reads what it will write.

    An engine of the caller's own gets the role. Idempotent.
    """
    if _ROLE not in engine.get_execution_options():
        engine.update_execution_options(**{_ROLE: role})
    if engine.dialect.name == "sqlite" and not event.contains(engine, "begin", _begin_sqlite):
        event.listen(engine, "connect", _connect_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    return engine


def render_url(url: sa.URL) -> str:
    """The URL without its password and options."""
    return url.set(query={}).render_as_string(hide_password=True)


@contextmanager
def begin_transaction(engine: sa.Engine, *, writes: bool) -> Iterator[sa.Connection]:
    """One transaction; committed at the end, rolled back by any error.

    Raises the role's `unavailable`.
    """
    with (
        translate_errors(engine),
        engine.execution_options(**{_WRITES: writes}).begin() as connection,
    ):
        yield connection


@contextmanager
def translate_errors(engine: sa.Engine) -> Iterator[None]:
    """Raise failures of the database as the role's `unavailable`, without its secrets."""
    try:
        yield
    except (exc.OperationalError, exc.InterfaceError, exc.ProgrammingError) as error:
        raise _make_unavailable_error(engine, error.orig) from None


def use_wal(engine: sa.Engine) -> None:
    """Let SQLite's readers and writer work side by side; the file keeps this mode. Idempotent."""
    for _ in range(WAL_ATTEMPTS):
        if _try_switch_to_wal(engine):
            return
        # The switch never waits for other processes; a transaction does.
        with begin_transaction(engine, writes=True):
            pass
    role = _get_role(engine)
    raise role.unavailable(
        f"{role.name} {render_url(engine.url)}: other processes keep the file locked; try again."
    )


def _try_switch_to_wal(engine: sa.Engine) -> bool:
    with engine.connect() as connection:
        cursor = connection.connection.cursor()
        try:
            cursor.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error):
                raise _make_unavailable_error(engine, error) from None
            return False
        finally:
            cursor.close()
    return True


def _make_unavailable_error(engine: sa.Engine, error: BaseException | None) -> Exception:
    reason, role = _mask_secrets(str(error).strip(), engine.url), _get_role(engine)
    return role.unavailable(
        f"{role.name} {render_url(engine.url)}: {reason}. Check {role.setting} and that the "
        "database is up and set up."
    )


def _get_role(engine: sa.Engine) -> DatabaseUse:
    role: DatabaseUse = engine.get_execution_options()[_ROLE]
    return role


def _mask_secrets(text: str, url: sa.URL) -> str:
    secrets = [url.password, url.query.get("password")]
    for secret in secrets:
        text = text.replace(str(secret), "***") if secret else text
    return text


def _connect_sqlite(connection: Any, _record: Any) -> None:
    # The driver would begin transactions itself, but too late; _begin_sqlite does it.
    connection.isolation_level = None
    connection.execute(f"PRAGMA busy_timeout = {BUSY_SECONDS * 1000}")
    # What was committed must survive a power cut.
    connection.execute("PRAGMA synchronous = FULL")


def _begin_sqlite(connection: sa.Connection) -> None:
    writes = connection.get_execution_options().get(_WRITES, True)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
