"""Checks that an index and its source agree: same keys, same values, tenant by tenant.

Spark reads the source `VERSION AS OF` the watermark and the index out of ClickHouse, and joins
the two by key; no code of the writing path takes part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, starmap
from types import MappingProxyType
from typing import Any

from iscp_dagster.clickhouse.connect.quoting import quote_identifier
from iscp_dagster.clickhouse.kinds.index_kind import resolve_index
from iscp_dagster.clickhouse.tables.index_store import IndexStore
from iscp_dagster.clickhouse.types.storage import StoredType
from iscp_dagster.clickhouse.types.type_parser import parse_type
from iscp_dagster.clickhouse.types.wire import needs_respelling, render_select_item
from iscp_dagster.delta.comparable_values import to_comparable
from iscp_dagster.delta.images import ViewRead, read_base
from iscp_dagster.delta.reader import TableSelection, read_snapshot
from iscp_dagster.delta.spark_errors import wrap_spark_errors
from iscp_dagster.model.consumers.kinds import is_index
from iscp_dagster.model.declared.images import IMAGE_COLUMNS
from iscp_dagster.model.declared.schema import SYSTEM_COLUMNS, Primitive, parse_schema
from iscp_dagster.model.declared.tables import DEFAULT_TENANT, Index, SourceTable
from iscp_dagster.model.errors import IscpError, SourceError, UnreadableError
from iscp_dagster.model.jobs import JobKey
from iscp_dagster.model.moment import Moment
from iscp_dagster.model.specs import ConsumerInfo
from iscp_dagster.planning.problems import to_iscp_error
from iscp_dagster.spark.columns import build_respelled_schema, get_column, get_columns, map_in_arrow
from iscp_dagster.sync.deployment import Deployment
from iscp_dagster.sync.executors.rows import (
    IndexRead,
    make_index_reader,
    make_json_rewriter,
    make_shard_filter,
    make_value_rewriter,
)
from iscp_dagster.upkeep.dead_letters import find_letters
from iscp_dagster.upkeep.position import JobPosition, read_positions
from iscp_dagster.upkeep.samples import RowDescriber

ATTEMPTS = 5
TENANTS_TRIED = 8
"""How many tenants in a row must each fail before the failure is assumed to concern all."""
ROW_ERRORS = (SourceError, UnreadableError)
"""Errors that the rows of one tenant may cause."""
SAMPLES = 3
ROWS_A_SLICE = 250_000
"""Rows of an index for each Spark task that reads it."""
MOST_SLICES = 16
"""The most tasks that read an index, as ClickHouse scans all its keys for each."""


EXACT_TIMES = MappingProxyType(
    {
        "ignoreNullFields": "false",
        "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
        "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    }
)
"""Options of `to_json` with which samples show how rows differ."""


class MovingError(IscpError):
    """The index moved on while it was compared."""

    code = 1_500


@dataclass(frozen=True, kw_only=True)
class IndexVerdict:
    """One index of one tenant against its source at `version`; counts are rows."""

    index: str
    tenant: str
    version: int
    rows: int = 0
    """In the source."""
    missing: int = 0
    """In the source, not in the index."""
    extra: int = 0
    """In the index, not in the source."""
    different: int = 0
    """In both, with another value in some column."""
    dead: int = 0
    """Dead letters: rows that the index could not take, and batches that it may have in part."""
    logged: int | None = None
    """Rows in the source by its log's statistics, which no reader's filter affects; None where they
    lack it, or the index has only some of the rows."""
    samples: tuple[str, ...] = ()
    """What some of those rows are, and what is wrong with each, for people."""

    @property
    def wrong(self) -> int:
        """How many rows differ."""
        return self.missing + self.extra + self.different

    @property
    def misread(self) -> bool:
        """Whether the source's log counts other rows than were read from it."""
        return self.logged not in {None, self.rows}

    @property
    def agrees(self) -> bool:
        return not (self.wrong or self.misread)


@dataclass(frozen=True, kw_only=True)
class ComparisonFailure:
    """Why some tenants of an index could not be compared."""

    index: str
    tenants: tuple[str, ...]
    error: IscpError
    as_of: int | None = None
    """The version that was to be read, if it is not the table's latest."""

    def __str__(self) -> str:
        at = "" if self.as_of is None else f"as of version {self.as_of}, "
        return f"{at}{self.error}"


def compare_or_raise(
    deployment: Deployment,
    source: SourceTable,
    *,
    tenants: Collection[str] | None = None,
    indexes: Sequence[str] | None = None,
    report: Callable[[str], None] | None = None,
) -> list[IndexVerdict]:
    """Compare as `compare_indexes` does. Raises the error of an index that cannot be compared."""
    compared = compare_indexes(deployment, source, tenants=tenants, indexes=indexes, report=report)
    for failure in compared:
        if isinstance(failure, ComparisonFailure):
            raise failure.error
    return [verdict for verdict in compared if isinstance(verdict, IndexVerdict)]


def compare_indexes(
    deployment: Deployment,
    source: SourceTable,
    *,
    tenants: Collection[str] | None = None,
    indexes: Sequence[str] | None = None,
    report: Callable[[str], None] | None = None,
) -> list[IndexVerdict | ComparisonFailure]:
    """Compare every built index with the source at its effective watermark. Reads only.

    Covers these tenants or all (None), with one comparison per index and watermark. Where the
    table's log has lost that version, compares with the latest one, and says so by `report`.

    An index that moves on during each of several attempts fails with MovingError. Raises an
    IscpError where the table itself, or its jobs, cannot be read.
    """
    results: list[IndexVerdict | ComparisonFailure] = []
    moved: set[tuple[JobKey, int]] = set()
    for _ in range(ATTEMPTS):
        before = read_positions(deployment, source, tenants=tenants, job_names=indexes)
        # A job whose consumer changed during its run still follows the earlier one.
        comparable = [
            position for position in before if position.built and not position.job.rebuild
        ]
        built = [position for position in comparable if is_index(position.consumer)]
        results = list(_compare_built(deployment, source, built, report))
        after = read_positions(deployment, source, tenants=tenants, job_names=indexes)
        moved = _get_fences(before) ^ _get_fences(after)
        if not moved:
            break
    return sorted(_replace_moved(source, results, {key for key, _ in moved}), key=_get_sort_key)


def _get_fences(positions: Iterable[JobPosition]) -> set[tuple[JobKey, int]]:
    return {(position.job.key, position.job.seq) for position in positions}


def _replace_moved(
    source: SourceTable,
    results: Sequence[IndexVerdict | ComparisonFailure],
    moved: Collection[JobKey],
) -> list[IndexVerdict | ComparisonFailure]:
    """The results, with a MovingError in place of the verdicts on jobs that moved."""
    moved_names = {(key.job_name, key.tenant) for key in moved}
    error = MovingError(
        f"{source.name}: new commits were applied during each of {ATTEMPTS} comparisons; "
        "verify a single --tenant, or try again when fewer commits come in."
    )
    return [
        ComparisonFailure(index=result.index, tenants=(result.tenant,), error=error)
        if isinstance(result, IndexVerdict) and (result.index, result.tenant) in moved_names
        else result
        for result in results
    ]


def _get_sort_key(result: IndexVerdict | ComparisonFailure) -> tuple[str, str]:
    return result.index, result.tenant if isinstance(result, IndexVerdict) else result.tenants[0]


def _compare_built(
    deployment: Deployment,
    source: SourceTable,
    built: list[JobPosition],
    report: Callable[[str], None] | None,
) -> Iterator[IndexVerdict | ComparisonFailure]:
    """One comparison per index and watermark, for all its tenants together."""

    def get_group_key(position: JobPosition) -> tuple[str, int, str]:
        # Tenants may still keep an earlier generation of the index.
        return position.job_name, position.watermark.version, repr(position.consumer)

    for _, group in groupby(sorted(built, key=get_group_key), key=get_group_key):
        members = list(group)
        tenants = sorted(position.tenant for position in members)
        yield from _compare_tenants(deployment, source, members[0], tenants, report)


def _compare_tenants(
    deployment: Deployment,
    source: SourceTable,
    position: JobPosition,
    tenants: Sequence[str],
    report: Callable[[str], None] | None,
) -> Iterator[IndexVerdict | ComparisonFailure]:
    """Compare these tenants, all at `position`; if rows cannot be read, in halves, to find whose.

    If too many single tenants in a row fail, the rest are not tried one by one.
    """
    waiting, failed_alone = [tenants], 0
    while waiting:
        tenants = waiting.pop()
        try:
            at = _find_readable_moment(deployment, source, position)
            if report is not None:
                report(_describe_comparison(source, position, tenants, at))
            yield from _read_verdicts(deployment, source, position.consumer, at, frozenset(tenants))
            failed_alone = 0
        except Exception as error:  # noqa: BLE001 - the others can still be compared
            half = len(tenants) // 2
            if half and failed_alone < TENANTS_TRIED and isinstance(error, ROW_ERRORS):
                waiting += [tenants[half:], tenants[:half]]
                continue
            failed_alone += 1
            yield _make_failure(position, tenants, error)


def _make_failure(
    position: JobPosition, tenants: Sequence[str], error: Exception
) -> ComparisonFailure:
    version = position.watermark.version
    return ComparisonFailure(
        index=position.job_name,
        tenants=tuple(tenants),
        error=to_iscp_error(error),
        as_of=None if version == position.latest.version else version,
    )


def _find_readable_moment(
    deployment: Deployment, source: SourceTable, position: JobPosition
) -> Moment:
    """The watermark, or the latest moment where the log's cleanup has taken that version."""
    at = position.watermark
    return at if deployment.make_delta_log(source).can_open(at.version) else position.latest


def _describe_comparison(
    source: SourceTable, position: JobPosition, tenants: Sequence[str], at: Moment
) -> str:
    first, *others = tenants
    more = f" and {len(others):,} more" if others else ""
    message = f"comparing {source.name}/{position.job_name}, {first}{more}, at version {at.version}"
    version = position.watermark.version
    if version == at.version:
        return message
    return f"{message}: the index has version {version}, which is no longer in the table's log"


def _read_verdicts(
    deployment: Deployment,
    source: SourceTable,
    info: ConsumerInfo,
    at: Moment,
    tenants: frozenset[str],
) -> Iterator[IndexVerdict]:
    index, schema = (
        resolve_index(source, info),
        deployment.make_delta_log(source).get_facts(at.version).fields,
    )
    store = deployment.make_index_store(source, index, schema, info.generation)
    selection = TableSelection(
        path=deployment.get_table_path(source),
        columns=[name for name in _get_stored_columns(store) if name not in store.shape.flags],
        keys=source.keys,
        tenant_column=source.tenant,
        types={field.name: field.type for field in store.shape.fields},
        tenants=tenants,
    )
    compare = _compare_by_key if source.keys else _compare_by_count
    with wrap_spark_errors(selection.path):
        source_rows = _convert_source_rows(
            store, _read_source_rows(deployment, store, selection, at)
        )
        index_rows = _read_index_rows(deployment.spark(), store, at, tenants, source_rows.schema)
        results = compare(source_rows, index_rows, source, selection).collect()
    rows_by_tenant = {row["tenant"]: row for row in results}
    letters = _count_letters(deployment, source, index)
    has_all = store.placement is None and index.image_source is None
    logged = deployment.make_delta_log(source).count_rows(at.version, tenants) if has_all else {}
    sampling = RowDescriber(
        identity=selection.identity,
        tenant_column=source.tenant,
        types=selection.types,
        flags=store.shape.flags,
    )
    for tenant in sorted(tenants):
        counts = rows_by_tenant[tenant].asDict() if tenant in rows_by_tenant else {}
        samples = tuple(map(sampling.describe, counts.pop("samples", ())))
        counts.pop("tenant", None)
        yield IndexVerdict(
            index=index.name,
            tenant=tenant,
            version=at.version,
            samples=samples,
            dead=letters[tenant],
            logged=logged.get(tenant),
            **counts,
        )


def _read_source_rows(
    deployment: Deployment, store: IndexStore, selection: TableSelection, at: Moment
) -> Any:
    """The source's rows; for a changes index, those of its view."""
    shape = store.shape
    image_source = shape.index.image_source
    if image_source is None:
        return read_snapshot(deployment.spark(), selection, at).drop(*SYSTEM_COLUMNS)
    schema = deployment.make_delta_log(shape.source).get_facts(at.version).fields
    read = ViewRead.from_schema(
        selection,
        schema,
        image_source,
        [field for field in shape.fields if field.name in image_source.calculated],
    )
    return read_base(deployment.spark(), read, at).select(*get_columns(read.output))


def _get_stored_columns(store: IndexStore) -> dict[str, StoredType]:
    """How the columns of the source's, or the view's, rows are kept."""
    flag = StoredType(source=Primitive("boolean"), type=parse_type("Bool"))
    stored = store.shape.stored_types | dict.fromkeys(store.shape.flags, flag)
    images = IMAGE_COLUMNS if store.shape.index.of_images else ()
    return {name: column for name, column in stored.items() if name not in images}


def _convert_source_rows(store: IndexStore, rows: Any) -> Any:
    """The source's rows that belong to the index, written as the index gives them back."""
    if store.placement is not None:
        rows = map_in_arrow(rows, make_shard_filter(store.placement), rows.schema)
    if json := _list_json_columns(store):
        rows = map_in_arrow(rows, make_json_rewriter(json), rows.schema)
    if respelled := {
        name: column
        for name, column in _get_stored_columns(store).items()
        if needs_respelling(column)
    }:
        texts = frozenset(name for name, column in respelled.items() if column.is_json_text)
        schema = build_respelled_schema(rows.schema, texts, store.shape.flags)
        rows = map_in_arrow(rows, make_value_rewriter(respelled, store.shape.flags), schema)
    return rows


def _read_index_rows(
    spark: Any, store: IndexStore, at: Moment, tenants: frozenset[str], schema: Any
) -> Any:
    """The index's rows; of a changes index, those that its changes up to `at` leave."""
    source, index = store.shape.source, store.shape.index
    rows = store.find_read_source()
    if index.of_images:
        rows = f"({index.render_rows_as_of(store.shape, str(at.version))})"
    by = ", ".join(map(quote_identifier, store.shape.identity_columns))
    slices = _compute_slices(store.count_rows()) if source.keys else 1
    read = IndexRead(
        endpoint=store.endpoint,
        from_clause=rows,
        columns=tuple(starmap(render_select_item, _get_stored_columns(store).items())),
        bucket=f"cityHash64({by}) % {slices}" if slices > 1 else "0",
        tenant_expression=quote_identifier(source.tenant) if source.tenant else None,
        tenants=tuple(sorted(tenants)),
        json=_list_json_columns(store),
    )
    return spark.range(0, slices, 1, slices).mapInArrow(make_index_reader(read, schema), schema)


def _compute_slices(rows: int) -> int:
    return min(MOST_SLICES, rows // ROWS_A_SLICE + 1)


def _list_json_columns(store: IndexStore) -> tuple[str, ...]:
    return tuple(
        name
        for name, column in _get_stored_columns(store).items()
        if column.type.bare.name == "JSON"
    )


def _count_letters(deployment: Deployment, source: SourceTable, index: Index) -> Counter[str]:
    """How many dead letters each tenant of the index has."""
    if index.errors != "dead_letter":
        return Counter()
    letters = find_letters(deployment, [source], index=f"{source.name}/{index.name}")
    return Counter(letter.tenant for letter in letters)


def _compare_by_key(
    source_rows: Any, index_rows: Any, source: SourceTable, selection: TableSelection
) -> Any:
    """Rows in either, per tenant: how many agree, are missing, extra or different."""
    from pyspark.sql.connect import functions as F  # noqa: N812 - the name everyone knows

    # Compared as one value: with many columns, one expression is too deep for Spark's client.
    values = F.struct(*_select_comparable(source_rows))
    left = source_rows.select(
        values.alias("h"), *_select_keys(selection.identity), F.lit(1).alias("in_h")
    )
    right = index_rows.select(
        values.alias("s"), *_select_keys(selection.identity), F.lit(1).alias("in_s")
    )
    keys = [f"key_{number}" for number, _ in enumerate(selection.identity)]
    joined = left.join(right, on=keys, how="full_outer")
    same = F.col("h").eqNullSafe(F.col("s"))
    in_source, in_index = F.col("in_h").isNotNull(), F.col("in_s").isNotNull()
    differs = in_source & in_index & ~same
    tenant = F.col(keys[0]).cast("string") if source.tenant else F.lit(DEFAULT_TENANT)
    parts = (
        F.when(~F.col("h")[n].eqNullSafe(F.col("s")[n]), F.lit(n)) for n in source_rows.columns
    )
    sample = F.struct(
        F.array(*(F.col(key).cast("string") for key in keys)).alias("identity"),
        in_source.alias("in_source"),
        in_index.alias("in_index"),
        F.when(differs, F.array_compact(F.array(*parts))).alias("different"),
    )
    wrong = F.when(~(in_source & in_index & same), sample)
    return joined.groupBy(tenant.alias("tenant")).agg(
        F.count_if(in_source).alias("rows"),
        F.count_if(~in_index).alias("missing"),
        F.count_if(~in_source).alias("extra"),
        F.count_if(differs).alias("different"),
        F.slice(F.array_sort(F.collect_set(wrong)), 1, SAMPLES).alias("samples"),
    )


def _compare_by_count(
    source_rows: Any, index_rows: Any, source: SourceTable, selection: TableSelection
) -> Any:
    """Like `_compare_by_key` without a key: how often each row is on each side."""
    from pyspark.sql.connect import functions as F  # noqa: N812 - the name everyone knows

    del selection
    tenant = get_column(source.tenant).cast("string") if source.tenant else F.lit(DEFAULT_TENANT)

    def count_rows(frame: Any, name: str) -> Any:
        row = F.struct(*_select_comparable(source_rows))
        rows = frame.select(tenant.alias("tenant"), row.alias("row"))
        return rows.groupBy("tenant", "row").agg(F.count("*").alias(name))

    joined = count_rows(source_rows, "in_h").join(
        count_rows(index_rows, "in_s"), on=["tenant", "row"], how="full_outer"
    )
    in_source, in_index = (F.coalesce(F.col(name), F.lit(0)) for name in ("in_h", "in_s"))
    sample = F.struct(
        F.to_json("row", dict(EXACT_TIMES)).alias("row"),
        in_source.alias("in_source"),
        in_index.alias("in_index"),
    )
    wrong = F.when(in_source != in_index, sample)
    return joined.groupBy("tenant").agg(
        F.sum(in_source).alias("rows"),
        F.sum(F.greatest(in_source - in_index, F.lit(0))).alias("missing"),
        F.sum(F.greatest(in_index - in_source, F.lit(0))).alias("extra"),
        F.lit(0).cast("bigint").alias("different"),
        F.slice(F.array_sort(F.collect_set(wrong)), 1, SAMPLES).alias("samples"),
    )


def _select_keys(identity: Sequence[str]) -> list[Any]:
    return [column.alias(f"key_{number}") for number, column in enumerate(get_columns(identity))]


def _select_comparable(rows: Any) -> list[Any]:
    """The columns of the source's rows, and so of the index's, as Spark compares them."""
    return [
        to_comparable(get_column(field.name), field.type).alias(field.name)
        for field in parse_schema(rows.schema.json())
    ]
