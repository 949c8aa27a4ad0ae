"""Rows of the caller as a table in a statement, in the form that the database keeps."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from functools import lru_cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.dialects.postgresql import JSONB


def build_rows_table(
    dialect: sa.Dialect, columns: Sequence[sa.ColumnElement[Any]], rows: Iterable[Mapping[str, Any]]
) -> sa.FromClause:
    """The table `given` with these columns and rows, sent as JSON in one parameter.

    Drivers send a list of parameters row by row, and a list of keys takes PostgreSQL quadratic
    time to plan.
    """
    record_columns = [sa.column(str(column.key), column.type) for column in columns]
    json_rows = [
        {column.name: _to_json_value(row[column.name], dialect) for column in record_columns}
        for row in rows
    ]
    parameter = sa.literal(json.dumps(json_rows), sa.Text())
    if dialect.name == "postgresql":
        records = sa.func.jsonb_to_recordset(sa.cast(parameter, JSONB))
        return records.table_valued(*record_columns, name="given").render_derived(with_types=True)
    rows_source = sa.func.json_each(parameter).table_valued("value", name="each")
    names = tuple(column.name for column in record_columns)
    return sa.select(*_select_json_values(names)).select_from(rows_source).subquery("given")


@lru_cache
def _select_json_values(names: tuple[str, ...]) -> tuple[sa.Label[Any], ...]:
    """The values of a JSON object by name; built once, as building them costs more than the query.

    The names are those of columns in the code, which need no quoting.
    """
    return tuple(
        sa.literal_column(f"json_extract(each.value, '$.{name}')").label(name) for name in names
    )


def make_insert(dialect: sa.Dialect, table: sa.Table) -> sqlite.Insert | postgresql.Insert:
    """The database's INSERT, which can say what to do if a row exists."""
    return sqlite.insert(table) if dialect.name == "sqlite" else postgresql.insert(table)


def escape_nul(text: str) -> str:
    """The text with backslash and zero for each NUL, since PostgreSQL cannot store NUL."""
    return text.replace("\0", "\\0")


def _to_json_value(value: Any, dialect: sa.Dialect) -> Any:
    """The value as JSON; a time as the database reads or keeps it."""
    if not isinstance(value, datetime):
        return value
    if dialect.name == "postgresql":
        return value.isoformat()
    return value.astimezone(timezone.utc).strftime("%Y-%m-%d %H:%M:%S.%f")
