"""Statements on standing registrations: jobs for every tenant, present and future."""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa

from iscp_dagster.joblog.sql.tables import ISCP_STANDING
from iscp_dagster.model.jobs import JobID
from iscp_dagster.model.specs import JobSpec
from sql_transactions.row_values import make_insert

STANDING = ISCP_STANDING.c


def match_standing(name: JobID) -> sa.ColumnElement[bool]:
    """Whether a row belongs to that job."""
    return sa.and_(
        STANDING.db_name == name.db,
        STANDING.table_name == name.table,
        STANDING.job_name == name.job,
    )


def insert_standing(connection: sa.Connection, name: JobID, spec: JobSpec, now: datetime) -> bool:
    """Insert the registration unless it exists; returns whether it was inserted."""
    values = {
        "db_name": name.db,
        "table_name": name.table,
        "job_name": name.job,
        "job_spec": spec.to_json(),
        "create_at": now,
    }
    insert = make_insert(connection.dialect, ISCP_STANDING).values(values).on_conflict_do_nothing()
    return bool(connection.execute(insert.returning(STANDING.job_name)).all())


def put_standing(connection: sa.Connection, name: JobID, spec: JobSpec, now: datetime) -> None:
    """Insert the registration, or change the spec of the existing one."""
    if not insert_standing(connection, name, spec, now):
        statement = (
            sa.update(ISCP_STANDING).where(match_standing(name)).values(job_spec=spec.to_json())
        )
        connection.execute(statement)


def delete_standing(connection: sa.Connection, name: JobID) -> bool:
    """Delete the registration; returns whether it existed."""
    return bool(connection.execute(sa.delete(ISCP_STANDING).where(match_standing(name))).rowcount)


def read_standing_specs(connection: sa.Connection) -> dict[JobID, JobSpec]:
    """All standing registrations, ordered by name."""
    query = sa.select(ISCP_STANDING).order_by(
        STANDING.db_name, STANDING.table_name, STANDING.job_name
    )
    return {
        JobID(db=row.db_name, table=row.table_name, job=row.job_name): JobSpec.from_json(
            row.job_spec
        )
        for row in connection.execute(query)
    }
