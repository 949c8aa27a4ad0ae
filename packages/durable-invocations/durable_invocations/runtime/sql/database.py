"""The database that invocations are kept in: SQLite for one machine, else PostgreSQL."""

from __future__ import annotations

import sqlalchemy as sa

from durable_invocations.errors import ConfigError, UnavailableError
from sql_transactions.engine import Role, open_engine

ENSURE_LOCK = 0x1_47C4_106
"""The PostgreSQL advisory lock under which tables are made; an arbitrary constant."""

INVOCATIONS = Role(
    name="database of invocations",
    setting="its URL",
    invalid=ConfigError,
    unavailable=UnavailableError,
)


def open_database(url: str | sa.URL, role: Role = INVOCATIONS, *, kept: bool = False) -> sa.Engine:
    """An engine for `sqlite:///file` or `postgresql://user:password@host/database`.

    `role` says in messages what the database and its setting are called. With `kept` a connection
    stays open between transactions, for processes that are not forked. Connects on first use.
    Raises ConfigError for other URLs.
    """
    return open_engine(url, role, kept=kept)
