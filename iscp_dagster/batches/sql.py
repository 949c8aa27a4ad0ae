"""States in the ISCP log's database: SQLite or PostgreSQL."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from iscp_dagster.batches.compare import by_id, checked, layout_text, settled, state_id
from iscp_dagster.batches.protocol import Held, Outcomes, StateKey, StateStore, StateWrite
from iscp_dagster.joblog.sql.engine import ENSURE_LOCK, STATES, open_engine
from iscp_dagster.joblog.sql.statements import portions
from iscp_dagster.model.batch import BatchRecord, Phase, Range
from iscp_dagster.model.errors import FenceError
from iscp_dagster.model.moment import Moment
from sql_transactions.engine import prepare, transaction
from sql_transactions.given import given, insert_into
from sql_transactions.tables import ensure_tables

STATES_METADATA = sa.MetaData()

ISCP_STATES = sa.Table(
    "iscp_states",
    STATES_METADATA,
    # PostgreSQL's B-trees do not take long names.
    sa.Column("state_id", sa.Text, primary_key=True, comment="SHA-256 of the next four"),
    sa.Column("account_id", sa.Text, key="tenant", nullable=False, comment="tenant"),
    sa.Column("table_id", sa.Text, nullable=False, comment="Delta metaData.id"),
    sa.Column("job_name", sa.Text, nullable=False),
    sa.Column("job_id", sa.BigInteger, nullable=False, comment="one registration"),
    sa.Column("fence", sa.BigInteger, nullable=False, comment="grows with each write"),
    sa.Column("holder", sa.Text, nullable=False, comment="the run that wrote it"),
    sa.Column("batch_from", sa.Text, nullable=False, comment="version@microseconds"),
    sa.Column("batch_to", sa.Text, nullable=False, comment="version@microseconds"),
    sa.Column("batch_phase", sa.Text, nullable=False, comment="BEFORE or AFTER"),
    # Text, since JSONB would change numbers and refuse some characters.
    sa.Column("batch_layout", sa.Text, nullable=False, comment="JSON"),
)
"""One row per registration of a job."""

_COLUMNS = ISCP_STATES.c


class SqlStates(StateStore):
    """A StateStore in SQLite or PostgreSQL, beside the ISCP log.

    Rows are locked, compared and written in one transaction. `at` is a URL (see `open_engine`)
    or an engine of the caller's.
    """

    def __init__(self, at: str | sa.URL | sa.Engine) -> None:
        self.engine = prepare(at if isinstance(at, sa.Engine) else open_engine(at, STATES), STATES)

    def ensure(self) -> None:
        with transaction(self.engine, writes=False) as connection:
            if sa.inspect(connection).has_table(ISCP_STATES.name):
                return
        ensure_tables(self.engine, STATES_METADATA, lock=ENSURE_LOCK)

    def read(self, keys: Collection[StateKey]) -> Mapping[StateKey, Held]:
        wanted, found = by_id(keys), dict[StateKey, Held]()
        with transaction(self.engine, writes=False) as connection:
            for some in portions(list(wanted)):
                rows = connection.execute(sa.select(ISCP_STATES).where(_among(some)))
                found |= {wanted[row.state_id]: _from_row(row) for row in rows}
        return found

    def write_many(self, writes: Collection[StateWrite]) -> Outcomes:
        outcomes: dict[StateKey, Held | FenceError] = {}
        for some in portions(checked(writes)):
            # One transaction per portion: rows are locked in one order, so there is no deadlock.
            with transaction(self.engine, writes=True) as connection:
                outcomes |= _written(connection, some)
        return outcomes

    def forget(self, keys: Collection[StateKey]) -> int:
        forgotten = 0
        for some in portions(list(by_id(keys))):
            with transaction(self.engine, writes=True) as connection:
                forgotten += connection.execute(sa.delete(ISCP_STATES).where(_among(some))).rowcount
        return forgotten


def _written(connection: sa.Connection, writes: Sequence[StateWrite]) -> Outcomes:
    found = _locked(connection, writes)
    known = {write.key: settled(write, found.get(state_id(write.key))) for write in writes}
    outcomes = {key: outcome for key, outcome in known.items() if outcome is not None}
    due = [write for write in writes if write.key not in outcomes]
    _update(connection, [write for write in due if write.seen is not None])
    raced = _insert(connection, [write for write in due if write.seen is None])
    outcomes |= {write.key: write.held for write in due if write not in raced}
    return {**outcomes, **_written(connection, raced)} if raced else outcomes


def _locked(connection: sa.Connection, writes: Sequence[StateWrite]) -> dict[str, Held]:
    """What is held, locked until the transaction ends; on SQLite the whole file already is."""
    ids = [state_id(write.key) for write in writes]
    chosen = sa.select(ISCP_STATES).where(_among(ids)).order_by(_COLUMNS.state_id)
    return {row.state_id: _from_row(row) for row in connection.execute(chosen.with_for_update())}


def _update(connection: sa.Connection, writes: Sequence[StateWrite]) -> None:
    if writes:
        rows = [_to_row(write) for write in writes]
        names = _state_columns(writes[0].held)
        new = given(connection.dialect, [_COLUMNS.state_id, *(_COLUMNS[n] for n in names)], rows)
        changed = {name: new.c[name] for name in names}
        same = _COLUMNS.state_id == new.c.state_id
        connection.execute(sa.update(ISCP_STATES).values(changed).where(same))


def _insert(connection: sa.Connection, writes: Sequence[StateWrite]) -> list[StateWrite]:
    """Insert the writes; returns those that another transaction inserted first."""
    if not writes:
        return []
    new = insert_into(connection.dialect, ISCP_STATES)
    insert = new.on_conflict_do_nothing().returning(_COLUMNS.state_id)
    done = set(connection.scalars(insert, [_to_row(write) for write in writes]))
    return [write for write in writes if state_id(write.key) not in done]


def _among(ids: Sequence[str]) -> sa.ColumnElement[bool]:
    return _COLUMNS.state_id.in_(ids)


def _to_row(write: StateWrite) -> dict[str, Any]:
    return {
        "state_id": state_id(write.key),
        "tenant": write.key.tenant,
        "table_id": write.key.table_id,
        "job_name": write.key.job_name,
        "job_id": write.key.registration,
        **_state_columns(write.held),
    }


def _state_columns(held: Held) -> dict[str, Any]:
    return {
        "fence": held.fence,
        "holder": held.holder,
        "batch_from": str(held.record.range.from_),
        "batch_to": str(held.record.range.to),
        "batch_phase": held.record.phase.value,
        "batch_layout": layout_text(held.record.layout),
    }


def _from_row(row: sa.Row[Any]) -> Held:
    range_ = Range(from_=Moment.parse(row.batch_from), to=Moment.parse(row.batch_to))
    layout = json.loads(row.batch_layout)
    record = BatchRecord(range=range_, phase=Phase(row.batch_phase), layout=layout)
    return Held(record=record, fence=row.fence, holder=row.holder)
