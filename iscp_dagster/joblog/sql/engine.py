"""Engines for the databases of a deployment: the ISCP log, and a state store of its own."""

from __future__ import annotations

import sqlalchemy as sa

import sql_transactions.engine
from iscp_dagster.model.errors import ConfigError, UnavailableError
from iscp_dagster.model.imports import need
from iscp_dagster.model.variables import LOG_URL, STATE_STORE
from sql_transactions.engine import Role

ENSURE_LOCK = 0x15C9_106
"""The PostgreSQL advisory lock that `ensure` takes; an arbitrary constant."""

_ERRORS = {"invalid": ConfigError, "unavailable": UnavailableError}
LOG = Role(name="ISCP log", setting=LOG_URL, **_ERRORS)
STATES = Role(name="state store", setting=STATE_STORE, **_ERRORS)


def open_engine(url: str | sa.URL, role: Role = LOG, *, kept: bool = False) -> sa.Engine:
    """An engine for `sqlite:///file` or `postgresql://…`. Connects on first use.

    With `kept` a connection stays open between transactions, for processes that are not forked.

    Raises ConfigError for a URL that is malformed, of another database, or of a SQLite
    database in memory; SetupError where PostgreSQL's driver is not installed.
    """
    parsed = sql_transactions.engine.parse_url(url, role)
    if parsed.get_backend_name() == "postgresql":
        need("postgres", f"the {role.name} on PostgreSQL")
    return sql_transactions.engine.open_engine(parsed, role, kept=kept)
