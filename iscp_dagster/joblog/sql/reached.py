"""How far an index's jobs are, for readers that ask often."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from iscp_dagster.joblog.sql.statements import COLUMNS, LIVE, portions
from iscp_dagster.model.jobs import JobID
from sql_transactions.engine import transaction

_CHOSEN = (COLUMNS.table_id, COLUMNS.tenant, COLUMNS.watermark_version, COLUMNS.job_id)


@dataclass(frozen=True, kw_only=True)
class Reached:
    """The watermarks of one index's live jobs, on the table that was registered last."""

    table_id: str = ""
    versions: Mapping[str, int] = field(default_factory=dict)
    """By tenant; -1 before its first iteration."""
    registrations: Mapping[str, int] = field(default_factory=dict)
    """By tenant: the number of its job's registration; later ones are higher."""


def reached(engine: sa.Engine, name: JobID, tenants: Collection[str] | None = None) -> Reached:
    """Read the watermarks of all tenants or of some. Raises UnavailableError."""
    of_index = (
        COLUMNS.db_name == name.db,
        COLUMNS.table_name == name.table,
        COLUMNS.job_name == name.job,
        LIVE,
    )
    chosen = sa.select(*_CHOSEN).where(*of_index)
    with transaction(engine, writes=False) as connection:
        if tenants is None:
            return _newest(list(connection.execute(chosen)))
        some = [chosen.where(COLUMNS.tenant.in_(each)) for each in portions(sorted(tenants))]
        return _newest([row for each in some for row in connection.execute(each)])


def _newest(rows: Sequence[Any]) -> Reached:
    """Leave out the jobs of tables that another has taken the place of."""
    if not rows:
        return Reached()
    table_id = max(rows, key=lambda row: row.job_id).table_id
    held = [row for row in rows if row.table_id == table_id]
    return Reached(
        table_id=table_id,
        versions={row.tenant: row.watermark_version for row in held},
        registrations={row.tenant: row.job_id for row in held},
    )
