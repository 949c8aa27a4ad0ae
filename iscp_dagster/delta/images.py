"""The changes of a view, commit by commit, as image rows (`model/declared/images.py`).

The view is applied to both images of each change, so that a row enters it, leaves it or changes in
it. A commit's image rows do not depend on the range in which it is read. Frames are lazy: put every
action inside `failures.wrap_spark_errors`. Check the expressions first (`delta/expressions.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from iscp_dagster.delta.checks import (
    FOLDED,
    FRESH,
    LOWER,
    NEWER,
    OLDER,
    REPEATS,
    UPSERT,
    is_reserved,
)
from iscp_dagster.delta.comparable_values import to_comparable
from iscp_dagster.delta.reader import (
    TableSelection,
    filter_tenants,
    list_stamp_columns,
    read_feed,
    read_table_version,
)
from iscp_dagster.delta.variants import has_variant, render_variants
from iscp_dagster.model.declared.images import (
    AFTER,
    CHANGE,
    FIELDS,
    IMAGE,
    IMAGE_COLUMNS,
    IMAGE_FIELDS,
    MATCH,
    ORDINAL,
    UNMATCH,
    ChangeKind,
    ImageSource,
)
from iscp_dagster.model.declared.schema import (
    DELETED,
    SYSTEM_COLUMNS,
    TIMESTAMP,
    VERSION,
    DeltaField,
    DeltaType,
    Primitive,
    to_nullable,
    to_schema_json,
)
from iscp_dagster.model.moment import Moment
from iscp_dagster.spark.columns import get_column, get_columns

if TYPE_CHECKING:
    import pyarrow as pa

LONG, BOOLEAN = Primitive("long"), Primitive("boolean")
NO_FIELDS = "array<string>"


@dataclass(frozen=True, kw_only=True)
class ViewRead:
    """A view to read; its `selection` names all of the source's columns."""

    selection: TableSelection
    image_source: ImageSource
    calculated: Sequence[DeltaField] = ()
    """With their types, see `expressions.analyze_expressions`."""

    @classmethod
    def from_schema(
        cls,
        selection: TableSelection,
        schema: Sequence[DeltaField],
        image_source: ImageSource,
        calculated: Sequence[DeltaField],
    ) -> ViewRead:
        """Read the view with all columns of the source's `schema` that its expressions may name."""
        view_columns = image_source.columns or ()
        names = [f.name for f in schema if f.name in view_columns or not is_reserved(f.name)]
        types = {field.name: field.type for field in schema}
        selection = replace(selection, columns=names, types=types)
        return cls(selection=selection, image_source=image_source, calculated=calculated)

    @property
    def output(self) -> tuple[str, ...]:
        """The columns of an image."""
        selection = self.selection
        return self.image_source.select_columns(selection.output, selection.identity)

    @property
    def types(self) -> dict[str, DeltaType]:
        """The columns' types."""
        return {**self.selection.types, **{field.name: field.type for field in self.calculated}}

    @property
    def condition_columns(self) -> list[str]:
        """The names of the conditions' columns."""
        triggers = self.image_source.conditions
        return [
            trigger.format_column_name(which) for trigger in triggers for which in (MATCH, UNMATCH)
        ]

    @property
    def base_columns(self) -> list[str]:
        """The columns of a BASE row without the system ones."""
        return [*self.output, *IMAGE_COLUMNS, *self.condition_columns]

    @property
    def image_columns(self) -> list[str]:
        """The columns of `read_images`."""
        return [*self.base_columns, *SYSTEM_COLUMNS, REPEATS, FRESH]


def read_images(
    spark: Any, read: ViewRead, after: Moment, upto: Moment, *, partitions: int = 1
) -> Any:
    """The image rows of the changes of (after, upto].

    Adds `_repeats` and `_fresh`, as `reader.read_changes` does. `_repeats` is true where a commit
    has two images of one side of a key, or inserts a key that an earlier commit of the range left
    in the view: the changes then do not say which rows remain. Rows are sorted by tenant,
    version and ordinal, each tenant's in one of the `partitions`.
    """
    _set_utc(spark)
    rows = read_feed(spark, read.selection, after, upto)
    rows = rows.select(*get_columns(read.selection.output), *list_stamp_columns())
    return _derive_images(rows, read, partitions)


def build_images(spark: Any, read: ViewRead, rows: pa.Table) -> Any:
    """The image rows, as `read_images` gives them, of feed rows that were read already.

    `rows` have the selection's columns, `_version`, `_timestamp` and `_iscp_upsert`, and text in
    UTF-8; Spark gets them with the request.
    """
    from pyspark.sql.types import StructType

    _set_utc(spark)
    types = {**read.types, VERSION: LONG, TIMESTAMP: LONG, UPSERT: BOOLEAN}
    names = [*read.selection.output, VERSION, TIMESTAMP, UPSERT]
    schema = to_schema_json([DeltaField(name=name, type=types[name]) for name in names])
    frame = spark.createDataFrame(rows.select(names), StructType.fromJson(schema))
    return _apply_schema(_derive_images(frame, read, 1), read)


def _apply_schema(rows: Any, read: ViewRead) -> Any:
    """The image rows with a declared schema, where PySpark would request it from Spark."""
    from pyspark.sql.types import StructType

    if any(map(has_variant, read.types.values())):
        return rows
    types = {field.name: field.type for field in IMAGE_FIELDS}
    types |= read.types | dict.fromkeys(read.condition_columns, BOOLEAN)
    types |= {VERSION: LONG, TIMESTAMP: LONG, DELETED: BOOLEAN, REPEATS: BOOLEAN, FRESH: BOOLEAN}
    fields = [DeltaField(name=name, type=to_nullable(types[name])) for name in read.image_columns]
    return rows.to(StructType.fromJson(to_schema_json(fields)))


def _derive_images(rows: Any, read: ViewRead, partitions: int) -> Any:
    """The image rows of rows of the feed."""
    rows = _select_view(rows, read, VERSION, TIMESTAMP, UPSERT)
    tenant = get_columns([read.selection.tenant_column] if read.selection.tenant_column else [])
    is_single = partitions == 1 or not tenant
    rows = rows.coalesce(1) if is_single else rows.repartition(partitions, *tenant)
    return _rank_changes(_derive_changes(rows, read), read, tenant)


def read_base(spark: Any, read: ViewRead, at: Moment) -> Any:
    """The view's rows as of version `at`, as BASE rows."""
    from pyspark.sql.connect import functions as F  # noqa: N812 - the name everyone knows

    _set_utc(spark)
    rows = filter_tenants(read_table_version(spark, read.selection, at), read.selection)
    rows = _select_view(rows.select(*get_columns(read.selection.output)), read)
    return rows.select(
        *get_columns(read.output),
        F.lit(int(ChangeKind.BASE)).cast("tinyint").alias(CHANGE),
        F.lit(AFTER).cast("tinyint").alias(IMAGE),
        F.array().cast(NO_FIELDS).alias(FIELDS),
        F.lit(0).cast("bigint").alias(ORDINAL),
        *get_columns(read.condition_columns),
        F.lit(at.version).cast("bigint").alias(VERSION),
        F.lit(at.micros).cast("bigint").alias(TIMESTAMP),
        F.lit(False).alias(DELETED),
    )


def _set_utc(spark: Any) -> None:
    """Make expressions give the same wherever Spark runs: dates and hours are in UTC."""
    spark.conf.set("spark.sql.session.timeZone", "UTC")


def apply_view(rows: Any, image_source: ImageSource) -> Any:
    """The rows that are in the view, with its calculated columns; NULL counts as not in it."""
    from pyspark.sql.connect import functions as F  # noqa: N812 - the name everyone knows

    for stage in image_source.stages:
        if stage.where is not None:
            rows = rows.filter(F.expr(stage.where))
        if stage.columns:
            rows = rows.withColumns({name: F.expr(text) for name, text in stage.columns})
    return rows


def _select_view(rows: Any, read: ViewRead, *system: str) -> Any:
    """The view's rows with its columns, the conditions' columns and the `system` columns."""
    variants = {name: type_ for name, type_ in read.types.items() if has_variant(type_)}
    output = [
        render_variants(get_column(name), variants[name]).alias(name)
        if name in variants
        else get_column(name)
        for name in read.output
    ]
    return apply_view(rows, read.image_source).select(
        *output, *_build_conditions(read.image_source), *system
    )


def _build_conditions(image_source: ImageSource) -> list[Any]:
    from pyspark.sql.connect import functions as F  # noqa: N812 - the name everyone knows

    def is_met(text: str) -> Any:
        return F.coalesce(F.expr(text), F.lit(False))

    condition_columns = []
    for trigger in image_source.conditions:
        unmatch = ~is_met(trigger.match) if trigger.unmatch is None else is_met(trigger.unmatch)
        condition_columns += [
            is_met(trigger.match).alias(trigger.format_column_name(MATCH)),
            unmatch.alias(trigger.format_column_name(UNMATCH)),
        ]
    return condition_columns


def _derive_changes(rows: Any, read: ViewRead) -> Any:
    """Each row with its kind of change; a window pairs a commit's two images of a key."""
    from pyspark.sql.connect import functions as F  # noqa: N812 - the name everyone knows
    from pyspark.sql.connect.window import Window

    selection = read.selection
    value_columns = [name for name in read.output if name not in selection.identity]
    values = [to_comparable(get_column(name), read.types[name]) for name in value_columns]
    numbered = (value.alias(f"c{n}") for n, value in enumerate(values))
    image = F.struct(F.col(VERSION).alias("v"), F.col(UPSERT).alias("up"), *numbered)
    window = Window.partitionBy(*get_columns(selection.identity)).orderBy(VERSION, UPSERT)
    rows = _mark_folded(rows, selection)
    rows = rows.withColumn(OLDER, F.lag(image).over(window))
    rows = rows.withColumn(NEWER, F.lead(image).over(window))
    older, newer, upsert = F.col(OLDER), F.col(NEWER), F.col(UPSERT)
    has_key = F.lit(True)
    for key in get_columns(selection.keys):
        has_key = has_key & key.isNotNull()

    def is_neighbor(neighbor: Any, is_upsert: Any) -> Any:
        same = (neighbor["v"] == F.col(VERSION)) & (neighbor["up"] == is_upsert)
        return has_key & F.coalesce(same, F.lit(False))

    paired = F.when(upsert, is_neighbor(older, F.lit(False))).otherwise(
        is_neighbor(newer, F.lit(True))
    )
    twin = is_neighbor(older, upsert) | is_neighbor(newer, upsert)
    reinserted = has_key & upsert & ~paired & F.coalesce(older["up"], F.lit(False))
    # Rows whose key is null are kept, for readers to reject, only if some remain at the end of the
    # range.
    span = window.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    lasting = F.last(UPSERT).over(span) | (F.sum(F.when(upsert, 1).otherwise(-1)).over(span) > 0)
    counterpart = F.when(upsert, older).otherwise(newer)
    changed = [
        F.when(~value.eqNullSafe(counterpart[f"c{n}"]), F.lit(name))
        for n, (name, value) in enumerate(zip(value_columns, values, strict=True))
    ]
    fields = F.array_compact(F.array(*changed)) if changed else F.array()
    kind = F.when(upsert, int(ChangeKind.INSERT)).otherwise(int(ChangeKind.DELETE))
    rows = rows.select(
        *get_columns(read.output),
        *get_columns(read.condition_columns),
        VERSION,
        TIMESTAMP,
        UPSERT,
        (twin | reinserted | F.col(FOLDED)).alias(REPEATS),
        (upsert & ~paired & older.isNull()).alias(FRESH),
        F.when(paired, int(ChangeKind.UPDATE)).otherwise(kind).cast("tinyint").alias(CHANGE),
        F.when(paired, fields.cast(NO_FIELDS)).otherwise(F.array().cast(NO_FIELDS)).alias(FIELDS),
        (has_key | (lasting & upsert)).alias(LOWER),
    )
    is_kept = (F.col(CHANGE) != int(ChangeKind.UPDATE)) | (F.size(FIELDS) > 0) | F.col(REPEATS)
    return rows.filter(is_kept & F.col(LOWER))


def _rank_changes(rows: Any, read: ViewRead, tenant: list[Any]) -> Any:
    """The rows with each change's place in its commit, in that order."""
    from pyspark.sql.connect import functions as F  # noqa: N812 - the name everyone knows
    from pyspark.sql.connect.window import Window

    keys = get_columns(read.selection.keys)
    commit_window = Window.partitionBy(*tenant, VERSION).orderBy(*keys)
    return rows.select(
        *get_columns(read.output),
        CHANGE,
        F.col(UPSERT).cast("tinyint").alias(IMAGE),
        FIELDS,
        (F.dense_rank().over(commit_window) - 1).cast("bigint").alias(ORDINAL),
        *get_columns(read.condition_columns),
        VERSION,
        TIMESTAMP,
        F.lit(False).alias(DELETED),
        REPEATS,
        FRESH,
    ).sortWithinPartitions(*tenant, VERSION, ORDINAL, IMAGE)


def _mark_folded(rows: Any, selection: TableSelection) -> Any:
    """The rows with `FOLDED`: whether some index treats the key as equal to another one."""
    from pyspark.sql.connect import functions as F  # noqa: N812 - the name everyone knows
    from pyspark.sql.connect.window import Window

    if not selection.folded:
        return rows.withColumn(FOLDED, F.lit(False))
    folded = get_columns(selection.folded)
    exact = get_columns([name for name in selection.identity if name not in selection.folded])
    window, spelled = Window.partitionBy(*exact, F.array(*map(F.lower, folded))), F.array(*folded)
    return rows.withColumn(FOLDED, F.min(spelled).over(window) != F.max(spelled).over(window))
