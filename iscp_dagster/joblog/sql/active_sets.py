"""The active rows of triggers: rows that met a trigger's condition and have not left it since.

Kept in the ISCP log's database, so that one transaction moves them and the watermark.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from iscp_dagster.joblog.sql.statements import split_for_statements, to_key_columns
from iscp_dagster.joblog.sql.tables import METADATA
from iscp_dagster.model.jobs import JobKey
from iscp_dagster.model.moment import START, Moment
from sql_transactions.row_values import build_rows_table, escape_nul, make_insert

ISCP_ACTIVE_SETS = sa.Table(
    "iscp_active_sets",
    METADATA,
    sa.Column("account_id", sa.Text, key="tenant", primary_key=True, comment="tenant"),
    sa.Column("table_id", sa.Text, primary_key=True, comment="Delta metaData.id"),
    sa.Column("job_name", sa.Text, primary_key=True, comment="the trigger"),
    sa.Column("job_id", sa.BigInteger, nullable=False, comment="the registration that keeps it"),
    sa.Column("definition", sa.Text, nullable=False, comment="digest of conditions and views"),
    sa.Column("number", sa.BigInteger, nullable=False, comment="of active rows"),
    sa.Column("upto", sa.BigInteger, nullable=False, comment="the last version looked at"),
    sa.Column("since", sa.Text, nullable=False, comment="version@microseconds: events come after"),
    sa.Column("gap", sa.Text, nullable=False, comment="the last range without events, and why"),
)
"""One row for each trigger and tenant that had an iteration."""

ISCP_ACTIVE = sa.Table(
    "iscp_active",
    METADATA,
    sa.Column("account_id", sa.Text, key="tenant", primary_key=True, comment="tenant"),
    sa.Column("table_id", sa.Text, primary_key=True, comment="Delta metaData.id"),
    sa.Column("job_name", sa.Text, primary_key=True, comment="the trigger"),
    sa.Column("digest", sa.Text, primary_key=True, comment="of event_key, which may be long"),
    sa.Column("event_key", sa.Text, nullable=False, comment="tenant and key, for people"),
)
"""One row for each active row of a trigger."""

_SETS, _ROWS = ISCP_ACTIVE_SETS.c, ISCP_ACTIVE.c


@dataclass(frozen=True, kw_only=True)
class ActiveSet:
    """The state of one trigger and tenant, besides its active rows."""

    registration: int
    definition: str
    row_count: int = 0
    upto: int = -1
    """The last version that its iterations have read."""
    since: Moment = START
    """The commit after which transitions are reported."""
    gap: str = ""
    """The last range without events, and why; empty if there is none."""


def read_active_sets(
    connection: sa.Connection, jobs: Collection[JobKey]
) -> dict[JobKey, ActiveSet]:
    """The sets of these jobs; a job without an iteration has no entry."""
    sets: dict[JobKey, ActiveSet] = {}
    for portion in split_for_statements(sorted(jobs)):
        query = sa.select(ISCP_ACTIVE_SETS).where(
            _match_jobs(connection, ISCP_ACTIVE_SETS, portion)
        )
        for row in connection.execute(query):
            key = JobKey(tenant=row.tenant, table_id=row.table_id, job_name=row.job_name)
            sets[key] = ActiveSet(
                registration=row.job_id,
                definition=row.definition,
                row_count=row.number,
                upto=row.upto,
                since=Moment.parse(row.since),
                gap=row.gap,
            )
    return sets


def read_active_keys(
    connection: sa.Connection, job: JobKey, candidates: Collection[str]
) -> frozenset[str]:
    """The event keys in `candidates` whose rows are active in the job's set."""
    by_digest = {_compute_digest(key): key for key in candidates}
    active: set[str] = set()
    for portion in split_for_statements(sorted(by_digest)):
        digests = build_rows_table(
            connection.dialect, [_ROWS.digest], [{"digest": digest} for digest in portion]
        )
        query = sa.select(_ROWS.digest).where(*_match_job(ISCP_ACTIVE, job))
        active |= set(connection.scalars(query.where(_ROWS.digest.in_(sa.select(digests)))))
    return frozenset(by_digest[digest] for digest in active)


def store_active_set(
    connection: sa.Connection,
    job: JobKey,
    active_set: ActiveSet,
    *,
    added: Collection[str] = (),
    removed: Collection[str] = (),
    replace_all: bool = False,
) -> None:
    """Store the job's set, and change its active rows.

    With `replace_all`, `added` replaces all of them. `active_set.number` is the caller's count
    after the change. Idempotent.
    """
    if replace_all:
        connection.execute(sa.delete(ISCP_ACTIVE).where(*_match_job(ISCP_ACTIVE, job)))
    for portion in split_for_statements(sorted(removed)):
        digests = build_rows_table(
            connection.dialect,
            [_ROWS.digest],
            [{"digest": _compute_digest(key)} for key in portion],
        )
        is_removed = _ROWS.digest.in_(sa.select(digests))
        connection.execute(sa.delete(ISCP_ACTIVE).where(*_match_job(ISCP_ACTIVE, job), is_removed))
    for portion in split_for_statements(sorted(added)):
        rows = [
            to_key_columns(job) | {"digest": _compute_digest(key), "event_key": escape_nul(key)}
            for key in portion
        ]
        _upsert_rows(connection, ISCP_ACTIVE, rows)
    store_active_sets(connection, {job: active_set})


def store_active_sets(connection: sa.Connection, sets: Mapping[JobKey, ActiveSet]) -> None:
    """Store the sets of jobs whose active rows did not change. Idempotent."""
    for portion in split_for_statements(sorted(sets)):
        _upsert_rows(
            connection,
            ISCP_ACTIVE_SETS,
            [to_key_columns(job) | _to_columns(sets[job]) for job in portion],
        )


def delete_active_sets(connection: sa.Connection, registrations: Mapping[JobKey, int]) -> None:
    """Delete the sets and rows of these registrations, unless another registration has them now."""
    sets = read_active_sets(connection, registrations)
    unclaimed = [
        job for job, active_set in sets.items() if active_set.registration == registrations[job]
    ]
    for portion in split_for_statements(sorted(unclaimed)):
        for table in (ISCP_ACTIVE, ISCP_ACTIVE_SETS):
            connection.execute(sa.delete(table).where(_match_jobs(connection, table, portion)))


def _compute_digest(key: str) -> str:
    return hashlib.blake2b(key.encode(), digest_size=16).hexdigest()


def _to_columns(active_set: ActiveSet) -> dict[str, Any]:
    return {
        "job_id": active_set.registration,
        "definition": active_set.definition,
        "number": active_set.row_count,
        "upto": active_set.upto,
        "since": str(active_set.since),
        "gap": active_set.gap,
    }


def _match_job(table: sa.Table, job: JobKey) -> list[sa.ColumnElement[bool]]:
    return [table.c[name] == value for name, value in to_key_columns(job).items()]


def _match_jobs(
    connection: sa.Connection, table: sa.Table, jobs: Iterable[JobKey]
) -> sa.ColumnElement[bool]:
    key = [table.c.tenant, table.c.table_id, table.c.job_name]
    keys = build_rows_table(connection.dialect, key, map(to_key_columns, jobs))
    return sa.tuple_(*key).in_(sa.select(keys))


def _upsert_rows(connection: sa.Connection, table: sa.Table, rows: list[dict[str, Any]]) -> None:
    """Insert the rows, or overwrite rows with the same key."""
    columns = [table.c[name] for name in rows[0]]
    # SQLite accepts `ON CONFLICT` after a SELECT only behind a WHERE.
    query = sa.select(build_rows_table(connection.dialect, columns, rows)).where(sa.true())
    insert = make_insert(connection.dialect, table).from_select(list(rows[0]), query)
    key = [column.key for column in table.primary_key]
    rest = {name: insert.excluded[name] for name in rows[0] if name not in key}
    connection.execute(
        insert.on_conflict_do_update(index_elements=list(table.primary_key), set_=rest)
    )
