"""The ISCP log's tables: jobs, their history, standing registrations, leases."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.compiler import compiles

from iscp_dagster.joblog.history import HistoryEntry
from iscp_dagster.model.batch import BatchRecord, Phase, Range
from iscp_dagster.model.jobs import Job, JobID, JobKey, JobStatus
from iscp_dagster.model.moment import Moment
from iscp_dagster.model.specs import JobSpec
from iscp_dagster.model.states import Event, JobState


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
        aware = value if value.tzinfo else value.replace(tzinfo=timezone.utc)
        return aware.astimezone(timezone.utc)


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


def to_row(job: Job) -> dict[str, Any]:
    """The job as column values."""
    return {
        "tenant": job.key.tenant,
        "table_id": job.key.table_id,
        "job_name": job.key.job_name,
        "job_id": job.registration,
        "job_spec": job.spec.to_json(),
        "job_state": int(job.state),
        "watermark": str(job.watermark),
        "watermark_version": job.watermark.version,
        "job_status": job.status.to_json(),
        "create_at": job.create_at,
        "drop_at": job.drop_at,
        "db_name": job.name.db,
        "table_name": job.name.table,
        "seq": job.seq,
        "run_id": job.run_id,
        "queued_to": None if job.queued_to is None else str(job.queued_to),
        "paused_at": job.paused_at,
        "rebuild": job.rebuild,
        "changed_at": job.changed_at,
        "collected_at": job.collected_at,
        **_to_batch_columns(job.batch),
    }


def from_row(row: sa.Row[Any]) -> Job:
    """The job from the columns that `to_row` made."""
    return Job(
        key=JobKey(tenant=row.tenant, table_id=row.table_id, job_name=row.job_name),
        registration=row.job_id,
        name=JobID(db=row.db_name, table=row.table_name, job=row.job_name),
        spec=JobSpec.from_json(row.job_spec),
        state=JobState(row.job_state),
        watermark=Moment.parse(row.watermark),
        status=JobStatus.from_json(row.job_status),
        create_at=row.create_at,
        drop_at=row.drop_at,
        seq=row.seq,
        run_id=row.run_id,
        batch=_parse_batch(row),
        queued_to=None if row.queued_to is None else Moment.parse(row.queued_to),
        paused_at=row.paused_at,
        rebuild=row.rebuild,
        changed_at=row.changed_at,
        collected_at=row.collected_at,
    )


def to_entry_row(entry: HistoryEntry) -> dict[str, Any]:
    """The entry as column values, without its number, which the database assigns."""
    return {
        "at": entry.at,
        "tenant": entry.key.tenant,
        "table_id": entry.key.table_id,
        "job_name": entry.key.job_name,
        "job_id": entry.registration,
        "db_name": entry.name.db,
        "table_name": entry.name.table,
        "event": entry.event.value,
        "from_state": None if entry.from_state is None else int(entry.from_state),
        "to_state": int(entry.to_state),
        "who": entry.actor,
        "range_from": None if entry.from_ is None else str(entry.from_),
        "range_to": None if entry.to is None else str(entry.to),
        "error_code": entry.code,
        "error_msg": entry.message,
        "inserted": entry.inserted,
        "deleted": entry.deleted,
        "bytes": entry.bytes,
        "seconds": entry.seconds,
    }


def from_entry_row(row: sa.Row[Any]) -> HistoryEntry:
    """The entry from a row of the history."""
    return HistoryEntry(
        number=row.number,
        at=row.at,
        key=JobKey(tenant=row.tenant, table_id=row.table_id, job_name=row.job_name),
        name=JobID(db=row.db_name, table=row.table_name, job=row.job_name),
        registration=row.job_id,
        event=Event(row.event),
        from_state=None if row.from_state is None else JobState(row.from_state),
        to_state=JobState(row.to_state),
        actor=row.who,
        from_=None if row.range_from is None else Moment.parse(row.range_from),
        to=None if row.range_to is None else Moment.parse(row.range_to),
        code=row.error_code,
        message=row.error_msg,
        inserted=row.inserted,
        deleted=row.deleted,
        bytes=row.bytes,
        seconds=row.seconds,
    )


def _to_batch_columns(batch: BatchRecord | None) -> dict[str, Any]:
    return {
        "batch_from": None if batch is None else str(batch.range.from_),
        "batch_to": None if batch is None else str(batch.range.to),
        "batch_phase": None if batch is None else batch.phase.value,
        "batch_layout": None if batch is None else dict(batch.layout),
    }


def _parse_batch(row: sa.Row[Any]) -> BatchRecord | None:
    if row.batch_phase is None:
        return None
    range_ = Range(from_=Moment.parse(row.batch_from), to=Moment.parse(row.batch_to))
    return BatchRecord(range=range_, phase=Phase(row.batch_phase), layout=row.batch_layout)
