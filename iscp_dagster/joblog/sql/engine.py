"""Engines for a deployment's databases: the ISCP log, and a separate state store."""

from __future__ import annotations

import sqlalchemy as sa

import sql_transactions.engine
from iscp_dagster.model.errors import ConfigError, UnavailableError
from iscp_dagster.model.imports import require_extra
from iscp_dagster.model.variables import LOG_URL, STATE_STORE
from sql_transactions.engine import DatabaseUse

ENSURE_LOCK = 0x15C9_106
"""The PostgreSQL advisory lock that `ensure` takes; an arbitrary constant."""

_ERRORS = {"invalid": ConfigError, "unavailable": UnavailableError}
LOG = DatabaseUse(name="ISCP log", setting=LOG_URL, **_ERRORS)
STATES = DatabaseUse(name="state store", setting=STATE_STORE, **_ERRORS)


def open_engine(
    url: str | sa.URL, role: DatabaseUse = LOG, *, keep_open: bool = False
) -> sa.Engine:
    """An engine for `sqlite:///file` or `postgresql://…`. Connects on first use.

    With `keep_open` a connection stays open between transactions; not for processes that fork.

    Raises ConfigError for a malformed URL, an unsupported database, or an in-memory SQLite
    database; SetupError if PostgreSQL's driver is not installed.
    """
    parsed = sql_transactions.engine.parse_url(url, role)
    if parsed.get_backend_name() == "postgresql":
        require_extra("postgres", f"the {role.name} on PostgreSQL")
    return sql_transactions.engine.open_engine(parsed, role, keep_open=keep_open)
