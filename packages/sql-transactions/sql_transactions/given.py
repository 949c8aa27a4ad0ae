"""What the caller gives a statement: its rows as a table, in the form that the database keeps."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.dialects.postgresql import JSONB


def given(
    dialect: sa.Dialect, columns: Sequence[sa.ColumnElement[Any]], rows: Iterable[Mapping[str, Any]]
) -> sa.FromClause:
    """The table `given` with these columns and rows, sent as JSON in one parameter.

    Drivers send a list of parameters row by row, and a list of keys takes PostgreSQL quadratic
    time to plan.
    """
    named = [sa.column(str(column.key), column.type) for column in columns]
    plain = [{each.name: _plain(row[each.name], dialect) for each in named} for row in rows]
    sent = sa.literal(json.dumps(plain), sa.Text())
    if dialect.name == "postgresql":
        records = sa.func.jsonb_to_recordset(sa.cast(sent, JSONB))
        return records.table_valued(*named, name="given").render_derived(with_types=True)
    value = sa.func.json_each(sent).table_valued("value", name="each").c.value
    found = [sa.func.json_extract(value, f"$.{each.name}").label(each.name) for each in named]
    return sa.select(*found).subquery("given")


def insert_into(dialect: sa.Dialect, table: sa.Table) -> sqlite.Insert | postgresql.Insert:
    """The database's INSERT, which can say what to do where a row exists."""
    return sqlite.insert(table) if dialect.name == "sqlite" else postgresql.insert(table)


def without_nul(text: str) -> str:
    """The text with backslash and zero for each NUL, since PostgreSQL keeps none."""
    return text.replace("\0", "\\0")


def _plain(value: Any, dialect: sa.Dialect) -> Any:
    """The value as JSON; a time as the database reads or keeps it."""
    if not isinstance(value, datetime):
        return value
    if dialect.name == "postgresql":
        return value.isoformat()
    return value.astimezone(timezone.utc).strftime("%Y-%m-%d %H:%M:%S.%f")
