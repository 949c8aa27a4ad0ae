"""The columns of `iscp_log`, as the design note names them and as databases have them."""

from datetime import datetime, timezone

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from iscp_dagster.joblog.sql.tables import ISCP_LOG
from iscp_dagster.model.jobs import JobStatus
from iscp_dagster.model.moment import Moment
from support.jobs.log_rows import add, key

NOTED = {
    "account_id": ("TEXT", "TEXT", False),
    "table_id": ("TEXT", "TEXT", False),
    "job_name": ("TEXT", "TEXT", False),
    "job_id": ("BIGINT", "BIGINT", False),
    "job_spec": ("JSONB", "JSON", False),
    "job_state": ("SMALLINT", "SMALLINT", False),
    "watermark": ("TEXT", "TEXT", False),
    "job_status": ("JSONB", "JSON", False),
    "create_at": ("TIMESTAMP WITH TIME ZONE", "DATETIME", False),
    "drop_at": ("TIMESTAMP WITH TIME ZONE", "DATETIME", True),
}
"""The design note's columns: type in PostgreSQL, type in SQLite, whether null is allowed."""


def test_the_columns_of_the_design_note_are_there():
    found = {
        column.name: (
            column.type.compile(postgresql.dialect()),
            column.type.compile(sqlite.dialect()),
            column.nullable,
        )
        for column in ISCP_LOG.columns
    }
    assert NOTED.items() <= found.items()
    assert [each.name for each in ISCP_LOG.primary_key] == ["account_id", "table_id", "job_name"]


def test_the_database_refuses_null(log):
    add(log, key())
    for name in (column.name for column in ISCP_LOG.columns if not column.nullable):
        with pytest.raises(sa.exc.IntegrityError), log.engine.begin() as connection:
            connection.exec_driver_sql(f"UPDATE iscp_log SET {name} = NULL")


def test_a_status_is_stored_under_the_design_notes_names():
    at = datetime(2025, 6, 18, 12, tzinfo=timezone.utc)
    status = JobStatus(
        from_=Moment(3, 30), to=Moment(5, 50), start_at=at, end_at=at, code=1_100, message="away"
    )
    assert status.to_json() == {
        "from": "3@30",
        "to": "5@50",
        "start_at": "2025-06-18T12:00:00+00:00",
        "end_at": "2025-06-18T12:00:00+00:00",
        "error_code": 1_100,
        "error_msg": "away",
        "counts": {},
        "attempts": 0,
        "shared_by": 1,
        "repairs": 0,
    }
