"""The changes of a view, commit by commit, as image rows (`model/declared/images.py`).

The view is applied to both images of each change, so that a row enters it, leaves it or changes in
it. What the rows of a commit are does not depend on the range that it is read in. Frames are lazy:
put every action inside `failures.reading`. Check the expressions first (`delta/expressions.py`).
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
from iscp_dagster.delta.comparing import comparable
from iscp_dagster.delta.reader import Selection, feed, of_tenants, stamps, table_at
from iscp_dagster.delta.variants import as_text, has_variant
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
    Transitions,
)
from iscp_dagster.model.declared.schema import (
    DELETED,
    SYSTEM_COLUMNS,
    TIMESTAMP,
    VERSION,
    DeltaField,
    DeltaType,
    Primitive,
    nullable,
    schema_json,
)
from iscp_dagster.model.moment import Moment
from iscp_dagster.spark.columns import column, columns

if TYPE_CHECKING:
    import pyarrow as pa

LONG, BOOLEAN = Primitive("long"), Primitive("boolean")
NO_FIELDS = "array<string>"


@dataclass(frozen=True, kw_only=True)
class ViewRead:
    """A view to read; its `selection` names all of the source's columns."""

    selection: Selection
    transitions: Transitions
    calculated: Sequence[DeltaField] = ()
    """With their types, see `expressions.analyzed`."""

    @classmethod
    def of(
        cls,
        selection: Selection,
        schema: Sequence[DeltaField],
        transitions: Transitions,
        calculated: Sequence[DeltaField],
    ) -> ViewRead:
        """Read the view with all columns of the source's `schema` that its expressions may name."""
        chosen = transitions.columns or ()
        names = [f.name for f in schema if f.name in chosen or not is_reserved(f.name)]
        types = {field.name: field.type for field in schema}
        selection = replace(selection, columns=names, types=types)
        return cls(selection=selection, transitions=transitions, calculated=calculated)

    @property
    def output(self) -> tuple[str, ...]:
        """The columns of an image."""
        given = self.selection
        return self.transitions.carried(given.output, given.identity)

    @property
    def types(self) -> dict[str, DeltaType]:
        """The columns' types."""
        return {**self.selection.types, **{each.name: each.type for each in self.calculated}}

    @property
    def conditions(self) -> list[str]:
        """The names of the conditions' columns."""
        found = self.transitions.conditions
        return [each.column(which) for each in found for which in (MATCH, UNMATCH)]

    @property
    def based(self) -> list[str]:
        """The columns of a BASE row without the system ones."""
        return [*self.output, *IMAGE_COLUMNS, *self.conditions]

    @property
    def imaged(self) -> list[str]:
        """The columns of `images`."""
        return [*self.based, *SYSTEM_COLUMNS, REPEATS, FRESH]


def images(spark: Any, read: ViewRead, after: Moment, upto: Moment, *, partitions: int = 1) -> Any:
    """The image rows of the changes of (after, upto].

    Adds `_repeats` and `_fresh`, as `reader.changes` does. `_repeats` is true where a commit has
    two images of one side of a key, or inserts a key that an earlier commit of the range left in
    the view: the changes then do not say which rows remain. Rows are sorted by tenant, version and
    ordinal, each tenant's in one of the `partitions`.
    """
    _in_utc(spark)
    rows = feed(spark, read.selection, after, upto)
    rows = rows.select(*columns(read.selection.output), *stamps())
    return _imaged(rows, read, partitions)


def images_of(spark: Any, read: ViewRead, rows: pa.Table) -> Any:
    """The image rows, as `images` gives them, of rows of the feed that were read already.

    They have the columns of the selection, `_version`, `_timestamp` and `_iscp_upsert`, and texts
    in UTF-8; Spark gets them with the request.
    """
    from pyspark.sql.types import StructType

    _in_utc(spark)
    types = {**read.types, VERSION: LONG, TIMESTAMP: LONG, UPSERT: BOOLEAN}
    names = [*read.selection.output, VERSION, TIMESTAMP, UPSERT]
    schema = schema_json([DeltaField(name=name, type=types[name]) for name in names])
    given = spark.createDataFrame(rows.select(names), StructType.fromJson(schema))
    return _typed(_imaged(given, read, 1), read)


def _typed(rows: Any, read: ViewRead) -> Any:
    """The image rows with a schema that PySpark knows, where it would ask for it."""
    from pyspark.sql.types import StructType

    if any(map(has_variant, read.types.values())):
        return rows
    types = {each.name: each.type for each in IMAGE_FIELDS}
    types |= read.types | dict.fromkeys(read.conditions, BOOLEAN)
    types |= {VERSION: LONG, TIMESTAMP: LONG, DELETED: BOOLEAN, REPEATS: BOOLEAN, FRESH: BOOLEAN}
    fields = [DeltaField(name=name, type=nullable(types[name])) for name in read.imaged]
    return rows.to(StructType.fromJson(schema_json(fields)))


def _imaged(rows: Any, read: ViewRead, partitions: int) -> Any:
    """The image rows of rows of the feed."""
    rows = _viewed(rows, read, VERSION, TIMESTAMP, UPSERT)
    tenant = columns([read.selection.tenant_column] if read.selection.tenant_column else [])
    alone = partitions == 1 or not tenant
    rows = rows.coalesce(1) if alone else rows.repartition(partitions, *tenant)
    return _numbered(_netted(rows, read), read, tenant)


def base(spark: Any, read: ViewRead, at: Moment) -> Any:
    """The view's rows as of version `at`, as BASE rows."""
    from pyspark.sql.connect import functions as F  # noqa: N812 - the name everyone knows

    _in_utc(spark)
    rows = of_tenants(table_at(spark, read.selection, at), read.selection)
    rows = _viewed(rows.select(*columns(read.selection.output)), read)
    return rows.select(
        *columns(read.output),
        F.lit(int(ChangeKind.BASE)).cast("tinyint").alias(CHANGE),
        F.lit(AFTER).cast("tinyint").alias(IMAGE),
        F.array().cast(NO_FIELDS).alias(FIELDS),
        F.lit(0).cast("bigint").alias(ORDINAL),
        *columns(read.conditions),
        F.lit(at.version).cast("bigint").alias(VERSION),
        F.lit(at.micros).cast("bigint").alias(TIMESTAMP),
        F.lit(False).alias(DELETED),
    )


def _in_utc(spark: Any) -> None:
    """Have expressions give the same wherever Spark runs: their dates and hours are UTC's."""
    spark.conf.set("spark.sql.session.timeZone", "UTC")


def viewed(rows: Any, transitions: Transitions) -> Any:
    """The rows that are in the view, with its calculated columns; NULL counts as not in it."""
    from pyspark.sql.connect import functions as F  # noqa: N812 - the name everyone knows

    for stage in transitions.stages:
        if stage.where is not None:
            rows = rows.filter(F.expr(stage.where))
        if stage.columns:
            rows = rows.withColumns({name: F.expr(text) for name, text in stage.columns})
    return rows


def _viewed(rows: Any, read: ViewRead, *system: str) -> Any:
    """The view's rows with its columns, the conditions' and those of the `system`."""
    variants = {name: type_ for name, type_ in read.types.items() if has_variant(type_)}
    output = [
        as_text(column(name), variants[name]).alias(name) if name in variants else column(name)
        for name in read.output
    ]
    return viewed(rows, read.transitions).select(*output, *_conditions(read.transitions), *system)


def _conditions(transitions: Transitions) -> list[Any]:
    from pyspark.sql.connect import functions as F  # noqa: N812 - the name everyone knows

    def met(text: str) -> Any:
        return F.coalesce(F.expr(text), F.lit(False))

    found = []
    for each in transitions.conditions:
        unmatch = ~met(each.match) if each.unmatch is None else met(each.unmatch)
        found += [met(each.match).alias(each.column(MATCH)), unmatch.alias(each.column(UNMATCH))]
    return found


def _netted(rows: Any, read: ViewRead) -> Any:
    """Each row with what it is: the images of a commit's change of a key meet in a window."""
    from pyspark.sql.connect import functions as F  # noqa: N812 - the name everyone knows
    from pyspark.sql.connect.window import Window

    selection = read.selection
    others = [name for name in read.output if name not in selection.identity]
    values = [comparable(column(name), read.types[name]) for name in others]
    numbered = (value.alias(f"c{n}") for n, value in enumerate(values))
    here = F.struct(F.col(VERSION).alias("v"), F.col(UPSERT).alias("up"), *numbered)
    window = Window.partitionBy(*columns(selection.identity)).orderBy(VERSION, UPSERT)
    rows = _folded(rows, selection)
    rows = rows.withColumn(OLDER, F.lag(here).over(window))
    rows = rows.withColumn(NEWER, F.lead(here).over(window))
    older, newer, upsert = F.col(OLDER), F.col(NEWER), F.col(UPSERT)
    known = F.lit(True)
    for key in columns(selection.keys):
        known = known & key.isNotNull()

    def beside(other: Any, up: Any) -> Any:
        same = (other["v"] == F.col(VERSION)) & (other["up"] == up)
        return known & F.coalesce(same, F.lit(False))

    paired = F.when(upsert, beside(older, F.lit(False))).otherwise(beside(newer, F.lit(True)))
    twin = beside(older, upsert) | beside(newer, upsert)
    left = known & upsert & ~paired & F.coalesce(older["up"], F.lit(False))
    # Rows without their key are told while some are there at the end of the range: no reader takes
    # them. Once they are gone, nothing is left to tell.
    whole = window.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    lasting = F.last(UPSERT).over(whole) | (F.sum(F.when(upsert, 1).otherwise(-1)).over(whole) > 0)
    other = F.when(upsert, older).otherwise(newer)
    changed = [
        F.when(~value.eqNullSafe(other[f"c{n}"]), F.lit(name))
        for n, (name, value) in enumerate(zip(others, values, strict=True))
    ]
    fields = F.array_compact(F.array(*changed)) if changed else F.array()
    kind = F.when(upsert, int(ChangeKind.INSERT)).otherwise(int(ChangeKind.DELETE))
    rows = rows.select(
        *columns(read.output),
        *columns(read.conditions),
        VERSION,
        TIMESTAMP,
        UPSERT,
        (twin | left | F.col(FOLDED)).alias(REPEATS),
        (upsert & ~paired & older.isNull()).alias(FRESH),
        F.when(paired, int(ChangeKind.UPDATE)).otherwise(kind).cast("tinyint").alias(CHANGE),
        F.when(paired, fields.cast(NO_FIELDS)).otherwise(F.array().cast(NO_FIELDS)).alias(FIELDS),
        (known | (lasting & upsert)).alias(LOWER),
    )
    here = (F.col(CHANGE) != int(ChangeKind.UPDATE)) | (F.size(FIELDS) > 0) | F.col(REPEATS)
    return rows.filter(here & F.col(LOWER))


def _numbered(rows: Any, read: ViewRead, tenant: list[Any]) -> Any:
    """The rows with the place of each change in its commit, in that order."""
    from pyspark.sql.connect import functions as F  # noqa: N812 - the name everyone knows
    from pyspark.sql.connect.window import Window

    keys = columns(read.selection.keys)
    place = Window.partitionBy(*tenant, VERSION).orderBy(*keys)
    return rows.select(
        *columns(read.output),
        CHANGE,
        F.col(UPSERT).cast("tinyint").alias(IMAGE),
        FIELDS,
        (F.dense_rank().over(place) - 1).cast("bigint").alias(ORDINAL),
        *columns(read.conditions),
        VERSION,
        TIMESTAMP,
        F.lit(False).alias(DELETED),
        REPEATS,
        FRESH,
    ).sortWithinPartitions(*tenant, VERSION, ORDINAL, IMAGE)


def _folded(rows: Any, selection: Selection) -> Any:
    """The rows with `FOLDED`: whether an index takes the key for another one of the range."""
    from pyspark.sql.connect import functions as F  # noqa: N812 - the name everyone knows
    from pyspark.sql.connect.window import Window

    if not selection.folded:
        return rows.withColumn(FOLDED, F.lit(False))
    folded = columns(selection.folded)
    exact = columns([name for name in selection.identity if name not in selection.folded])
    window, spelled = Window.partitionBy(*exact, F.array(*map(F.lower, folded))), F.array(*folded)
    return rows.withColumn(FOLDED, F.min(spelled).over(window) != F.max(spelled).over(window))
