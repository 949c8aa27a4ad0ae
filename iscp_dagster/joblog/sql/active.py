"""The active rows of triggers: which rows have met a trigger's condition and not left it since.

Kept in the ISCP log's database, so that they move in the transaction that moves the watermark.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from iscp_dagster.joblog.sql.statements import key_columns, portions
from iscp_dagster.joblog.sql.tables import METADATA
from iscp_dagster.model.jobs import JobKey
from iscp_dagster.model.moment import START, Moment
from sql_transactions.given import given, insert_into, without_nul

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
    """What is kept of one trigger and tenant, besides the active rows."""

    registration: int
    definition: str
    number: int = 0
    upto: int = -1
    """The version up to which its iterations have looked."""
    since: Moment = START
    """The commit after which transitions are told."""
    gap: str = ""
    """The last range that gave no events, and why; empty: none."""


def active_sets(connection: sa.Connection, jobs: Collection[JobKey]) -> dict[JobKey, ActiveSet]:
    """The sets of these jobs; no entry for a job that had no iteration."""
    found: dict[JobKey, ActiveSet] = {}
    for some in portions(sorted(jobs)):
        chosen = sa.select(ISCP_ACTIVE_SETS).where(_of(connection, ISCP_ACTIVE_SETS, some))
        for row in connection.execute(chosen):
            key = JobKey(tenant=row.tenant, table_id=row.table_id, job_name=row.job_name)
            found[key] = ActiveSet(
                registration=row.job_id,
                definition=row.definition,
                number=row.number,
                upto=row.upto,
                since=Moment.parse(row.since),
                gap=row.gap,
            )
    return found


def active_keys(connection: sa.Connection, job: JobKey, among: Collection[str]) -> frozenset[str]:
    """Those of the event keys `among` whose rows are active in the job's set."""
    by_digest = {_digest(key): key for key in among}
    found: set[str] = set()
    for some in portions(sorted(by_digest)):
        digests = given(connection.dialect, [_ROWS.digest], [{"digest": each} for each in some])
        chosen = sa.select(_ROWS.digest).where(*_is(ISCP_ACTIVE, job))
        found |= set(connection.scalars(chosen.where(_ROWS.digest.in_(sa.select(digests)))))
    return frozenset(by_digest[each] for each in found)


def keep(
    connection: sa.Connection,
    job: JobKey,
    held: ActiveSet,
    *,
    added: Collection[str] = (),
    removed: Collection[str] = (),
    anew: bool = False,
) -> None:
    """Put the job's set, and move its active rows; with `anew` the added ones are all there are.

    `held.number` is the caller's count after the move. Idempotent.
    """
    if anew:
        connection.execute(sa.delete(ISCP_ACTIVE).where(*_is(ISCP_ACTIVE, job)))
    for some in portions(sorted(removed)):
        digests = given(connection.dialect, [_ROWS.digest], [{"digest": _digest(k)} for k in some])
        gone = _ROWS.digest.in_(sa.select(digests))
        connection.execute(sa.delete(ISCP_ACTIVE).where(*_is(ISCP_ACTIVE, job), gone))
    for some in portions(sorted(added)):
        rows = [
            key_columns(job) | {"digest": _digest(k), "event_key": without_nul(k)} for k in some
        ]
        _put(connection, ISCP_ACTIVE, rows)
    keep_sets(connection, {job: held})


def keep_sets(connection: sa.Connection, sets: Mapping[JobKey, ActiveSet]) -> None:
    """Put the sets of jobs whose active rows did not move. Idempotent."""
    for some in portions(sorted(sets)):
        _put(connection, ISCP_ACTIVE_SETS, [key_columns(job) | _values(sets[job]) for job in some])


def forget(connection: sa.Connection, registrations: Mapping[JobKey, int]) -> None:
    """Delete what these registrations kept, unless another registration keeps it now."""
    held = active_sets(connection, registrations)
    gone = [job for job, its in held.items() if its.registration == registrations[job]]
    for some in portions(sorted(gone)):
        for table in (ISCP_ACTIVE, ISCP_ACTIVE_SETS):
            connection.execute(sa.delete(table).where(_of(connection, table, some)))


def _digest(key: str) -> str:
    return hashlib.blake2b(key.encode(), digest_size=16).hexdigest()


def _values(held: ActiveSet) -> dict[str, Any]:
    return {
        "job_id": held.registration,
        "definition": held.definition,
        "number": held.number,
        "upto": held.upto,
        "since": str(held.since),
        "gap": held.gap,
    }


def _is(table: sa.Table, job: JobKey) -> list[sa.ColumnElement[bool]]:
    return [table.c[name] == value for name, value in key_columns(job).items()]


def _of(
    connection: sa.Connection, table: sa.Table, jobs: Iterable[JobKey]
) -> sa.ColumnElement[bool]:
    key = [table.c.tenant, table.c.table_id, table.c.job_name]
    chosen = given(connection.dialect, key, map(key_columns, jobs))
    return sa.tuple_(*key).in_(sa.select(chosen))


def _put(connection: sa.Connection, table: sa.Table, rows: list[dict[str, Any]]) -> None:
    """Insert the rows, or overwrite those of their keys."""
    columns = [table.c[name] for name in rows[0]]
    # SQLite takes `ON CONFLICT` after a SELECT only behind a WHERE.
    chosen = sa.select(given(connection.dialect, columns, rows)).where(sa.true())
    insert = insert_into(connection.dialect, table).from_select(list(rows[0]), chosen)
    key = [column.key for column in table.primary_key]
    rest = {name: insert.excluded[name] for name in rows[0] if name not in key}
    connection.execute(
        insert.on_conflict_do_update(index_elements=list(table.primary_key), set_=rest)
    )
