"""The database of invocations: SQLite for one machine, else PostgreSQL."""

from __future__ import annotations

import sqlalchemy as sa

from durable_invocations.errors import ConfigError, UnavailableError
from sql_transactions.engine import DatabaseUse, open_engine

ENSURE_LOCK = 0x1_47C4_106
"""The PostgreSQL advisory lock for creating tables; an arbitrary constant."""

INVOCATIONS_ROLE = DatabaseUse(
    name="database of invocations",
    setting="its URL",
    invalid=ConfigError,
    unavailable=UnavailableError,
)


def open_database(
    url: str | sa.URL, role: DatabaseUse = INVOCATIONS_ROLE, *, keep_open: bool = False
) -> sa.Engine:
    """An engine for `sqlite:///file` or `postgresql://user:password@host/database`.

    `role` names the database and its setting in messages. With `keep_open` a connection stays open
    between transactions, for processes that are not forked. Connects on first use. Raises
    ConfigError for other URLs.
    """
    return open_engine(url, role, keep_open=keep_open)
