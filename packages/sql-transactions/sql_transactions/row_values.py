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
    """The table `given` with these columns and rows, sent as JSON in two parameters.

    Drivers send a list of parameters row by row, and a list of keys takes PostgreSQL quadratic
    time to plan. A value that all rows have in common is sent once.
    """
    record_columns = [sa.column(str(column.key), column.type) for column in columns]
    records = list(rows)
    values = {column.name: [row[column.name] for row in records] for column in record_columns}
    # PostgreSQL has no records without columns.
    varying = [
        column
        for number, column in enumerate(record_columns)
        if number == 0 or not _has_one_value(values[column.name])
    ]
    shared = [column for column in record_columns if column not in varying]
    names = [column.name for column in varying]
    json_columns = ([_to_json_value(value, dialect) for value in values[name]] for name in names)
    json_rows = [dict(zip(names, row, strict=True)) for row in zip(*json_columns, strict=True)]
    shared_json = {
        column.name: _to_json_value(values[column.name][0], dialect) for column in shared
    }
    rows_parameter = _make_parameter(json_rows)
    shared_parameter = _make_parameter(shared_json)
    if dialect.name == "postgresql":
        varying_values = _read_records("jsonb_to_recordset", rows_parameter, varying, "varying")
        source: sa.FromClause = varying_values
        selected = dict(varying_values.c)
        if shared:
            shared_values = _read_records("jsonb_to_record", shared_parameter, shared, "shared")
            source = varying_values.join(shared_values, sa.true())
            selected |= dict(shared_values.c)
    else:
        source = sa.func.json_each(rows_parameter).table_valued("value", name="each")
        selected = dict(zip(names, _select_json_values(tuple(names)), strict=True))
        selected |= {
            column.name: sa.func.json_extract(
                shared_parameter, sa.literal_column(f"'$.{column.name}'")
            ).label(column.name)
            for column in shared
        }
    ordered = (selected[column.name] for column in record_columns)
    query = sa.select(*ordered).select_from(source)
    if shared:
        # Planned apart: a planner may begin with an index for a shared value, not with the rows.
        query = query.limit(-1) if dialect.name == "sqlite" else query.offset(0)
    return query.subquery("given")


def _has_one_value(values: Sequence[Any]) -> bool:
    """Whether all of the values, at least one, are equal."""
    return bool(values) and all(value == values[0] for value in values)


def _make_parameter(value: Any) -> sa.BindParameter[str]:
    return sa.literal(json.dumps(value), sa.Text())


def _read_records(
    function: str,
    parameter: sa.BindParameter[str],
    columns: Sequence[sa.ColumnClause[Any]],
    name: str,
) -> sa.TableValuedAlias:
    """The records that a function of PostgreSQL reads from a parameter."""
    records: sa.Function[Any] = getattr(sa.func, function)(sa.cast(parameter, JSONB))
    return records.table_valued(*columns, name=name).render_derived(with_types=True)


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
