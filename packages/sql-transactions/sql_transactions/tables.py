"""Makes missing tables, even if other processes do so at the same time."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.schema import CreateIndex, CreateTable

from sql_transactions.engine import begin_transaction, use_wal


def find_missing_column(engine: sa.Engine, metadata: sa.MetaData) -> tuple[str, str] | None:
    """The first table and column that an existing table lacks; None if all have theirs."""
    with begin_transaction(engine, writes=False) as connection:
        inspector = sa.inspect(connection)
        existing = set(inspector.get_table_names())
        for table in (table for table in metadata.sorted_tables if table.name in existing):
            columns = {column["name"] for column in inspector.get_columns(table.name)}
            if missing := sorted({column.name for column in table.columns} - columns):
                return table.name, missing[0]
    return None


def ensure_tables(engine: sa.Engine, metadata: sa.MetaData, *, lock: int) -> None:
    """Make missing tables with their indexes; SQLite gets a write-ahead log. Idempotent.

    `lock` is the PostgreSQL advisory lock under which they are made.
    """
    with begin_transaction(engine, writes=False) as connection:
        existing = set(sa.inspect(connection).get_table_names())
    if existing.issuperset(metadata.tables):
        return
    if engine.dialect.name == "sqlite":
        use_wal(engine)
    with begin_transaction(engine, writes=True) as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(lock)))
        for table in metadata.sorted_tables:
            connection.execute(CreateTable(table, if_not_exists=True))
            for index in sorted(table.indexes, key=lambda index: str(index.name)):
                connection.execute(CreateIndex(index, if_not_exists=True))
