"""What an index has for null arrays, maps and structs, which ClickHouse does not have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from iscp_dagster.model.declared.images import IMAGE_COLUMNS
from iscp_dagster.model.declared.schema import Array, DeltaField, DeltaType, Map, Struct
from iscp_dagster.model.declared.tables import Index, SourceTable
from iscp_dagster.model.errors import ConfigError, SchemaError

EMPTY, FLAG, JSON, REFUSE = NULLS = ("empty", "flag", "json", "refuse")
"""An empty value; the same, and a column that tells; all values as JSON text; error 10300."""


def flag_name(column: str) -> str:
    """Return the name of the column that tells whether `column` was null."""
    return f"{column}_is_null"


def has_parts(type_: DeltaType) -> bool:
    """Whether it is a type that ClickHouse has no null of."""
    return isinstance(type_, Array | Map | Struct)


def null_rule(source: SourceTable, index: Index, column: str) -> str:
    """Return the rule for a column: the index's, else the table's, that for the column first.

    The columns that every image row has are as they are.
    """
    if column in IMAGE_COLUMNS:
        return EMPTY
    for rules in (index.nulls, source.nulls):
        rule = rules.get(column) if isinstance(rules, Mapping) else rules
        # A column that the index is about is text only if that is said of it.
        if rule is not None and not (rule == rules == JSON and column in index.needed_columns):
            return str(rule)
    return EMPTY


def null_rules(source: SourceTable, index: Index) -> dict[str, str]:
    """Return the rules that differ from the default: by column, or for all others under `*`."""
    named = {
        column
        for rules in (index.nulls, source.nulls)
        if isinstance(rules, Mapping)
        for column in rules
    }
    rules = {column: null_rule(source, index, column) for column in ("*", *sorted(named))}
    others = rules.pop("*")
    exceptions = {column: rule for column, rule in rules.items() if rule != others}
    return exceptions | ({} if others == EMPTY else {"*": others})


def check_null_columns(source: SourceTable, index: Index, fields: Sequence[DeltaField]) -> None:
    """Reject an index's rules for columns that need none or are not there, and taken flags.

    Raises SchemaError. A table's rules may name columns that the index does not carry.
    """
    types = {field.name: field.type for field in fields}
    where = f"Index {source.name}/{index.name}"
    _check_columns(where, index.nulls, types)
    for column, type_ in types.items():
        flag = flag_name(column)
        if flag in types and has_parts(type_) and null_rule(source, index, column) == FLAG:
            raise SchemaError(
                f"{where}: nulls='flag' for {column!r} needs a column {flag!r}, which the source "
                "has itself; rename it there, or give another rule for the column."
            )


def check_table_nulls(source: SourceTable, fields: Sequence[DeltaField]) -> None:
    """Reject a table's rules for columns that need none, or that are none of its `fields`.

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
        if not has_parts(types[column]):
            raise SchemaError(
                f"{where}: nulls names the column {column!r}, which is {types[column]}: ClickHouse "
                "has nulls of it. Give nulls for arrays, maps and structs only."
            )


def check_nulls(source: SourceTable, index: Index) -> None:
    """Reject rules that do not exist, and those for columns left out. Raises ConfigError."""
    for column in index.nulls if isinstance(index.nulls, Mapping) else ():
        chosen = {*(index.columns or (column,)), *index.needed_columns}
        if column in index.exclude or column not in chosen:
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
