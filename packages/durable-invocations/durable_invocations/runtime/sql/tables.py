"""The runtime's tables. Times are milliseconds since 1970."""

from __future__ import annotations

from enum import IntEnum

import sqlalchemy as sa

METADATA = sa.MetaData()
_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


class Role(IntEnum):
    """How an invocation treats its key."""

    SHARED = 0
    """Or its service has no keys."""
    EXCLUSIVE = 1
    """One at a time for each key."""
    RUN = 2
    """A workflow's run, once for each key."""


def _make_partial_index(name: str, *columns: str, where: str) -> sa.Index:
    return sa.Index(name, *columns, sqlite_where=sa.text(where), postgresql_where=sa.text(where))


SERVICE_DEPLOYMENTS_TABLE = sa.Table(
    "durable_service_deployments",
    METADATA,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("url", sa.Text, nullable=False, unique=True),
    sa.Column("mode", sa.Text, nullable=False, comment="Mode: how requests are exchanged"),
    sa.Column("http", sa.Integer, nullable=False, comment="1 or 2"),
    sa.Column("least", sa.Integer, nullable=False, comment="version of the service protocol"),
    sa.Column("greatest", sa.Integer, nullable=False, comment="version of the service protocol"),
    sa.Column("registered", sa.BigInteger, nullable=False),
)
"""One row for each address that serves services."""

SERVICES_TABLE = sa.Table(
    "durable_services",
    METADATA,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("kind", sa.Text, nullable=False, comment="protocol.services.ServiceKind"),
    sa.Column("deployment_id", sa.Text, nullable=False, comment="serves its new invocations"),
    sa.Column("handlers", sa.Text, nullable=False, comment="JSON"),
)
"""One row for each service."""

INVOCATIONS_TABLE = sa.Table(
    "durable_invocations",
    METADATA,
    sa.Column("number", _NUMBER, primary_key=True, autoincrement=True),
    sa.Column("id", sa.Text, nullable=False, unique=True),
    sa.Column("service", sa.Text, nullable=False),
    sa.Column("handler", sa.Text, nullable=False),
    sa.Column("key", sa.Text, nullable=False, comment="empty: the service has no keys"),
    sa.Column("role", sa.SmallInteger, nullable=False, comment="Role"),
    sa.Column("identity", sa.Text, unique=True, comment="what submissions must not repeat"),
    sa.Column("idempotency_key", sa.Text),
    sa.Column("headers", sa.Text, nullable=False, comment="JSON"),
    sa.Column("status", sa.SmallInteger, nullable=False, comment="Status"),
    sa.Column("deployment_id", sa.Text, comment="null: not begun"),
    sa.Column("parent", sa.Text, comment="id of the invocation that called it"),
    sa.Column("created", sa.BigInteger, nullable=False),
    sa.Column("changed", sa.BigInteger, nullable=False),
    sa.Column("ended", sa.BigInteger),
    sa.Column("next_at", sa.BigInteger, comment="when it begins, or is tried again"),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("retries", sa.Integer, nullable=False, comment="since the last entry was stored"),
    sa.Column("known", sa.Integer, nullable=False, comment="entries at its last claim or failure"),
    sa.Column("waits", sa.Text, comment="JSON: the entries that a suspended one waits for"),
    sa.Column("owner", sa.Text, comment="the runtime that drives it"),
    sa.Column("fence", sa.BigInteger, nullable=False, comment="grows with each claim; 0: none"),
    sa.Column("canceled", sa.Boolean, nullable=False, comment="the next entry that waits fails"),
    sa.Column("error", sa.Text, comment="JSON: of the last attempt that failed"),
    sa.Column("error_at", sa.BigInteger),
    sa.Column("result", sa.LargeBinary, comment="fields 13 to 15 of a message"),
    sa.Column("keep_until", sa.BigInteger, comment="pruned after"),
    _make_partial_index("durable_invocations_ready", "number", where="status = 2"),
    _make_partial_index("durable_invocations_driven", "owner", where="status = 3"),
    _make_partial_index("durable_invocations_due", "next_at", where="next_at IS NOT NULL"),
    _make_partial_index("durable_invocations_ended", "keep_until", where="keep_until IS NOT NULL"),
    _make_partial_index("durable_invocations_parents", "parent", where="parent IS NOT NULL"),
    sa.Index("durable_invocations_by_service", "service", "key", "number"),
    # A purged invocation's number must not be used again: its timers and waits name it.
    sqlite_autoincrement=True,
)
"""One row for each invocation."""

JOURNAL_TABLE = sa.Table(
    "durable_journal",
    METADATA,
    sa.Column("invocation", sa.BigInteger, primary_key=True, comment="its number"),
    sa.Column("idx", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("code", sa.Integer, nullable=False, comment="the entry's type"),
    sa.Column("flags", sa.Integer, nullable=False, comment="as the entry was sent"),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False, comment="as the entry was sent"),
    sa.Column("open", sa.Boolean, nullable=False, comment="completable, and not completed"),
    sa.Column("result", sa.LargeBinary, comment="fields 13 to 15, if the runtime completed it"),
    sa.Column("created", sa.BigInteger, nullable=False),
    sa.Column("completed_at", sa.BigInteger),
    sa.Column("child", sa.Text, comment="id of the invocation that a call made"),
    # Its primary key is its order on disk.
    sqlite_with_rowid=False,
)
"""One row for each entry of an invocation's journal."""

WAITS_TABLE = sa.Table(
    "durable_waits",
    METADATA,
    sa.Column("target", sa.Text, primary_key=True, comment="an invocation's id, or a promise"),
    sa.Column("invocation", sa.BigInteger, primary_key=True, comment="the number of who waits"),
    sa.Column("idx", sa.Integer, primary_key=True, autoincrement=False),
    sa.Index("durable_waits_by_invocation", "invocation"),
    # Its primary key is its order on disk.
    sqlite_with_rowid=False,
)
"""One row for each entry that waits for the end of an invocation, or for a promise."""

TIMERS_TABLE = sa.Table(
    "durable_timers",
    METADATA,
    sa.Column("invocation", sa.BigInteger, primary_key=True, comment="its number"),
    sa.Column("idx", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("at", sa.BigInteger, nullable=False),
    sa.Index("durable_timers_by_time", "at"),
    # Its primary key is its order on disk.
    sqlite_with_rowid=False,
)
"""One row for each sleep."""

INBOX_TABLE = sa.Table(
    "durable_inbox",
    METADATA,
    sa.Column("number", _NUMBER, primary_key=True, autoincrement=True, comment="the order"),
    sa.Column("service", sa.Text, nullable=False),
    sa.Column("key", sa.Text, nullable=False),
    sa.Column("invocation", sa.BigInteger, nullable=False, unique=True, comment="its number"),
    sa.Index("durable_inbox_by_key", "service", "key", "number"),
    sqlite_autoincrement=True,
)
"""One row for each exclusive invocation that arrived and has not ended; the first has the key."""

SERVICE_STATE_TABLE = sa.Table(
    "durable_service_state",
    METADATA,
    sa.Column("service", sa.Text, primary_key=True),
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("name", sa.LargeBinary, primary_key=True),
    sa.Column("value", sa.LargeBinary, nullable=False),
)
"""One row for each value of an object's or a workflow's state."""

PROMISES_TABLE = sa.Table(
    "durable_promises",
    METADATA,
    sa.Column("service", sa.Text, primary_key=True),
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("result", sa.LargeBinary, nullable=False, comment="fields 14 and 15"),
)
"""One row for each promise of a workflow that was completed."""

EARLY_RESULTS_TABLE = sa.Table(
    "durable_early_results",
    METADATA,
    sa.Column("invocation", sa.BigInteger, primary_key=True, comment="its number"),
    sa.Column("idx", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("result", sa.LargeBinary, nullable=False, comment="fields 14 and 15"),
    # Its primary key is its order on disk.
    sqlite_with_rowid=False,
)
"""One row for each awakeable that was completed before its entry was committed."""

RUNTIMES_TABLE = sa.Table(
    "durable_runtimes",
    METADATA,
    sa.Column("owner", sa.Text, primary_key=True),
    sa.Column("beat", sa.BigInteger, nullable=False, comment="grows while it is alive"),
)
"""One row for each runtime."""

INVOCATION_NEWS_TABLE = sa.Table(
    "durable_invocation_news",
    METADATA,
    sa.Column("number", _NUMBER, primary_key=True, autoincrement=True),
    sa.Column("owner", sa.Text, nullable=False, comment="the runtime that drives it"),
    sa.Column("invocation", sa.BigInteger, nullable=False, comment="its number"),
    sa.Column("fence", sa.BigInteger, nullable=False),
    sa.Column("idx", sa.Integer, comment="of the entry; null: it was ended or paused"),
    sa.Index("durable_invocation_news_by_owner", "owner"),
)
"""One row for each change that one runtime made to an invocation that another one drives."""

INVOCATIONS, JOURNAL, WAITS, TIMERS = (
    INVOCATIONS_TABLE.c,
    JOURNAL_TABLE.c,
    WAITS_TABLE.c,
    TIMERS_TABLE.c,
)
INBOX, STATE, PROMISES, NEWS = (
    INBOX_TABLE.c,
    SERVICE_STATE_TABLE.c,
    PROMISES_TABLE.c,
    INVOCATION_NEWS_TABLE.c,
)
EARLY, RUNTIMES = EARLY_RESULTS_TABLE.c, RUNTIMES_TABLE.c
DEPLOYMENTS, SERVICES = SERVICE_DEPLOYMENTS_TABLE.c, SERVICES_TABLE.c

# Spelt as in the partial indexes, or SQLite does not use them.
IS_READY: sa.ColumnElement[bool] = INVOCATIONS.status == sa.literal_column("2")
IS_RUNNING: sa.ColumnElement[bool] = INVOCATIONS.status == sa.literal_column("3")
