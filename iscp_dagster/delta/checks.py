"""Whether a source table can be read as declared; one clear error when it cannot."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from iscp_dagster.delta.log.commit import FEED_PROPERTY
from iscp_dagster.delta.log.deltalog import DeltaLog
from iscp_dagster.delta.log.facts import TableFacts
from iscp_dagster.delta.log.files import to_spark_path
from iscp_dagster.model.declared.schema import (
    SYSTEM_COLUMNS,
    Decimal,
    DeltaField,
    Primitive,
    Struct,
)
from iscp_dagster.model.errors import KeyColumnError, SchemaError, SourceError
from iscp_dagster.spark.quoting import quote_identifier

REPEATS = "_repeats"
FRESH = "_fresh"
FEED_COLUMNS = CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP = (
    "_change_type",
    "_commit_version",
    "_commit_timestamp",
)
CHANGE_COLUMNS = (*SYSTEM_COLUMNS, REPEATS, FRESH)
"""Columns that the readers add to each row."""
UPSERT, INSERT, RANK, LOWER, FOLDED, OLDER, NEWER = WORKING_COLUMNS = (
    "_iscp_upsert",
    "_iscp_insert",
    "_iscp_rank",
    "_iscp_lower",
    "_iscp_folded",
    "_iscp_older",
    "_iscp_newer",
)
"""Columns of the frames between the feed and the changes."""
RESERVED = frozenset((*CHANGE_COLUMNS, *FEED_COLUMNS, *WORKING_COLUMNS))

READER_FEATURES = frozenset(
    {
        "columnMapping",
        "deletionVectors",
        "timestampNtz",
        "typeWidening",
        "typeWidening-preview",
        "v2Checkpoint",
        "vacuumProtocolCheck",
        "variantShredding",
        "variantShredding-preview",
        "variantType",
        "variantType-preview",
    }
)
"""What the readers of the log and of the data both support (Delta protocol, "Table Features")."""

TENANT_TYPES = frozenset({"string", "byte", "short", "integer", "long", "date", "boolean"})
"""Partition types whose text in the log is the same as Spark's."""


def check_source(
    log: DeltaLog, *, keys: Sequence[str], columns: Collection[str] | None = None
) -> TableFacts:
    """Check that the table can be read as declared, with a feed, and return its facts.

    Raises SourceError (no table, bad tenant column, unsupported reader feature, no feed),
    KeyColumnError (a key column that is missing or not of a plain type), SchemaError (another
    column that is missing, or one with a NUL or a system column's name).
    """
    facts = log.get_facts()
    _check_features(log, facts)
    check_columns(log.location, facts.fields, keys=keys, columns=columns)
    _check_tenant_column(log, facts)
    _check_feed(log, facts)
    return facts


def check_columns(
    location: str,
    fields: Sequence[DeltaField],
    *,
    keys: Sequence[str],
    columns: Collection[str] | None = None,
) -> None:
    """Check the declared columns against the table's. Case matters, as it does in ClickHouse."""
    names = [field.name for field in fields]
    hint = f"the columns of {location} are: {', '.join(names)}"
    for key in keys:
        if key not in names:
            raise KeyColumnError(f"There is no key column {key!r}; {hint}. Correct the key.")
    check_keys(location, fields, keys)
    check_readable(location, fields)
    for column in columns or ():
        if column not in names:
            raise SchemaError(f"There is no column {column!r}; {hint}. Correct the declaration.")
    check_names(location, names if columns is None else [*columns, *keys])


def check_keys(location: str, fields: Sequence[DeltaField], keys: Sequence[str]) -> None:
    """Raises KeyColumnError for a key column of a type that engines compare differently.

    Ignores key columns that are missing.
    """
    for field in fields:
        plain = isinstance(field.type, Primitive | Decimal) and str(field.type) != "variant"
        if field.name in keys and not plain:
            raise KeyColumnError(
                f"The key column {field.name!r} of {location} is of type {field.type}; a key "
                "column must be of a plain type, such as text, a number, a date or a time. Declare "
                "plain columns as the key, such as one of its fields in its own column."
            )
        if field.name in keys and field.collation:
            raise KeyColumnError(
                f"The key column {field.name!r} of {location} has the collation "
                f"{field.collation}, under which Spark may consider strings equal that ClickHouse "
                "does not. Declare a key column without a collation, such as a copy of this one."
            )


def check_readable(location: str, fields: Sequence[DeltaField]) -> None:
    """Raises SchemaError for a column, indexed or not, that the log's reader cannot name."""
    for field in fields:
        inner = field.type.fields if isinstance(field.type, Struct) else ()
        if any("\0" in member.physical for member in (field, *inner)):
            raise SchemaError(
                f"Column {field.name!r} of {location} has a NUL in its name or a field's, so the "
                "table's log cannot be read. Rename it, or rewrite the table with "
                "delta.columnMapping.mode = 'name'."
            )


def check_names(location: str, names: Collection[str]) -> None:
    """Raises SchemaError when a column has the name of one that the pipeline adds."""
    for name in names:
        if is_reserved(name):
            raise SchemaError(
                f"Column {name!r} of {location} has the name of a system column "
                f"({', '.join(sorted(RESERVED))}). Rename it, or leave it out of the index."
            )


def is_reserved(name: str) -> bool:
    """Whether it is the name of a column that the pipeline adds."""
    return name.lower() in RESERVED


def format_feed_remedy(location: str) -> str:
    """The statement that turns the change feed on."""
    table = f"delta.{quote_identifier(to_spark_path(location))}"
    return f"ALTER TABLE {table} SET TBLPROPERTIES ({FEED_PROPERTY} = true)"


def _check_features(log: DeltaLog, facts: TableFacts) -> None:
    unknown = sorted(facts.reader_features - READER_FEATURES)
    if unknown:
        raise SourceError(
            f"{log.location} needs reader features that are not supported: {', '.join(unknown)}. "
            "Drop them with ALTER TABLE ... DROP FEATURE, or use a copy of the table without them."
        )


def _check_tenant_column(log: DeltaLog, facts: TableFacts) -> None:
    if log.tenant_column is None:
        return
    column = log.get_tenant_column(facts.version)
    kind, padded = next((f.type, f.padded) for f in facts.fields if f.name == column)
    if padded:
        # The log may have the value without Spark's blanks: one tenant would become two.
        raise SourceError(
            f"The tenant column {column!r} of {log.location} is of type CHAR, whose values Spark "
            "pads with blanks, unlike the table's log; make it a VARCHAR or a STRING."
        )
    if not isinstance(kind, Primitive) or kind.name not in TENANT_TYPES:
        raise SourceError(
            f"The tenant column {column!r} of {log.location} is of type {kind}; a tenant column "
            f"must be one of: {', '.join(sorted(TENANT_TYPES))}."
        )


def _check_feed(log: DeltaLog, facts: TableFacts) -> None:
    if not facts.metadata.feed_enabled:
        raise SourceError(
            f"The change data feed of {log.location} is off, so its changes cannot be read. "
            f"Turn it on: {format_feed_remedy(log.location)}"
        )
