"""The statements on standing registrations: jobs of every tenant, present and future."""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa

from iscp_dagster.joblog.sql.tables import ISCP_STANDING
from iscp_dagster.model.jobs import JobID
from iscp_dagster.model.specs import JobSpec
from sql_transactions.given import insert_into

STANDING = ISCP_STANDING.c


def is_of(name: JobID) -> sa.ColumnElement[bool]:
    """Whether a row is of that job."""
    return sa.and_(
        STANDING.db_name == name.db,
        STANDING.table_name == name.table,
        STANDING.job_name == name.job,
    )


def insert_standing(connection: sa.Connection, name: JobID, spec: JobSpec, now: datetime) -> bool:
    """Insert it unless there is one; returns whether it did."""
    values = {
        "db_name": name.db,
        "table_name": name.table,
        "job_name": name.job,
        "job_spec": spec.to_json(),
        "create_at": now,
    }
    insert = insert_into(connection.dialect, ISCP_STANDING).values(values).on_conflict_do_nothing()
    return bool(connection.execute(insert.returning(STANDING.job_name)).all())


def put_standing(connection: sa.Connection, name: JobID, spec: JobSpec, now: datetime) -> None:
    """Insert it, or change the spec of the existing one."""
    if not insert_standing(connection, name, spec, now):
        changed = sa.update(ISCP_STANDING).where(is_of(name)).values(job_spec=spec.to_json())
        connection.execute(changed)


def delete_standing(connection: sa.Connection, name: JobID) -> bool:
    """Delete it; returns whether there was one."""
    return bool(connection.execute(sa.delete(ISCP_STANDING).where(is_of(name))).rowcount)


def standing_specs(connection: sa.Connection) -> dict[JobID, JobSpec]:
    """All standing registrations, ordered by name."""
    chosen = sa.select(ISCP_STANDING).order_by(
        STANDING.db_name, STANDING.table_name, STANDING.job_name
    )
    return {
        JobID(db=row.db_name, table=row.table_name, job=row.job_name): JobSpec.from_json(
            row.job_spec
        )
        for row in connection.execute(chosen)
    }
