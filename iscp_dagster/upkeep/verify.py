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

from iscp_dagster.clickhouse.connect.quoting import ident
from iscp_dagster.clickhouse.kinds.indexes import index_of
from iscp_dagster.clickhouse.tables.indexes import IndexStore
from iscp_dagster.clickhouse.types.stored import Stored
from iscp_dagster.clickhouse.types.typetext import parsed
from iscp_dagster.clickhouse.types.wire import respells, selected
from iscp_dagster.delta.comparing import comparable
from iscp_dagster.delta.failures import reading
from iscp_dagster.delta.reader import Selection, snapshot
from iscp_dagster.delta.transitions import ViewRead, base
from iscp_dagster.model.consumers.kinds import is_index
from iscp_dagster.model.declared.images import IMAGE_COLUMNS
from iscp_dagster.model.declared.schema import SYSTEM_COLUMNS, Primitive, parse_schema
from iscp_dagster.model.declared.tables import DEFAULT_TENANT, Index, SourceTable
from iscp_dagster.model.errors import IscpError, SourceError, UnreadableError
from iscp_dagster.model.jobs import JobKey
from iscp_dagster.model.moment import Moment
from iscp_dagster.model.specs import ConsumerInfo
from iscp_dagster.planning.problems import as_ours
from iscp_dagster.spark.columns import as_nullable, column, columns, map_in_arrow
from iscp_dagster.sync.deployment import Deployment
from iscp_dagster.sync.executors.rows import (
    IndexRead,
    canonical_rows,
    placed_rows,
    reading_index,
    respelled_rows,
)
from iscp_dagster.upkeep.dead_letters import dead_letters
from iscp_dagster.upkeep.position import Position, positions
from iscp_dagster.upkeep.samples import Sampling

ATTEMPTS = 5
TENANTS_TRIED = 8
"""How many tenants in a row must each fail alone before the failure is taken to concern all."""
OF_ROWS = (SourceError, UnreadableError)
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
"""Options of `to_json` under which samples show what tells rows apart."""


class MovingError(IscpError):
    """The index moved on while it was compared."""

    code = 1_500


@dataclass(frozen=True, kw_only=True)
class Verdict:
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
    """Rows in the source as its log's statistics count them, which no reader's filter touches; None
    where they do not, or the index has only some of the rows."""
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
class Failure:
    """Why some tenants of an index could not be compared."""

    index: str
    tenants: tuple[str, ...]
    error: IscpError
    as_of: int | None = None
    """The version that was to be read, if it is not the table's latest."""

    def __str__(self) -> str:
        at = "" if self.as_of is None else f"as of version {self.as_of}, "
        return f"{at}{self.error}"


def verify(
    deployment: Deployment,
    source: SourceTable,
    *,
    tenants: Collection[str] | None = None,
    indexes: Sequence[str] | None = None,
    tell: Callable[[str], None] | None = None,
) -> list[Verdict]:
    """Compare as `compare_indexes` does. Raises the error of an index that cannot be compared."""
    compared = compare_indexes(deployment, source, tenants=tenants, indexes=indexes, tell=tell)
    for failure in compared:
        if isinstance(failure, Failure):
            raise failure.error
    return [verdict for verdict in compared if isinstance(verdict, Verdict)]


def compare_indexes(
    deployment: Deployment,
    source: SourceTable,
    *,
    tenants: Collection[str] | None = None,
    indexes: Sequence[str] | None = None,
    tell: Callable[[str], None] | None = None,
) -> list[Verdict | Failure]:
    """Compare every built index with the source at its effective watermark. Reads only.

    Covers these tenants or all (None), with one comparison per index and watermark. Where the
    table's log has lost that version, compares with the latest one, and says so by `tell`.

    An index that moves on during each of several attempts fails with MovingError. Raises an
    IscpError where the table itself, or its jobs, cannot be read.
    """
    results: list[Verdict | Failure] = []
    moved: set[tuple[JobKey, int]] = set()
    for _ in range(ATTEMPTS):
        before = positions(deployment, source, tenants=tenants, indexes=indexes)
        # A job whose consumer changed during its run still follows the earlier one.
        settled = [each for each in before if each.built and not each.job.rebuild]
        built = [each for each in settled if is_index(each.consumer)]
        results = list(_compare(deployment, source, built, tell))
        after = positions(deployment, source, tenants=tenants, indexes=indexes)
        moved = _marks(before) ^ _marks(after)
        if not moved:
            break
    return sorted(_without_moved(source, results, {key for key, _ in moved}), key=_place)


def _marks(positions: Iterable[Position]) -> set[tuple[JobKey, int]]:
    return {(each.job.key, each.job.seq) for each in positions}


def _without_moved(
    source: SourceTable, results: Sequence[Verdict | Failure], moved: Collection[JobKey]
) -> list[Verdict | Failure]:
    """The results, with a MovingError in place of the verdicts on jobs that moved."""
    places = {(key.job_name, key.tenant) for key in moved}
    error = MovingError(
        f"{source.name}: new commits were applied during each of {ATTEMPTS} comparisons; "
        "verify a single --tenant, or try again when fewer commits come in."
    )
    return [
        Failure(index=result.index, tenants=(result.tenant,), error=error)
        if isinstance(result, Verdict) and (result.index, result.tenant) in places
        else result
        for result in results
    ]


def _place(result: Verdict | Failure) -> tuple[str, str]:
    return result.index, result.tenant if isinstance(result, Verdict) else result.tenants[0]


def _compare(
    deployment: Deployment,
    source: SourceTable,
    built: list[Position],
    tell: Callable[[str], None] | None,
) -> Iterator[Verdict | Failure]:
    """One comparison per index and watermark, for all its tenants together."""

    def place(each: Position) -> tuple[str, int, str]:
        # Tenants may still keep an earlier generation of the index.
        return each.index, each.watermark.version, repr(each.consumer)

    for _, group in groupby(sorted(built, key=place), key=place):
        members = list(group)
        tenants = sorted(each.tenant for each in members)
        yield from _compare_tenants(deployment, source, members[0], tenants, tell)


def _compare_tenants(
    deployment: Deployment,
    source: SourceTable,
    place: Position,
    tenants: Sequence[str],
    tell: Callable[[str], None] | None,
) -> Iterator[Verdict | Failure]:
    """Compare these tenants, all at `place`; where rows cannot be read, in halves, to tell whose.

    When too many in a row fail alone, those that are left are not tried alone.
    """
    waiting, failed_alone = [tenants], 0
    while waiting:
        tenants = waiting.pop()
        try:
            at = _readable(deployment, source, place)
            if tell is not None:
                tell(_told(source, place, tenants, at))
            yield from _verdicts(deployment, source, place.consumer, at, frozenset(tenants))
            failed_alone = 0
        except Exception as error:  # noqa: BLE001 - the others can still be compared
            half = len(tenants) // 2
            if half and failed_alone < TENANTS_TRIED and isinstance(error, OF_ROWS):
                waiting += [tenants[half:], tenants[:half]]
                continue
            failed_alone += 1
            yield _failure(place, tenants, error)


def _failure(place: Position, tenants: Sequence[str], error: Exception) -> Failure:
    version = place.watermark.version
    return Failure(
        index=place.index,
        tenants=tuple(tenants),
        error=as_ours(error),
        as_of=None if version == place.latest.version else version,
    )


def _readable(deployment: Deployment, source: SourceTable, place: Position) -> Moment:
    """The watermark, or the latest moment where the log's cleanup has taken that version."""
    at = place.watermark
    return at if deployment.delta_log(source).can_open(at.version) else place.latest


def _told(source: SourceTable, place: Position, tenants: Sequence[str], at: Moment) -> str:
    first, *others = tenants
    more = f" and {len(others):,} more" if others else ""
    told = f"comparing {source.name}/{place.index}, {first}{more}, at version {at.version}"
    reached = place.watermark.version
    if reached == at.version:
        return told
    return f"{told}: the index has version {reached}, which is no longer in the table's log"


def _verdicts(
    deployment: Deployment,
    source: SourceTable,
    info: ConsumerInfo,
    at: Moment,
    tenants: frozenset[str],
) -> Iterator[Verdict]:
    index, schema = index_of(source, info), deployment.delta_log(source).facts(at.version).fields
    store = deployment.store(source, index, schema, info.generation)
    selection = Selection(
        path=deployment.path(source),
        columns=[name for name in _stored(store) if name not in store.shape.flags],
        keys=source.keys,
        tenant_column=source.tenant,
        types={field.name: field.type for field in store.shape.fields},
        tenants=tenants,
    )
    compared = _joined if source.keys else _counted
    with reading(selection.path):
        held = _held(store, _rows(deployment, store, selection, at))
        served = _served(deployment.spark(), store, at, tenants, held.schema)
        found = compared(held, served, source, selection).collect()
    rows = {row["tenant"]: row for row in found}
    letters = _letters(deployment, source, index)
    has_all = store.placement is None and index.transitions is None
    logged = deployment.delta_log(source).row_counts(at.version, tenants) if has_all else {}
    sampling = Sampling(
        identity=selection.identity,
        tenant_column=source.tenant,
        types=selection.types,
        flags=store.shape.flags,
    )
    for tenant in sorted(tenants):
        counts = rows[tenant].asDict() if tenant in rows else {}
        samples = tuple(map(sampling.describe, counts.pop("samples", ())))
        counts.pop("tenant", None)
        yield Verdict(
            index=index.name,
            tenant=tenant,
            version=at.version,
            samples=samples,
            dead=letters[tenant],
            logged=logged.get(tenant),
            **counts,
        )


def _rows(deployment: Deployment, store: IndexStore, selection: Selection, at: Moment) -> Any:
    """The source's rows; for a changes index, those of its view."""
    shape = store.shape
    transitions = shape.index.transitions
    if transitions is None:
        return snapshot(deployment.spark(), selection, at).drop(*SYSTEM_COLUMNS)
    schema = deployment.delta_log(shape.source).facts(at.version).fields
    read = ViewRead.of(
        selection,
        schema,
        transitions,
        [each for each in shape.fields if each.name in transitions.calculated],
    )
    return base(deployment.spark(), read, at).select(*columns(read.output))


def _stored(store: IndexStore) -> dict[str, Stored]:
    """How the columns of the source's, or the view's, rows are kept."""
    flag = Stored(source=Primitive("boolean"), type=parsed("Bool"))
    kept = store.shape.stored | dict.fromkeys(store.shape.flags, flag)
    images = IMAGE_COLUMNS if store.shape.index.of_images else ()
    return {name: each for name, each in kept.items() if name not in images}


def _held(store: IndexStore, held: Any) -> Any:
    """The source's rows that belong to the index, written as the index gives them back."""
    if store.placement is not None:
        held = map_in_arrow(held, placed_rows(store.placement), held.schema)
    if json := _json(store):
        held = map_in_arrow(held, canonical_rows(json), held.schema)
    if spelled := {name: each for name, each in _stored(store).items() if respells(each)}:
        texts = frozenset(name for name, each in spelled.items() if each.is_text)
        schema = as_nullable(held.schema, texts, store.shape.flags)
        held = map_in_arrow(held, respelled_rows(spelled, store.shape.flags), schema)
    return held


def _served(spark: Any, store: IndexStore, at: Moment, tenants: frozenset[str], schema: Any) -> Any:
    """The index's rows; of a changes index, those that its changes up to `at` leave."""
    source, index = store.shape.source, store.shape.index
    rows = store.reads()
    if index.of_images:
        rows = f"({index.rows_as_of(store.shape, str(at.version))})"
    by = ", ".join(map(ident, store.shape.order_by))
    slices = _slices(store.size()) if source.keys else 1
    read = IndexRead(
        endpoint=store.endpoint,
        rows=rows,
        columns=tuple(starmap(selected, _stored(store).items())),
        bucket=f"cityHash64({by}) % {slices}" if slices > 1 else "0",
        tenant=ident(source.tenant) if source.tenant else None,
        tenants=tuple(sorted(tenants)),
        json=_json(store),
    )
    return spark.range(0, slices, 1, slices).mapInArrow(reading_index(read, schema), schema)


def _slices(rows: int) -> int:
    return min(MOST_SLICES, rows // ROWS_A_SLICE + 1)


def _json(store: IndexStore) -> tuple[str, ...]:
    return tuple(n for n, each in _stored(store).items() if each.type.bare.name == "JSON")


def _letters(deployment: Deployment, source: SourceTable, index: Index) -> Counter[str]:
    """How many dead letters each tenant of the index has."""
    if index.errors != "dead_letter":
        return Counter()
    found = dead_letters(deployment, [source], index=f"{source.name}/{index.name}")
    return Counter(each.tenant for each in found)


def _joined(held: Any, served: Any, source: SourceTable, selection: Selection) -> Any:
    """Rows in either, per tenant: how many agree, are missing, extra or different."""
    from pyspark.sql.connect import functions as F  # noqa: N812 - the name everyone knows

    # Compared as one value: Spark's client takes no expression as deep as there are columns.
    values = F.struct(*_comparable(held))
    left = held.select(values.alias("h"), *_keys(selection.identity), F.lit(1).alias("in_h"))
    right = served.select(values.alias("s"), *_keys(selection.identity), F.lit(1).alias("in_s"))
    keys = [f"key_{number}" for number, _ in enumerate(selection.identity)]
    both = left.join(right, on=keys, how="full_outer")
    same = F.col("h").eqNullSafe(F.col("s"))
    in_h, in_s = F.col("in_h").isNotNull(), F.col("in_s").isNotNull()
    differs = in_h & in_s & ~same
    tenant = F.col(keys[0]).cast("string") if source.tenant else F.lit(DEFAULT_TENANT)
    parts = (F.when(~F.col("h")[n].eqNullSafe(F.col("s")[n]), F.lit(n)) for n in held.columns)
    sample = F.struct(
        F.array(*(F.col(key).cast("string") for key in keys)).alias("identity"),
        in_h.alias("in_source"),
        in_s.alias("in_index"),
        F.when(differs, F.array_compact(F.array(*parts))).alias("different"),
    )
    wrong = F.when(~(in_h & in_s & same), sample)
    return both.groupBy(tenant.alias("tenant")).agg(
        F.count_if(in_h).alias("rows"),
        F.count_if(~in_s).alias("missing"),
        F.count_if(~in_h).alias("extra"),
        F.count_if(differs).alias("different"),
        F.slice(F.array_sort(F.collect_set(wrong)), 1, SAMPLES).alias("samples"),
    )


def _counted(held: Any, served: Any, source: SourceTable, selection: Selection) -> Any:
    """Like `_joined` where no key tells rows apart: how often each row is in either."""
    from pyspark.sql.connect import functions as F  # noqa: N812 - the name everyone knows

    del selection
    tenant = column(source.tenant).cast("string") if source.tenant else F.lit(DEFAULT_TENANT)

    def times(frame: Any, name: str) -> Any:
        row = F.struct(*_comparable(held))
        told = frame.select(tenant.alias("tenant"), row.alias("row"))
        return told.groupBy("tenant", "row").agg(F.count("*").alias(name))

    both = times(held, "in_h").join(times(served, "in_s"), on=["tenant", "row"], how="full_outer")
    in_h, in_s = (F.coalesce(F.col(name), F.lit(0)) for name in ("in_h", "in_s"))
    sample = F.struct(
        F.to_json("row", dict(EXACT_TIMES)).alias("row"),
        in_h.alias("in_source"),
        in_s.alias("in_index"),
    )
    wrong = F.when(in_h != in_s, sample)
    return both.groupBy("tenant").agg(
        F.sum(in_h).alias("rows"),
        F.sum(F.greatest(in_h - in_s, F.lit(0))).alias("missing"),
        F.sum(F.greatest(in_s - in_h, F.lit(0))).alias("extra"),
        F.lit(0).cast("bigint").alias("different"),
        F.slice(F.array_sort(F.collect_set(wrong)), 1, SAMPLES).alias("samples"),
    )


def _keys(identity: Sequence[str]) -> list[Any]:
    return [each.alias(f"key_{number}") for number, each in enumerate(columns(identity))]


def _comparable(held: Any) -> list[Any]:
    """The columns of the source's rows, and so of the index's, as Spark compares them."""
    return [
        comparable(column(field.name), field.type).alias(field.name)
        for field in parse_schema(held.schema.json())
    ]
