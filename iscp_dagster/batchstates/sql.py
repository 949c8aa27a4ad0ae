"""States in the ISCP log's database: SQLite or PostgreSQL."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from iscp_dagster.batchstates.compare import (
    check_and_sort_writes,
    compute_state_id,
    find_settled_outcome,
    format_layout,
    map_by_id,
)
from iscp_dagster.batchstates.protocol import (
    Outcomes,
    StateKey,
    StateStore,
    StateWrite,
    StoredState,
)
from iscp_dagster.joblog.sql.engine import ENSURE_LOCK, STATES, open_engine
from iscp_dagster.joblog.sql.statements import split_for_statements
from iscp_dagster.model.batch import BatchRecord, Phase, Range
from iscp_dagster.model.errors import FenceError
from iscp_dagster.model.moment import Moment
from sql_transactions.engine import begin_transaction, prepare_engine
from sql_transactions.row_values import build_rows_table, make_insert
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

    Rows are locked, compared and written in one transaction. `database` is a URL (see
    `open_engine`) or an engine of the caller's.
    """

    def __init__(self, database: str | sa.URL | sa.Engine) -> None:
        self.engine = prepare_engine(
            database if isinstance(database, sa.Engine) else open_engine(database, STATES), STATES
        )

    def ensure(self) -> None:
        with begin_transaction(self.engine, writes=False) as connection:
            if sa.inspect(connection).has_table(ISCP_STATES.name):
                return
        ensure_tables(self.engine, STATES_METADATA, lock=ENSURE_LOCK)

    def read(self, keys: Collection[StateKey]) -> Mapping[StateKey, StoredState]:
        keys_by_id, states = map_by_id(keys), dict[StateKey, StoredState]()
        with begin_transaction(self.engine, writes=False) as connection:
            for portion in split_for_statements(list(keys_by_id)):
                rows = connection.execute(sa.select(ISCP_STATES).where(_match_ids(portion)))
                states |= {keys_by_id[row.state_id]: _from_row(row) for row in rows}
        return states

    def write_many(self, writes: Collection[StateWrite]) -> Outcomes:
        outcomes: dict[StateKey, StoredState | FenceError] = {}
        for portion in split_for_statements(check_and_sort_writes(writes)):
            # One transaction per portion: rows are locked in one order, so there is no deadlock.
            with begin_transaction(self.engine, writes=True) as connection:
                outcomes |= _write_states(connection, portion)
        return outcomes

    def forget(self, keys: Collection[StateKey]) -> int:
        forgotten = 0
        for portion in split_for_statements(list(map_by_id(keys))):
            with begin_transaction(self.engine, writes=True) as connection:
                forgotten += connection.execute(
                    sa.delete(ISCP_STATES).where(_match_ids(portion))
                ).rowcount
        return forgotten


def _write_states(connection: sa.Connection, writes: Sequence[StateWrite]) -> Outcomes:
    stored = _lock_states(connection, writes)
    settled = {
        write.key: find_settled_outcome(write, stored.get(compute_state_id(write.key)))
        for write in writes
    }
    outcomes = {key: outcome for key, outcome in settled.items() if outcome is not None}
    pending = [write for write in writes if write.key not in outcomes]
    _update_states(connection, [write for write in pending if write.expected is not None])
    raced = _insert_states(connection, [write for write in pending if write.expected is None])
    outcomes |= {write.key: write.new_state for write in pending if write not in raced}
    return {**outcomes, **_write_states(connection, raced)} if raced else outcomes


def _lock_states(connection: sa.Connection, writes: Sequence[StateWrite]) -> dict[str, StoredState]:
    """The states, locked until the transaction ends; on SQLite the whole file already is."""
    ids = [compute_state_id(write.key) for write in writes]
    query = sa.select(ISCP_STATES).where(_match_ids(ids)).order_by(_COLUMNS.state_id)
    return {row.state_id: _from_row(row) for row in connection.execute(query.with_for_update())}


def _update_states(connection: sa.Connection, writes: Sequence[StateWrite]) -> None:
    if writes:
        rows = [_to_row(write) for write in writes]
        names = _to_columns(writes[0].new_state)
        values = build_rows_table(
            connection.dialect, [_COLUMNS.state_id, *(_COLUMNS[name] for name in names)], rows
        )
        assignments = {name: values.c[name] for name in names}
        same_row = _COLUMNS.state_id == values.c.state_id
        connection.execute(sa.update(ISCP_STATES).values(assignments).where(same_row))


def _insert_states(connection: sa.Connection, writes: Sequence[StateWrite]) -> list[StateWrite]:
    """Insert the writes; returns the writes that another transaction inserted first."""
    if not writes:
        return []
    statement = make_insert(connection.dialect, ISCP_STATES)
    insert = statement.on_conflict_do_nothing().returning(_COLUMNS.state_id)
    inserted = set(connection.scalars(insert, [_to_row(write) for write in writes]))
    return [write for write in writes if compute_state_id(write.key) not in inserted]


def _match_ids(ids: Sequence[str]) -> sa.ColumnElement[bool]:
    return _COLUMNS.state_id.in_(ids)


def _to_row(write: StateWrite) -> dict[str, Any]:
    return {
        "state_id": compute_state_id(write.key),
        "tenant": write.key.tenant,
        "table_id": write.key.table_id,
        "job_name": write.key.job_name,
        "job_id": write.key.registration,
        **_to_columns(write.new_state),
    }


def _to_columns(state: StoredState) -> dict[str, Any]:
    return {
        "fence": state.fence,
        "holder": state.holder,
        "batch_from": str(state.record.range.from_),
        "batch_to": str(state.record.range.to),
        "batch_phase": state.record.phase.value,
        "batch_layout": format_layout(state.record.layout),
    }


def _from_row(row: sa.Row[Any]) -> StoredState:
    range_ = Range(from_=Moment.parse(row.batch_from), to=Moment.parse(row.batch_to))
    layout = json.loads(row.batch_layout)
    record = BatchRecord(range=range_, phase=Phase(row.batch_phase), layout=layout)
    return StoredState(record=record, fence=row.fence, holder=row.holder)
