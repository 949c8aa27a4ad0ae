"""Selects the image rows of a changes index from ClickHouse."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from iscp_dagster.clickhouse.connect.endpoint import ClickHouseEndpoint
from iscp_dagster.clickhouse.connect.failures import ClickHouseError
from iscp_dagster.clickhouse.connect.quoting import quote_identifier, quote_string
from iscp_dagster.clickhouse.tables.ddl import format_table_name
from iscp_dagster.clickhouse.tables.generations import IndexGenerations
from iscp_dagster.clickhouse.types.type_parser import FLOATS, ClickHouseType, parse_type
from iscp_dagster.events.changes import RowChange, StampedChange
from iscp_dagster.events.timestamps import SourceTimestamp
from iscp_dagster.model.declared.images import ChangeKind
from iscp_dagster.serve.columns import BINARY_TYPES, Column, build_column
from iscp_dagster.serve.live.positions import START, ChangePosition, Positions
from iscp_dagster.serve.rows import QueryLimits, query_rows
from iscp_dagster.serve.sql import Parameters, render_condition
from iscp_dagster.serve.where import EVERYTHING, WhereExpression

IMAGE_LIMITS = QueryLimits(rows=100_000)
BEGIN = int(ChangeKind.BEGIN)
_TOO_LARGE = {158, 307, 396}
"""ClickHouse's codes for answers beyond the limits."""
Result = TypeVar("Result")
_UTC = "UTC"
MOST_GROUPS = 50
"""Groups of tenants at the same position, in one query."""
_SYSTEM_COLUMNS = {
    "_owner": "String",
    "_row": "Array(String)",
    "_micros": "Int64",
    "_version": "UInt64",
    "_ordinal": "Int64",
    "_image": "Int8",
    "_change": "Int8",
    "_fields": "Array(String)",
}


@dataclass(frozen=True, kw_only=True)
class Span:
    """A tenant's changes after one position, up to another."""

    tenant: str
    after: ChangePosition
    upto: ChangePosition


@dataclass(frozen=True, kw_only=True)
class ChangePage:
    """Changes that were read; `complete` if there are no more."""

    stamped_changes: tuple[StampedChange, ...] = ()
    complete: bool = True
    beginnings: Mapping[str, int] = field(default_factory=dict)
    """By tenant, the version that its history begins with."""


@dataclass(frozen=True, kw_only=True)
class SnapshotPage:
    """Rows of a snapshot with their keys; the next page is after `upto`; None: it is the last."""

    rows: tuple[tuple[tuple[str, ...], StampedChange], ...] = ()
    upto: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class ImageReader:
    """The rows of the index `view` in `database`, of one generation. Blocks while it reads.

    `columns` are the view's; `keys` and `tenant` name columns of the table, of the types in
    `types`. Raises UnavailableError, ClickHouseBusyError and ClickHouseError.
    """

    endpoint: ClickHouseEndpoint
    database: str
    view: str
    columns: Sequence[Column]
    keys: Sequence[str]
    types: Mapping[str, str]
    tenant: str | None = None
    default_tenant: str = "default"
    """The name of the only tenant of a table without tenants."""
    generation: int = 0

    def find_newest_generation(self) -> int | None:
        """The generation that jobs write; None while there is none."""
        tables = IndexGenerations(
            endpoint=self.endpoint, database=self.database, view=self.view
        ).list_tables()
        generations = [number for name, number in tables.items() if "__rows" in name]
        return max(generations, default=None)

    def select_generation(self, generation: int) -> ImageReader:
        """The same index in another generation."""
        return replace(self, generation=generation)

    def read_beginnings(self, tenants: Collection[str]) -> Mapping[str, int]:
        """The version that each tenant's history begins with; leaves out tenants without one."""
        return self.read_changes(
            [Span(tenant=tenant, after=START, upto=START) for tenant in tenants], 1
        ).beginnings

    def read_base(self, tenant: str, version: int, offset: int, max_rows: int) -> ChangePage:
        """The rows as of `version` that the history begins with, after the first `offset`."""

        def read(limit: int) -> ChangePage:
            parameters = Parameters()
            query = (
                f"SELECT {self._select_sql} FROM {self._table_sql} WHERE `_change` = 0 "
                f"AND `_version` = {version:d} "
                f"AND {self._render_tenant_filter([tenant], parameters)} "
                f"ORDER BY {self._keys_sql} LIMIT 1 BY {self._keys_sql} "
                f"LIMIT {limit:d} OFFSET {offset:d}"
            )
            rows = self._query_rows(query, parameters, self._all_columns)
            return ChangePage(
                stamped_changes=tuple(self._combine_images(rows)), complete=len(rows) < limit
            )

        return _read_within_limits(read, max_rows)

    def read_changes(self, spans: Sequence[Span], max_changes: int) -> ChangePage:
        """Where the histories begin, and the oldest changes of the spans, at most `max_changes`.

        Both are read at one moment. Each tenant's changes are its oldest. Pass no more spans than
        `limit_spans` returns.
        """
        return _read_within_limits(lambda limit: self._query_changes(spans, limit), max_changes)

    def _query_changes(self, spans: Sequence[Span], limit: int) -> ChangePage:
        parameters = Parameters()
        parts = [
            f"({self._render_tenant_filter(tenants, parameters)} AND (`_change` = {BEGIN} OR "
            f"({_render_range(*span)})))"
            for span, tenants in _group_spans(spans).items()
        ]
        # A repeated insert may not be merged yet. An update has two rows.
        query = (
            f"SELECT {self._select_sql} FROM {self._table_sql} WHERE `_change` != 0 "
            f"AND ({' OR '.join(parts) or 0}) "
            f"ORDER BY `_change` != {BEGIN}, `_version`, `_owner`, `_ordinal`, `_image` "
            "LIMIT 1 BY `_change`, `_version`, `_owner`, `_ordinal`, `_image` "
            f"LIMIT {len(spans) + 2 * limit:d}"
        )
        rows = self._query_rows(query, parameters, self._all_columns)
        begins = {row["_owner"]: int(row["_version"]) for row in rows if row["_change"] == BEGIN}
        changes = list(self._combine_images(row for row in rows if row["_change"] != BEGIN))
        return ChangePage(
            stamped_changes=tuple(changes[:limit]), complete=len(changes) < limit, beginnings=begins
        )

    def read_snapshot(
        self,
        at: Positions,
        row: tuple[str, ...],
        max_keys: int,
        where: WhereExpression = EVERYTHING,
    ) -> SnapshotPage:
        """The rows as of these positions, by key, after the row with the key `row`.

        At most `max_keys` keys are read, of which some may have no row now.
        """
        return _read_within_limits(
            lambda limit: self._query_snapshot(at, row, limit, where), max_keys
        )

    def _query_snapshot(
        self, at: Positions, row: tuple[str, ...], limit: int, where: WhereExpression
    ) -> SnapshotPage:
        upto = self._find_page_end(at, row, limit)
        parameters = Parameters()
        tenants = self._render_tenant_filter(at, parameters)
        seen = self._render_seen_filter(at, parameters)
        # Bounds on both sides let ClickHouse read only these keys.
        lower_bound = f" AND {self._render_key_comparison('>', row, parameters)}" if row else ""
        upper_bound = f" AND {self._render_key_comparison('<=', upto, parameters)}" if upto else ""
        latest = (
            f"SELECT * FROM {self._table_sql} WHERE `_change` >= 0 "
            f"AND {tenants} AND {seen}{lower_bound}{upper_bound} "
            f"ORDER BY {self._order_sql}, `_version` DESC, `_image` DESC LIMIT 1 BY "
            f"{self._order_sql}"
        )
        query = (
            f"SELECT {self._select_sql} FROM ({latest}) WHERE `_image` = 1 AND "
            f"{render_condition(where, parameters)} ORDER BY {self._order_sql}"
        )
        images = self._query_rows(query, parameters, self._all_columns)
        rows = [
            (tuple(image["_row"]), self._build_single_change(image, ChangeKind.BASE))
            for image in images
        ]
        return SnapshotPage(rows=tuple(rows), upto=upto)

    def _find_page_end(
        self, at: Positions, row: tuple[str, ...], limit: int
    ) -> tuple[str, ...] | None:
        """The key that is `limit` keys further; None if there are fewer."""
        parameters = Parameters()
        lower_bound = f" AND {self._render_key_comparison('>', row, parameters)}" if row else ""
        query = (
            f"SELECT {self._key_sql} FROM (SELECT DISTINCT {self._order_sql} "
            f"FROM {self._table_sql} "
            f"WHERE {self._render_tenant_filter(at, parameters)}{lower_bound} "
            f"ORDER BY {self._order_sql} LIMIT 1 OFFSET {limit - 1:d})"
        )
        key_rows = self._query_rows(query, parameters, [_build_system_column("_row")])
        return tuple(key_rows[0]["_row"]) if key_rows else None

    @property
    def _table_sql(self) -> str:
        return quote_identifier(
            self.database, format_table_name(self.view, "rows", self.generation)
        )

    @property
    def _tenant_sql(self) -> str:
        return (
            f"toString({quote_identifier(self.tenant)})"
            if self.tenant
            else quote_string(self.default_tenant)
        )

    @property
    def _keys_sql(self) -> str:
        return ", ".join(map(quote_identifier, self.keys))

    @property
    def _order_sql(self) -> str:
        return ", ".join(map(quote_identifier, self._identity))

    @property
    def _identity(self) -> list[str]:
        tenant = [self.tenant] if self.tenant else []
        return list(dict.fromkeys([*tenant, *self.keys]))

    @property
    def _key_sql(self) -> str:
        """The key as JSON texts that identify its values: see `_render_key_column`."""
        return f"array({', '.join(self._render_key_column(name) for name in self._identity)})"

    def _render_key_column(self, name: str) -> str:
        """One column as a text; what may be bytes is in base64, and times are in UTC."""
        quoted, type_ = quote_identifier(name), parse_type(self.types[name])
        if type_.name in BINARY_TYPES:
            return f"base64Encode(toString({quoted}))"
        in_utc = f"toTimeZone({quoted}, {quote_string(_UTC)})"
        return f"toString({in_utc if _is_time(type_) else quoted})"

    def _render_key_value(self, name: str, value: str) -> str:
        """The value that `_render_key_column` made a text of."""
        type_ = parse_type(self.types[name])
        if type_.name in BINARY_TYPES:
            value = f"base64Decode({value})"
        time_type = f"{type_.name}({', '.join([*map(str, type_.numbers), quote_string(_UTC)])})"
        return f"CAST({value}, {quote_string(time_type if _is_time(type_) else str(type_))})"

    def _render_sides(self, name: str, value: str) -> list[tuple[str, str]]:
        """The pairs to compare in turn for the column's order; NaN comes last."""
        sides = quote_identifier(name), self._render_key_value(name, value)
        if parse_type(self.types[name]).name not in FLOATS:
            return [sides]
        doubles = [f"toFloat64({side})" for side in sides]
        nans, numbers = (
            [template.format(double) for double in doubles]
            for template in ("isNaN({0})", "if(isNaN({0}), 0, {0})")
        )
        return [(nans[0], nans[1]), (numbers[0], numbers[1])]

    @property
    def _all_columns(self) -> list[Column]:
        return [*self.columns, *map(_build_system_column, _SYSTEM_COLUMNS)]

    @property
    def _select_sql(self) -> str:
        computed = {
            "_owner": self._tenant_sql,
            "_row": self._key_sql,
            "_micros": "toUnixTimestamp64Micro(`_timestamp`)",
        }
        system = [
            f"{computed.get(name, quote_identifier(name))} AS {quote_identifier(name)}"
            for name in _SYSTEM_COLUMNS
        ]
        return ", ".join([*(column.select_sql for column in self.columns), *system])

    def _render_tenant_filter(self, tenants: Collection[str], parameters: Parameters) -> str:
        if not self.tenant:
            return "1" if self.default_tenant in tenants else "0"
        type_ = self.types[self.tenant]
        names = parameters.bind("Array(String)", _to_array(sorted(tenants)))
        return (
            f"{quote_identifier(self.tenant)} IN (SELECT CAST(arrayJoin({names}), "
            f"{quote_string(type_)}))"
        )

    def _render_key_comparison(
        self, operator: str, row: tuple[str, ...], parameters: Parameters
    ) -> str:
        """Compare keys in their order; ClickHouse does not look up tuples in its primary index."""
        pairs = [
            sides
            for name, value in zip(self._identity, row, strict=True)
            for sides in self._render_sides(name, parameters.bind("String", value))
        ]
        parts = []
        for index, (name, value) in enumerate(pairs):
            is_last = index == len(pairs) - 1
            equalities = [
                f"{earlier_name} = {earlier_value}" for earlier_name, earlier_value in pairs[:index]
            ]
            parts.append(
                " AND ".join(
                    [*equalities, f"{name} {operator if is_last else operator[0]} {value}"]
                )
            )
        return f"({' OR '.join(f'({part})' for part in parts)})"

    def _render_seen_filter(self, at: Positions, parameters: Parameters) -> str:
        """Whether a change is not after its tenant's position.

        Its length does not depend on the tenants: there may be thousands.
        """
        tenants = parameters.bind("Array(String)", _to_array(list(at)))
        components = [
            parameters.bind("Array(Int64)", _to_array(numbers))
            for numbers in zip(*at.values(), strict=True)
        ]
        limits = [
            f"transform({self._tenant_sql}, {tenants}, {component}, toInt64(-2))"
            for component in components
        ]
        return f"(`_version`, `_ordinal`) <= ({', '.join(limits)})"

    def _query_rows(
        self, query: str, parameters: Parameters, columns: Sequence[Column]
    ) -> list[dict[str, Any]]:
        return query_rows(self.endpoint, query, parameters.values, columns, IMAGE_LIMITS)

    def _combine_images(self, images: Iterable[dict[str, Any]]) -> Iterable[StampedChange]:
        """Changes of image rows in order; an update that a limit cut in half is left out."""
        before: dict[str, Any] | None = None
        for row in images:
            operation = ChangeKind(row["_change"])
            if operation != ChangeKind.UPDATE:
                yield self._build_single_change(row, operation)
            elif before is None:
                before = row
            else:
                yield self._build_change(row, operation, before, row)
                before = None

    def _build_single_change(self, row: dict[str, Any], operation: ChangeKind) -> StampedChange:
        is_delete = operation == ChangeKind.DELETE
        return self._build_change(
            row, operation, row if is_delete else None, None if is_delete else row
        )

    def _build_change(
        self,
        row: dict[str, Any],
        operation: ChangeKind,
        before: dict[str, Any] | None,
        after: dict[str, Any] | None,
    ) -> StampedChange:
        change = RowChange(
            tenant=row["_owner"],
            key="\0".join(row["_row"]),
            operation=operation,
            before=self._pick_columns(before),
            after=self._pick_columns(after),
            fields=tuple(row["_fields"]),
        )
        version, ordinal = int(row["_version"]), int(row["_ordinal"])
        at = SourceTimestamp.from_micros(int(row["_micros"]), version=version, ordinal=ordinal)
        return change, at

    def _pick_columns(self, row: dict[str, Any] | None) -> dict[str, Any] | None:
        if row is None:
            return None
        return {column.field: row[column.field] for column in self.columns}


def _read_within_limits(read: Callable[[int], Result], limit: int) -> Result:
    """Read fewer at a time where the rows are too large for one answer."""
    while True:
        try:
            return read(limit)
        except ClickHouseError as error:
            if limit == 1 or getattr(error.__cause__, "code", None) not in _TOO_LARGE:
                raise
            limit = max(limit // 8, 1)


def limit_spans(spans: Sequence[Span]) -> list[Span]:
    """As many of the spans as one query takes."""
    groups = set(list(_group_spans(spans))[:MOST_GROUPS])
    return [span for span in spans if (span.after, span.upto) in groups]


def _group_spans(spans: Sequence[Span]) -> dict[tuple[ChangePosition, ChangePosition], list[str]]:
    groups = defaultdict(list)
    for span in spans:
        groups[span.after, span.upto].append(span.tenant)
    return dict(groups)


def _render_range(after: ChangePosition, upto: ChangePosition) -> str:
    # The plain comparison lets ClickHouse skip parts.
    lower_bound = f"(`_version`, `_ordinal`) > ({after.version:d}, {after.ordinal:d})"
    return (
        f"`_version` >= {max(after.version, 0):d} AND {lower_bound} AND {_render_upper_bound(upto)}"
    )


def _render_upper_bound(position: ChangePosition) -> str:
    return f"(`_version`, `_ordinal`) <= ({position.version:d}, {position.ordinal:d})"


def _is_time(type_: ClickHouseType) -> bool:
    return type_.name in {"DateTime", "DateTime64"}


def _to_array(values: Sequence[str] | Sequence[int]) -> Any:
    """A list as the client binds it."""
    return list(values)


def _build_system_column(name: str) -> Column:
    column = build_column(name, parse_type(_SYSTEM_COLUMNS[name]))
    if column is None:
        raise KeyError(name)
    return column
