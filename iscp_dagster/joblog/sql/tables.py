"""The ISCP log's tables: jobs, their history, standing registrations, leases."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.compiler import compiles


class UtcTime(sa.TypeDecorator[datetime]):
    """Timezone-aware UTC times, even if the database keeps no time zone (SQLite)."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        del dialect
        return None if value is None else value.astimezone(timezone.utc)

    def process_result_value(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        del dialect
        if value is None:
            return None
        return (
            value.astimezone(timezone.utc) if value.tzinfo else value.replace(tzinfo=timezone.utc)
        )


class Seconds(sa.sql.functions.FunctionElement[float]):
    """The database's time now, not at the transaction's start, in seconds since 1970."""

    type = sa.Float()
    inherit_cache = True


class TransactionNumber(sa.sql.functions.FunctionElement[int]):
    """The current transaction's number; 0 on SQLite, which has one writer at a time."""

    type = sa.BigInteger()
    inherit_cache = True


@compiles(Seconds, "postgresql")
def _render_postgres_seconds(*_: Any, **__: Any) -> str:
    return "CAST(extract(epoch from clock_timestamp()) AS double precision)"


@compiles(Seconds, "sqlite")
def _render_sqlite_seconds(*_: Any, **__: Any) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(TransactionNumber, "postgresql")
def _render_postgres_number(*_: Any, **__: Any) -> str:
    return "CAST(CAST(pg_current_xact_id() AS text) AS bigint)"


@compiles(TransactionNumber, "sqlite")
def _render_sqlite_number(*_: Any, **__: Any) -> str:
    return "0"


_JSON = sa.JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")

# SQLite autoincrements only INTEGER columns.
_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

METADATA = sa.MetaData()

ISCP_LOG = sa.Table(
    "iscp_log",
    METADATA,
    sa.Column("account_id", sa.Text, key="tenant", primary_key=True, comment="tenant"),
    sa.Column("table_id", sa.Text, primary_key=True, comment="Delta metaData.id"),
    sa.Column("job_name", sa.Text, primary_key=True),
    sa.Column("job_id", sa.BigInteger, nullable=False, comment="one registration"),
    sa.Column("job_spec", _JSON, nullable=False),
    sa.Column("job_state", sa.SmallInteger, nullable=False, comment="model.states.JobState"),
    sa.Column("watermark", sa.Text, nullable=False, comment="version@microseconds"),
    sa.Column("watermark_version", sa.BigInteger, nullable=False, comment="to compare in SQL"),
    sa.Column("job_status", _JSON, nullable=False),
    sa.Column("create_at", UtcTime, nullable=False),
    sa.Column("drop_at", UtcTime),
    sa.Column("db_name", sa.Text, nullable=False),
    sa.Column("table_name", sa.Text, nullable=False),
    sa.Column("seq", sa.BigInteger, nullable=False, comment="fence of the run that holds the job"),
    sa.Column("run_id", sa.Text, comment="run of the latest iteration"),
    sa.Column("batch_from", sa.Text, comment="version@microseconds"),
    sa.Column("batch_to", sa.Text, comment="version@microseconds"),
    sa.Column("batch_phase", sa.Text, comment="BEFORE or AFTER"),
    sa.Column("batch_layout", _JSON, comment="how the batch is cut into chunks"),
    sa.Column("queued_to", sa.Text, comment="version@microseconds: the queued iteration's end"),
    sa.Column("paused_at", UtcTime, comment="not planned until resumed"),
    sa.Column("rebuild", sa.Boolean, nullable=False, comment="start over after this iteration"),
    sa.Column("changed_at", UtcTime, comment="of the last transition"),
    sa.Column("collected_at", UtcTime, comment="when a dropped row's data was deleted"),
    sa.Index("iscp_log_by_table", "table_id", "tenant"),
    sa.Index("iscp_log_by_state", "job_state"),
    sa.Index("iscp_log_by_name", "db_name", "table_name", "table_id"),
    # Covers a runner's query about a table that it has not seen yet.
    sa.Index(
        "iscp_log_places",
        *("table_id", "job_name", "watermark_version", "job_state", "drop_at", "tenant"),
    ),
)
"""One row per job, with its fence and its batch record."""

ISCP_LOG_EVENTS = sa.Table(
    "iscp_log_events",
    METADATA,
    sa.Column("number", _NUMBER, primary_key=True, autoincrement=True),
    sa.Column("at", UtcTime, nullable=False),
    sa.Column("account_id", sa.Text, key="tenant", nullable=False),
    sa.Column("table_id", sa.Text, nullable=False),
    sa.Column("job_name", sa.Text, nullable=False),
    sa.Column("job_id", sa.BigInteger, nullable=False),
    sa.Column("db_name", sa.Text, nullable=False),
    sa.Column("table_name", sa.Text, nullable=False),
    sa.Column("event", sa.Text, nullable=False, comment="model.states.Event"),
    sa.Column("from_state", sa.SmallInteger, comment="null: registered"),
    sa.Column("to_state", sa.SmallInteger, nullable=False),
    sa.Column("who", sa.Text, nullable=False, comment="a run, or who opened the log"),
    sa.Column("range_from", sa.Text, comment="version@microseconds"),
    sa.Column("range_to", sa.Text, comment="version@microseconds"),
    sa.Column("error_code", sa.Integer, nullable=False),
    sa.Column("error_msg", sa.Text, nullable=False),
    sa.Column("inserted", sa.BigInteger, nullable=False, comment="rows"),
    sa.Column("deleted", sa.BigInteger, nullable=False, comment="rows"),
    sa.Column("bytes", sa.BigInteger, nullable=False),
    sa.Column("seconds", sa.Float, nullable=False),
    sa.Column(
        "transaction_id",
        sa.BigInteger,
        nullable=False,
        default=TransactionNumber(),
        comment="of the writer; 0 on SQLite",
    ),
    sa.Index("iscp_log_events_by_time", "at"),
    sa.Index("iscp_log_events_by_transaction", "transaction_id"),
    sa.Index("iscp_log_events_by_job", "tenant", "db_name", "table_name", "job_name"),
    # A pruned entry's number must not be used again.
    sqlite_autoincrement=True,
)
"""One row per transition of a job; rows are only added, and pruned by age."""

ISCP_STANDING = sa.Table(
    "iscp_standing",
    METADATA,
    sa.Column("db_name", sa.Text, primary_key=True),
    sa.Column("table_name", sa.Text, primary_key=True),
    sa.Column("job_name", sa.Text, primary_key=True),
    sa.Column("job_spec", _JSON, nullable=False),
    sa.Column("create_at", UtcTime, nullable=False),
)
"""One row per job that is registered for every tenant, including later ones."""

ISCP_LEASES = sa.Table(
    "iscp_leases",
    METADATA,
    sa.Column("name", sa.Text, primary_key=True, comment="a run, a dispatch, or a runner's table"),
    sa.Column("owner", sa.Text, nullable=False, comment="its runner; empty: of a run or dispatch"),
    sa.Column("until", sa.Float, nullable=False, comment="seconds since 1970, by this database"),
)
"""One row per lease (joblog.leases)."""
