"""What an index has for null arrays, maps and structs, which ClickHouse does not have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from iscp_dagster.model.declared.images import IMAGE_COLUMNS
from iscp_dagster.model.declared.schema import Array, DeltaField, DeltaType, Map, Struct
from iscp_dagster.model.declared.tables import Index, SourceTable
from iscp_dagster.model.errors import ConfigError, SchemaError

EMPTY, FLAG, JSON, REFUSE = NULLS = ("empty", "flag", "json", "refuse")
"""An empty value; the same, with a flag column; all values as JSON text; error 10300."""


def format_flag_name(column: str) -> str:
    """Return the name of the column that says whether `column` was null."""
    return f"{column}_is_null"


def is_composite(type_: DeltaType) -> bool:
    """Whether ClickHouse has no nulls of the type."""
    return isinstance(type_, Array | Map | Struct)


def get_null_rule(source: SourceTable, index: Index, column: str) -> str:
    """Return a column's rule: the index's, else the table's, else EMPTY.

    The columns of every image row have EMPTY.
    """
    if column in IMAGE_COLUMNS:
        return EMPTY
    for rules in (index.nulls, source.nulls):
        rule = rules.get(column) if isinstance(rules, Mapping) else rules
        # A column that the index needs is JSON text only if a rule names it.
        if rule is not None and not (rule == rules == JSON and column in index.needed_columns):
            return str(rule)
    return EMPTY


def list_null_rules(source: SourceTable, index: Index) -> dict[str, str]:
    """Return the rules that differ from the default: by column, or for all others under `*`."""
    columns = {
        column
        for rules in (index.nulls, source.nulls)
        if isinstance(rules, Mapping)
        for column in rules
    }
    rules = {column: get_null_rule(source, index, column) for column in ("*", *sorted(columns))}
    others = rules.pop("*")
    exceptions = {column: rule for column, rule in rules.items() if rule != others}
    return exceptions | ({} if others == EMPTY else {"*": others})


def check_index_null_rules(source: SourceTable, index: Index, fields: Sequence[DeltaField]) -> None:
    """Reject an index's rules for columns that need none or are missing, and taken flag names.

    Raises SchemaError. A table's rules may name columns that the index does not carry.
    """
    types = {field.name: field.type for field in fields}
    where = f"Index {source.name}/{index.name}"
    _check_columns(where, index.nulls, types)
    for column, type_ in types.items():
        flag = format_flag_name(column)
        if flag in types and is_composite(type_) and get_null_rule(source, index, column) == FLAG:
            raise SchemaError(
                f"{where}: nulls='flag' for {column!r} needs a column {flag!r}, which the source "
                "has itself; rename it there, or give another rule for the column."
            )


def check_table_null_rules(source: SourceTable, fields: Sequence[DeltaField]) -> None:
    """Reject a table's rules for columns that need none or are not in its `fields`.

    Raises SchemaError.
    """
    where = f"Source table {source.name!r}"
    _check_columns(where, source.nulls, {field.name: field.type for field in fields})


def _check_columns(
    where: str, rules: str | Mapping[str, str] | None, types: Mapping[str, DeltaType]
) -> None:
    for column in rules if isinstance(rules, Mapping) else ():
        if column not in types:
            raise SchemaError(
                f"{where}: nulls names the column {column!r}, which it does not have; correct the "
                f"name, or leave it out. It has: {', '.join(types)}."
            )
        if not is_composite(types[column]):
            raise SchemaError(
                f"{where}: nulls names the column {column!r}, which is {types[column]}: ClickHouse "
                "has nulls of it. Give nulls for arrays, maps and structs only."
            )


def check_null_rules(source: SourceTable, index: Index) -> None:
    """Reject unknown rules, and rules for columns left out. Raises ConfigError."""
    for column in index.nulls if isinstance(index.nulls, Mapping) else ():
        carried = {*(index.columns or (column,)), *index.needed_columns}
        if column in index.exclude or column not in carried:
            raise ConfigError(
                f"Index {source.name}/{index.name}: nulls names the column {column!r}, which it "
                "leaves out; correct the name, or carry the column."
            )
    for where, rules in ((source.name, source.nulls), (f"{source.name}/{index.name}", index.nulls)):
        for rule in rules.values() if isinstance(rules, Mapping) else [rules]:
            if rule not in NULLS and rule is not None:
                raise ConfigError(
                    f"{where}: nulls={rules!r} has {rule!r}, which is not one of: "
                    f"{', '.join(NULLS)}. Give one of these, or one by column, such as "
                    "nulls={'tags': 'json'}."
                )
