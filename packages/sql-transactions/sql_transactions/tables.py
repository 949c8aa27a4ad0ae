"""Makes tables that are missing, whoever else does so at the same time."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.schema import CreateIndex, CreateTable

from sql_transactions.engine import transaction, use_wal


def find_missing_column(engine: sa.Engine, metadata: sa.MetaData) -> tuple[str, str] | None:
    """The first table and column that an existing table lacks; None if all have theirs."""
    with transaction(engine, writes=False) as connection:
        inspector = sa.inspect(connection)
        there = set(inspector.get_table_names())
        for table in (each for each in metadata.sorted_tables if each.name in there):
            kept = {column["name"] for column in inspector.get_columns(table.name)}
            if missing := sorted({column.name for column in table.columns} - kept):
                return table.name, missing[0]
    return None


def ensure_tables(engine: sa.Engine, metadata: sa.MetaData, *, lock: int) -> None:
    """Make the tables and indexes that are missing; SQLite gets a write-ahead log. Idempotent.

    `lock` is the PostgreSQL advisory lock under which they are made.
    """
    with transaction(engine, writes=False) as connection:
        there = set(sa.inspect(connection).get_table_names())
    if there.issuperset(metadata.tables):
        return
    if engine.dialect.name == "sqlite":
        use_wal(engine)
    with transaction(engine, writes=True) as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(lock)))
        for table in metadata.sorted_tables:
            connection.execute(CreateTable(table, if_not_exists=True))
            for index in sorted(table.indexes, key=lambda index: str(index.name)):
                connection.execute(CreateIndex(index, if_not_exists=True))
