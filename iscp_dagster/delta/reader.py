"""Rows of a Delta table through Spark: a snapshot, or the changes of a range of versions.

Both give the selected columns, `_version` (bigint), `_timestamp` (bigint, microseconds since the
epoch, of the row's last commit) and `_deleted` (boolean): source timestamps are beside the data,
never in it. Frames are lazy: put every action inside `failures.wrap_spark_errors`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from iscp_dagster.delta import checks
from iscp_dagster.delta.comparable_values import to_orderable
from iscp_dagster.delta.log.files import to_spark_path
from iscp_dagster.delta.variants import has_variant, render_variants
from iscp_dagster.model.declared.schema import DELETED, TIMESTAMP, VERSION, DeltaType, parse_schema
from iscp_dagster.model.declared.tables import DEFAULT_TENANT
from iscp_dagster.model.errors import ConfigError
from iscp_dagster.model.moment import Moment
from iscp_dagster.spark.columns import get_column, get_columns

UPSERTS = ("insert", "update_postimage")


@dataclass(frozen=True, kw_only=True)
class TableSelection:
    """Which rows and columns of the table at `path`, as it is declared.

    `tenants` None means all rows except those whose tenant is null. Of the `types` (Delta's, by
    column) only those of the tenant and of variants are used; variants are read as JSON text.
    Without `tenant_column` the one tenant is `default`. Empty `keys` mean an append-only table.
    """

    path: str
    columns: Sequence[str]
    keys: Sequence[str] = ()
    tenant_column: str | None = None
    types: Mapping[str, DeltaType] = field(default_factory=dict)
    tenants: frozenset[str] | None = None
    order: Sequence[str] = ()
    """The columns that order rows without a key: all of the table's, selected or not."""
    folded: Sequence[str] = ()
    """Key columns that some index compares without regard to case."""

    def __post_init__(self) -> None:
        checks.check_names(self.path, self.output)

    @property
    def identity(self) -> list[str]:
        """The columns that identify a row: the tenant, then the key."""
        tenant = [] if self.tenant_column is None else [self.tenant_column]
        return list(dict.fromkeys([*tenant, *self.keys]))

    @property
    def output(self) -> list[str]:
        """A frame's columns without the system ones: those selected and those of `identity`."""
        return list(dict.fromkeys([*self.columns, *self.identity]))

    @property
    def ordering(self) -> list[str]:
        """The columns that order a tenant's rows without a key within one version."""
        return list(self.order) or self.output


def read_snapshot(spark: Any, selection: TableSelection, at: Moment) -> Any:
    """All rows as of version `at`, each with its version and time, `_deleted` false."""
    from pyspark.sql.connect import functions as F  # noqa: N812 - the name everyone knows

    return filter_tenants(read_table_version(spark, selection, at), selection).select(
        *_select_output(selection),
        F.lit(at.version).cast("bigint").alias(VERSION),
        F.lit(at.micros).cast("bigint").alias(TIMESTAMP),
        F.lit(False).alias(DELETED),
    )


def read_table_version(spark: Any, selection: TableSelection, at: Moment) -> Any:
    """The table as of version `at`, of all tenants."""
    return (
        spark.read.format("delta")
        .option("versionAsOf", at.version)
        .load(to_spark_path(selection.path))
    )


def read_changes(
    spark: Any, selection: TableSelection, after: Moment, upto: Moment, *, partitions: int = 1
) -> Any:
    """The last change of every (tenant, key) in (after, upto]; deletes with their last values.

    Without keys, every change, with `_repeats` set on those that are not inserts.

    Adds two columns to those of a snapshot. `_repeats` (boolean) is true where a key was written
    twice in one commit, or inserted again by a later one: a later delete may concern either, so
    take a snapshot then. It is also true where two changed keys differ only in the case of
    `folded` columns. `_fresh` (boolean, with keys only) is true where the key's first change is an
    insert: if the key existed before the range, take a snapshot as well.
    Rows come sorted by (tenant, key) in `partitions` hash partitions, so the same range gives the
    same partitions each time. One partition needs no shuffle: best below some 100,000 changes.
    """
    from pyspark.sql.connect import functions as F  # noqa: N812 - the name everyone knows
    from pyspark.sql.connect.window import Window

    rows = _read_marked_feed(spark, selection, after, upto)
    if not selection.keys:
        return _sort_changes(rows, selection, partitions)
    rows, by = _group_by_key(rows, selection, partitions)
    newest = [F.col(VERSION).desc(), F.col(checks.UPSERT).desc()]
    window = Window.partitionBy(*by).orderBy(*newest)
    span = window.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    twin = F.col(checks.UPSERT) & F.lag(checks.UPSERT).over(window)
    twin = twin & (
        (F.lag(VERSION).over(window) == F.col(VERSION)) | F.lag(checks.INSERT).over(window)
    )
    ranked = rows.withColumn(checks.REPEATS, F.coalesce(twin, F.lit(False)) | F.col(checks.FOLDED))
    ranked = ranked.withColumn(checks.REPEATS, F.max(checks.REPEATS).over(span))
    ranked = ranked.withColumn(checks.FRESH, F.last(checks.UPSERT).over(span))
    ranked = ranked.withColumn(checks.RANK, F.row_number().over(window))
    return ranked.filter(F.col(checks.RANK) == 1).select(
        *get_columns(selection.output),
        VERSION,
        TIMESTAMP,
        (~F.col(checks.UPSERT)).alias(DELETED),
        checks.REPEATS,
        checks.FRESH,
    )


def _group_by_key(rows: Any, selection: TableSelection, partitions: int) -> tuple[Any, list[Any]]:
    """The rows with all changes of a key in one partition, and the columns that identify a key.

    `FOLDED` marks a key that some index treats as equal to another one there.
    """
    from pyspark.sql.connect import functions as F  # noqa: N812 - the name everyone knows
    from pyspark.sql.connect.window import Window

    def distribute_rows(frame: Any, by: list[Any]) -> Any:
        return frame.coalesce(1) if partitions == 1 else frame.repartition(partitions, *by)

    identity, folded = get_columns(selection.identity), get_columns(selection.folded)
    if not folded:
        return distribute_rows(rows, identity).withColumn(checks.FOLDED, F.lit(False)), identity
    rows = rows.withColumn(checks.LOWER, F.array(*map(F.lower, folded)))
    exact = [name for name in selection.identity if name not in selection.folded]
    folded_key = [*get_columns(exact), F.col(checks.LOWER)]
    window, spelled = Window.partitionBy(*folded_key), F.array(*folded)
    is_folded = F.min(spelled).over(window) != F.max(spelled).over(window)
    # Includes the columns that rows are spread by, or Spark would shuffle again.
    return distribute_rows(rows, folded_key).withColumn(checks.FOLDED, is_folded), [
        *identity,
        F.col(checks.LOWER),
    ]


def _sort_changes(rows: Any, selection: TableSelection, partitions: int) -> Any:
    """All changes by tenant and version, in an order that depends only on their values.

    `_repeats` is set on any that is not an insert: only a snapshot shows what remains after it.
    """
    from pyspark.sql.connect import functions as F  # noqa: N812 - the name everyone knows

    types = {field.name: field.type for field in parse_schema(rows.schema.json())}
    ordered = [to_orderable(get_column(name), types[name]) for name in selection.ordering]
    rows = rows.coalesce(1) if partitions == 1 else rows.repartition(partitions, *ordered)
    tenant = get_columns([selection.tenant_column] if selection.tenant_column else [])
    rows = rows.sortWithinPartitions(*tenant, VERSION, *ordered)
    return rows.select(
        *get_columns(selection.output),
        VERSION,
        TIMESTAMP,
        F.lit(False).alias(DELETED),
        (~F.col(checks.INSERT)).alias(checks.REPEATS),
    )


def _read_marked_feed(spark: Any, selection: TableSelection, after: Moment, upto: Moment) -> Any:
    from pyspark.sql.connect import functions as F  # noqa: N812 - the name everyone knows

    # The order may need columns that are not in the output.
    wide = replace(selection, columns=[*selection.output, *selection.order])
    inserted = (F.col(checks.CHANGE_TYPE) == "insert").alias(checks.INSERT)
    return read_feed(spark, selection, after, upto).select(
        *_select_output(wide), *list_stamp_columns(), inserted
    )


def read_feed(spark: Any, selection: TableSelection, after: Moment, upto: Moment) -> Any:
    """The change feed of (after, upto], with Delta's own columns."""
    if after.version >= upto.version:
        raise ConfigError(f"The range ({after.version}, {upto.version}] has no versions in it.")
    # Delta turns the feed's rows into Java objects, whose older date types lack ten days of 1582.
    spark.conf.set("spark.sql.datetime.java8API.enabled", "true")
    reader = spark.read.format("delta").option("readChangeFeed", "true")
    reader = reader.option("startingVersion", after.version + 1)
    rows = reader.option("endingVersion", upto.version).load(to_spark_path(selection.path))
    return filter_tenants(rows, selection)


def list_stamp_columns() -> list[Any]:
    """The feed's version and time, and whether the row exists after the commit."""
    from pyspark.sql.connect import functions as F  # noqa: N812 - the name everyone knows

    return [
        F.col(checks.COMMIT_VERSION).alias(VERSION),
        F.unix_micros(checks.COMMIT_TIMESTAMP).alias(TIMESTAMP),
        F.col(checks.CHANGE_TYPE).isin(*UPSERTS).alias(checks.UPSERT),
    ]


def filter_tenants(frame: Any, selection: TableSelection) -> Any:
    """Filter by typed literals, which prune partitions both of snapshots and of the feed."""
    from pyspark.sql.connect import functions as F  # noqa: N812 - the name everyone knows

    tenants = selection.tenants
    if selection.tenant_column is None:
        is_selected = tenants is None or DEFAULT_TENANT in tenants
        return frame if is_selected else frame.filter(F.lit(False))
    tenant = get_column(selection.tenant_column)
    if tenants is None:
        return frame.filter(tenant.isNotNull())
    if not tenants:
        return frame.filter(F.lit(False))
    return frame.filter(
        tenant.isin(*(F.lit(value).cast(_get_tenant_type(selection)) for value in sorted(tenants)))
    )


def _get_tenant_type(selection: TableSelection) -> str:
    """The tenant column's type under its SQL name."""
    names = {"integer": "int", "long": "bigint", "short": "smallint", "byte": "tinyint"}
    name = str(selection.types.get(selection.tenant_column or "", "string"))
    return names.get(name, name)


def _select_output(selection: TableSelection) -> list[Any]:
    """The output columns, with variants as JSON text."""
    types = {name: type_ for name, type_ in selection.types.items() if has_variant(type_)}
    return [
        render_variants(get_column(name), types[name]).alias(name)
        if name in types
        else get_column(name)
        for name in selection.output
    ]
