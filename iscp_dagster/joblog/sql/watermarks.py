"""How far an index's jobs are, for frequent readers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from iscp_dagster.joblog.sql.statements import COLUMNS, LIVE, split_for_statements
from iscp_dagster.model.jobs import JobID
from sql_transactions.engine import begin_transaction

_SELECTED = (COLUMNS.table_id, COLUMNS.tenant, COLUMNS.watermark_version, COLUMNS.job_id)


@dataclass(frozen=True, kw_only=True)
class IndexWatermarks:
    """The watermarks of an index's live jobs on the most recently registered table."""

    table_id: str = ""
    versions: Mapping[str, int] = field(default_factory=dict)
    """By tenant; -1 before the first iteration."""
    registrations: Mapping[str, int] = field(default_factory=dict)
    """By tenant, its job's registration number; later ones are higher."""


def read_watermarks(
    engine: sa.Engine, name: JobID, tenants: Collection[str] | None = None
) -> IndexWatermarks:
    """Read the watermarks of all tenants or of some. Raises UnavailableError."""
    of_index = (
        COLUMNS.db_name == name.db,
        COLUMNS.table_name == name.table,
        COLUMNS.job_name == name.job,
        LIVE,
    )
    query = sa.select(*_SELECTED).where(*of_index)
    with begin_transaction(engine, writes=False) as connection:
        if tenants is None:
            return _select_newest_table(list(connection.execute(query)))
        statements = [
            query.where(COLUMNS.tenant.in_(portion))
            for portion in split_for_statements(sorted(tenants))
        ]
        return _select_newest_table(
            [row for statement in statements for row in connection.execute(statement)]
        )


def _select_newest_table(rows: Sequence[Any]) -> IndexWatermarks:
    """Leave out jobs of tables that were replaced."""
    if not rows:
        return IndexWatermarks()
    table_id = max(rows, key=lambda row: row.job_id).table_id
    newest = [row for row in rows if row.table_id == table_id]
    return IndexWatermarks(
        table_id=table_id,
        versions={row.tenant: row.watermark_version for row in newest},
        registrations={row.tenant: row.job_id for row in newest},
    )
