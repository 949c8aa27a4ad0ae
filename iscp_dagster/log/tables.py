"""The ISCP log's table: seed 001's `mo_iscp_log`, the fence, and seed 004's batch record."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from iscp_dagster.core.batch import BatchRecord, Phase, Range
from iscp_dagster.core.jobs import Job, JobID, JobKey, JobStatus
from iscp_dagster.core.moment import Moment
from iscp_dagster.core.specs import JobSpec
from iscp_dagster.core.states import JobState


class UtcTime(sa.TypeDecorator[datetime]):
    """Aware UTC times, also where the database keeps no time zone (SQLite)."""

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


_JSON = sa.JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")

METADATA = sa.MetaData()

ISCP_LOG = sa.Table(
    "iscp_log",
    METADATA,
    sa.Column("account_id", sa.Text, primary_key=True, comment="tenant"),
    sa.Column("table_id", sa.Text, primary_key=True, comment="Delta metaData.id"),
    sa.Column("job_name", sa.Text, primary_key=True),
    sa.Column("job_id", sa.BigInteger, nullable=False, comment="one registration"),
    sa.Column("job_spec", _JSON, nullable=False),
    sa.Column("job_state", sa.SmallInteger, nullable=False, comment="core.states.JobState"),
    sa.Column("watermark", sa.Text, nullable=False, comment="version@microseconds"),
    sa.Column("watermark_version", sa.BigInteger, nullable=False, comment="to compare in SQL"),
    sa.Column("job_status", _JSON, nullable=False),
    sa.Column("create_at", UtcTime, nullable=False),
    sa.Column("drop_at", UtcTime),
    sa.Column("db_name", sa.Text, nullable=False),
    sa.Column("table_name", sa.Text, nullable=False),
    sa.Column("seq", sa.BigInteger, nullable=False, comment="grows with every change: the fence"),
    sa.Column("run_id", sa.Text, comment="run of the latest iteration"),
    sa.Column("batch_from", sa.Text, comment="version@microseconds"),
    sa.Column("batch_to", sa.Text, comment="version@microseconds"),
    sa.Column("batch_phase", sa.Text, comment="BEFORE or AFTER"),
    sa.Column("batch_layout", _JSON, comment="how the batch is cut into chunks"),
    sa.Index("iscp_log_by_table", "table_id", "account_id"),
    sa.Index("iscp_log_by_state", "job_state"),
    # Covers what a runner asks at every look.
    sa.Index(
        "iscp_log_standings", "table_id", "job_name", "watermark_version", "job_state", "drop_at"
    ),
)
"""One row a job."""


def to_row(job: Job) -> dict[str, Any]:
    """The job as column values."""
    return {
        "account_id": job.key.account,
        "table_id": job.key.table_id,
        "job_name": job.key.job_name,
        "job_id": job.job_id,
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
        **_batch_columns(job.batch),
    }


def from_row(row: sa.Row[Any]) -> Job:
    """The job that `to_row` gave."""
    return Job(
        key=JobKey(account=row.account_id, table_id=row.table_id, job_name=row.job_name),
        job_id=row.job_id,
        name=JobID(db=row.db_name, table=row.table_name, job=row.job_name),
        spec=JobSpec.from_json(row.job_spec),
        state=JobState(row.job_state),
        watermark=Moment.parse(row.watermark),
        status=JobStatus.from_json(row.job_status),
        create_at=row.create_at,
        drop_at=row.drop_at,
        seq=row.seq,
        run_id=row.run_id,
        batch=_batch(row),
    )


def _batch_columns(batch: BatchRecord | None) -> dict[str, Any]:
    return {
        "batch_from": None if batch is None else str(batch.range.from_),
        "batch_to": None if batch is None else str(batch.range.to),
        "batch_phase": None if batch is None else batch.phase.value,
        "batch_layout": None if batch is None else dict(batch.layout),
    }


def _batch(row: sa.Row[Any]) -> BatchRecord | None:
    if row.batch_phase is None:
        return None
    range_ = Range(from_=Moment.parse(row.batch_from), to=Moment.parse(row.batch_to))
    return BatchRecord(range=range_, phase=Phase(row.batch_phase), layout=row.batch_layout)
