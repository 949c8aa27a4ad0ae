"""Claims: which runtime drives an invocation, and what it needs for that."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Any

import sqlalchemy as sa

from durable_invocations.protocol.failures import FailedExecutions
from durable_invocations.runtime.sql.packing import unpack_deployment, unpack_error, unpack_frame
from durable_invocations.runtime.sql.tables import (
    DEPLOYMENTS,
    INVOCATION_NEWS_TABLE,
    INVOCATIONS,
    INVOCATIONS_TABLE,
    IS_READY,
    IS_RUNNING,
    JOURNAL,
    NEWS,
    RUNTIMES,
    RUNTIMES_TABLE,
    SERVICE_DEPLOYMENTS_TABLE,
    SERVICE_STATE_TABLE,
    SERVICES,
    SERVICES_TABLE,
    STATE,
)
from durable_invocations.runtime.sql.transaction import UnitOfWork
from durable_invocations.runtime.store.deployments import Deployment
from durable_invocations.runtime.store.operations import Beat, Claim, Recover, Release
from durable_invocations.runtime.store.outcomes import Claimed
from durable_invocations.runtime.store.views import Status
from sql_transactions.row_values import make_insert

MOST_EAGER = 4_096
"""The most names of a state that a claim includes."""
StateOf = tuple[tuple[tuple[bytes, bytes], ...], bool]
"""Names and values, and whether there are more."""

_CHOSEN = sa.func.coalesce(INVOCATIONS.deployment_id, SERVICES.deployment_id)
_READY = (
    sa.select(
        *(INVOCATIONS[name] for name in ("number", "id", "service", "handler", "key")),
        *(INVOCATIONS[name] for name in ("fence", "retries", "known", "error")),
        DEPLOYMENTS.id.label("through"),
    )
    .outerjoin(SERVICES_TABLE, SERVICES.name == INVOCATIONS.service)
    .join(SERVICE_DEPLOYMENTS_TABLE, DEPLOYMENTS.id == _CHOSEN)
    .where(IS_READY, DEPLOYMENTS.id.not_in(sa.bindparam("without", expanding=True)))
    .order_by(INVOCATIONS.number)
    .limit(sa.bindparam("most"))
)
_TAKE = (
    sa.update(INVOCATIONS_TABLE)
    .where(INVOCATIONS.number == sa.bindparam("taken"))
    .values(
        status=int(Status.RUNNING),
        owner=sa.bindparam("by"),
        fence=INVOCATIONS.fence + 1,
        attempts=INVOCATIONS.attempts + 1,
        deployment_id=sa.bindparam("through"),
        known=sa.bindparam("length"),
        retries=sa.bindparam("failed"),
        next_at=None,
        changed=sa.bindparam("now"),
    )
)
_DEPLOYMENTS = sa.select(SERVICE_DEPLOYMENTS_TABLE).where(
    DEPLOYMENTS.id.in_(sa.bindparam("ids", expanding=True))
)
_ENTRIES = (
    sa.select(*(JOURNAL[name] for name in ("invocation", "code", "flags", "body", "result")))
    .add_columns(JOURNAL.created)
    .where(JOURNAL.invocation.in_(sa.bindparam("numbers", expanding=True)))
    .order_by(JOURNAL.invocation, JOURNAL.idx)
)
_AT = (STATE.service == sa.bindparam("of"), STATE.key == sa.bindparam("at"))
_SIZE = sa.func.length(STATE.name) + sa.func.length(STATE.value)
_FIRST = (
    sa.select(STATE.name, _SIZE.label("size"))
    .where(*_AT)
    .order_by(STATE.name)
    .limit(MOST_EAGER + 1)
    .subquery()
)
_SIZED = sa.select(
    _FIRST, sa.func.sum(_FIRST.c.size).over(order_by=_FIRST.c.name).label("total")
).subquery()
_FITS = _SIZED.c.total <= sa.bindparam("bound")
# Only values that the claim includes are read: others may be large.
_STATE = (
    sa.select(_SIZED.c.name, sa.case((_FITS, STATE.value)).label("value"))
    .join(SERVICE_STATE_TABLE, sa.and_(*_AT, STATE.name == _SIZED.c.name))
    .where(_SIZED.c.total - _SIZED.c.size <= sa.bindparam("bound"))
    .order_by(_SIZED.c.name)
)


def claim(work: UnitOfWork, operation: Claim) -> tuple[Claimed, ...]:
    """See the operation."""
    parameters = {"most": operation.most, "without": sorted(operation.without)}
    rows = work.connection.execute(_READY, parameters).all()
    if len(rows) < operation.most and not operation.without:
        # All that this transaction made ready is claimed.
        work.ready = False
    if not rows:
        return ()
    journals = _read_journals(work, [row.number for row in rows])
    failed = {row.number: _count_failed(row, len(journals[row.number])) for row in rows}
    _ensure_runtime(work, operation.owner)
    updates = [
        {"taken": row.number, "by": operation.owner, "through": row.through, "now": work.now}
        | {"length": len(journals[row.number]), "failed": failed[row.number]}
        for row in rows
    ]
    work.connection.execute(_TAKE, updates)
    ids = sorted({row.through for row in rows})
    served = {
        row.id: unpack_deployment(row)
        for row in work.connection.execute(_DEPLOYMENTS, {"ids": ids})
    }
    return tuple(
        _build_claimed(
            row,
            served[row.through],
            journals[row.number],
            _read_state(work, row, operation.eager_bytes),
            failed[row.number],
        )
        for row in rows
    )


def is_claimable(connection: sa.Connection) -> bool:
    """Whether a claim would get anything."""
    return connection.execute(_READY, {"most": 1, "without": []}).first() is not None


def release(work: UnitOfWork, operation: Release) -> int:
    """See the operation."""
    query = sa.select(*(INVOCATIONS[name] for name in ("number", "id", "fence")))
    rows = work.connection.execute(query.where(IS_RUNNING, INVOCATIONS.owner == operation.owner))
    claims = set(operation.driven)
    return _free_invocations(
        work, [row.number for row in rows if (row.id, row.fence) not in claims]
    )


def record_beat(work: UnitOfWork, operation: Beat) -> int:
    """See the operation."""
    row = {"owner": operation.owner, "beat": 1}
    insert = make_insert(work.connection.dialect, RUNTIMES_TABLE).values(row)
    upsert = insert.on_conflict_do_update(
        index_elements=[RUNTIMES.owner], set_={"beat": RUNTIMES.beat + 1}
    )
    return int(work.connection.scalar(upsert.returning(RUNTIMES.beat)) or 0)


def recover(work: UnitOfWork, operation: Recover) -> int:
    """See the operation."""
    count = 0
    for owner, beat in operation.beats:
        conditions = (RUNTIMES.owner == owner, RUNTIMES.beat == beat)
        if work.connection.execute(sa.delete(RUNTIMES_TABLE).where(*conditions)).rowcount:
            work.connection.execute(sa.delete(INVOCATION_NEWS_TABLE).where(NEWS.owner == owner))
            count += release(work, Release(owner=owner))
    return count


def _ensure_runtime(work: UnitOfWork, owner: str) -> None:
    """Let others see that the runtime is alive, even if they considered it dead."""
    insert = make_insert(work.connection.dialect, RUNTIMES_TABLE)
    row = {"owner": owner, "beat": 0}
    work.connection.execute(insert.on_conflict_do_nothing().values(row))


def _free_invocations(work: UnitOfWork, numbers: Sequence[int]) -> int:
    if numbers:
        update = (
            sa.update(INVOCATIONS_TABLE)
            .where(INVOCATIONS.number == sa.bindparam("freed"))
            .values(status=int(Status.READY), owner=None, changed=work.now)
        )
        work.connection.execute(update, [{"freed": number} for number in numbers])
        work.ready = True
    return len(numbers)


def _read_journals(work: UnitOfWork, numbers: Collection[int]) -> dict[int, list[sa.Row[Any]]]:
    journals: dict[int, list[sa.Row[Any]]] = defaultdict(list)
    for row in work.connection.execute(_ENTRIES, {"numbers": list(numbers)}):
        journals[row.invocation].append(row)
    return journals


def _read_state(work: UnitOfWork, row: Any, bound: int) -> StateOf:
    if not row.key:
        return (), False
    parameters = {"of": row.service, "at": row.key, "bound": bound}
    pairs = work.connection.execute(_STATE, parameters).all()
    fitting = tuple((pair.name, pair.value) for pair in pairs if pair.value is not None)
    return fitting[:MOST_EAGER], len(fitting[:MOST_EAGER]) < len(pairs)


def _count_failed(row: Any, length: int) -> int:
    """How many attempts failed since any attempt stored the last entry."""
    return 0 if length > row.known else int(row.retries)


def _build_claimed(
    row: Any, served: Deployment, journal: Sequence[sa.Row[Any]], state: StateOf, failed: int
) -> Claimed:
    return Claimed(
        id=row.id,
        fence=row.fence + 1,
        service=row.service,
        handler=row.handler,
        key=row.key,
        deployment=served,
        journal=tuple(unpack_frame(entry) for entry in journal),
        state=state[0],
        partial_state=state[1],
        retries=failed,
        stored_at=journal[-1].created,
        run_attempts=_list_run_attempts(row.error, len(journal)),
    )


def _list_run_attempts(error: str | None, length: int) -> tuple[FailedExecutions, ...]:
    """The failed executions of Runs beyond the journal's `length`."""
    parsed = unpack_error(error)
    runs = parsed.run_attempts if parsed else None
    return tuple(run for run in runs or () if run.index >= length)
