"""The image rows of a changes index in ClickHouse: the one place that knows how to select them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from iscp_dagster.clickhouse.connect.endpoint import Endpoint
from iscp_dagster.clickhouse.connect.failures import ClickHouseError
from iscp_dagster.clickhouse.connect.quoting import ident, text
from iscp_dagster.clickhouse.tables.ddl import table_name
from iscp_dagster.clickhouse.tables.generations import IndexData
from iscp_dagster.clickhouse.types.typetext import FLOATS, ChType, parsed
from iscp_dagster.events.changes import Change, Stamped
from iscp_dagster.events.timestamps import SourceTimestamp
from iscp_dagster.model.declared.images import ChangeKind
from iscp_dagster.serve.columns import BINARY, Column, column
from iscp_dagster.serve.live.positions import START, Position, Positions
from iscp_dagster.serve.rows import Limits, rows
from iscp_dagster.serve.sql import Parameters, condition
from iscp_dagster.serve.where import EVERYTHING, Expression

LIMITS = Limits(rows=100_000)
BEGIN = int(ChangeKind.BEGIN)
_TOO_LARGE = {158, 307, 396}
"""ClickHouse's codes for answers beyond the limits."""
Result = TypeVar("Result")
_UTC = "UTC"
MOST_GROUPS = 50
"""Groups of tenants at the same place, in one query."""
_SYSTEM = {
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
    after: Position
    upto: Position


@dataclass(frozen=True, kw_only=True)
class Found:
    """Changes that were read; `whole` if there are no more."""

    stamped: tuple[Stamped, ...] = ()
    whole: bool = True
    begins: Mapping[str, int] = field(default_factory=dict)
    """By tenant, the version that its history begins with."""


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Rows of a snapshot with their keys; the next page is after `upto`, None: there is none."""

    rows: tuple[tuple[tuple[str, ...], Stamped], ...] = ()
    upto: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Images:
    """The rows of the index `view` in `database`, of one generation. Blocks while it reads.

    `columns` are the view's; `keys` and `tenant` name columns of the table, of the types in
    `types`. Raises UnavailableError, ClickHouseBusyError and ClickHouseError.
    """

    endpoint: Endpoint
    database: str
    view: str
    columns: Sequence[Column]
    keys: Sequence[str]
    types: Mapping[str, str]
    tenant: str | None = None
    lone: str = "default"
    """The name of the only tenant of a table without tenants."""
    generation: int = 0

    def newest(self) -> int | None:
        """The generation that jobs write; None while there is none."""
        found = IndexData(endpoint=self.endpoint, database=self.database, view=self.view).tables()
        served = [number for name, number in found.items() if "__rows" in name]
        return max(served, default=None)

    def of(self, generation: int) -> Images:
        """The same index in another generation."""
        return replace(self, generation=generation)

    def begins(self, tenants: Collection[str]) -> Mapping[str, int]:
        """The version that each tenant's history begins with; only of those that have one."""
        return self.changes(
            [Span(tenant=each, after=START, upto=START) for each in tenants], 1
        ).begins

    def base(self, tenant: str, version: int, told: int, most: int) -> Found:
        """The rows as of `version` that the tenant's history begins with, after the first ones."""

        def read(limit: int) -> Found:
            bound = Parameters()
            query = (
                f"SELECT {self._selected} FROM {self._table} WHERE `_change` = 0 "
                f"AND `_version` = {version:d} AND {self._among([tenant], bound)} "
                f"ORDER BY {self._keys} LIMIT 1 BY {self._keys} LIMIT {limit:d} OFFSET {told:d}"
            )
            rows = self._read(query, bound, self._all)
            return Found(stamped=tuple(self._paired(rows)), whole=len(rows) < limit)

        return _fitting(read, most)

    def changes(self, spans: Sequence[Span], most: int) -> Found:
        """Where the histories begin, and the oldest changes of the spans, at most `most`.

        Both are of one moment. Of each tenant the changes are those that come first. Give no more
        spans than `portion` returns.
        """
        return _fitting(lambda limit: self._changes(spans, limit), most)

    def _changes(self, spans: Sequence[Span], limit: int) -> Found:
        bound = Parameters()
        parts = [
            f"({self._among(tenants, bound)} AND (`_change` = {BEGIN} OR ({_between(*span)})))"
            for span, tenants in _grouped(spans).items()
        ]
        # An insert that was repeated may not be merged yet. An update has two rows.
        query = (
            f"SELECT {self._selected} FROM {self._table} WHERE `_change` != 0 "
            f"AND ({' OR '.join(parts) or 0}) "
            f"ORDER BY `_change` != {BEGIN}, `_version`, `_owner`, `_ordinal`, `_image` "
            "LIMIT 1 BY `_change`, `_version`, `_owner`, `_ordinal`, `_image` "
            f"LIMIT {len(spans) + 2 * limit:d}"
        )
        rows = self._read(query, bound, self._all)
        begins = {row["_owner"]: int(row["_version"]) for row in rows if row["_change"] == BEGIN}
        found = list(self._paired(row for row in rows if row["_change"] != BEGIN))
        return Found(stamped=tuple(found[:limit]), whole=len(found) < limit, begins=begins)

    def standing(
        self, at: Positions, row: tuple[str, ...], most: int, where: Expression = EVERYTHING
    ) -> Standing:
        """The rows that stand at these positions, by key, after the row with the key `row`.

        Of at most `most` keys, of which some may have no row now.
        """
        return _fitting(lambda limit: self._standing(at, row, limit, where), most)

    def _standing(
        self, at: Positions, row: tuple[str, ...], limit: int, where: Expression
    ) -> Standing:
        upto = self._end_of_page(at, row, limit)
        bound = Parameters()
        seen = f"{self._among(at, bound)} AND {self._seen(at, bound)}"
        # Bounds on both sides let ClickHouse read these keys alone.
        later = f" AND {self._compared('>', row, bound)}" if row else ""
        earlier = f" AND {self._compared('<=', upto, bound)}" if upto else ""
        last = (
            f"SELECT * FROM {self._table} WHERE `_change` >= 0 AND {seen}{later}{earlier} "
            f"ORDER BY {self._sorted}, `_version` DESC, `_image` DESC LIMIT 1 BY {self._sorted}"
        )
        query = (
            f"SELECT {self._selected} FROM ({last}) WHERE `_image` = 1 AND "
            f"{condition(where, bound)} ORDER BY {self._sorted}"
        )
        found = self._read(query, bound, self._all)
        rows = [(tuple(each["_row"]), self._single(each, ChangeKind.BASE)) for each in found]
        return Standing(rows=tuple(rows), upto=upto)

    def _end_of_page(
        self, at: Positions, row: tuple[str, ...], limit: int
    ) -> tuple[str, ...] | None:
        """The key that is `limit` keys further; None if there are not so many."""
        bound = Parameters()
        later = f" AND {self._compared('>', row, bound)}" if row else ""
        query = (
            f"SELECT {self._key} FROM (SELECT DISTINCT {self._sorted} FROM {self._table} "
            f"WHERE {self._among(at, bound)}{later} ORDER BY {self._sorted} "
            f"LIMIT 1 OFFSET {limit - 1:d})"
        )
        found = self._read(query, bound, [_system("_row")])
        return tuple(found[0]["_row"]) if found else None

    @property
    def _table(self) -> str:
        return ident(self.database, table_name(self.view, "rows", self.generation))

    @property
    def _owner(self) -> str:
        return f"toString({ident(self.tenant)})" if self.tenant else text(self.lone)

    @property
    def _keys(self) -> str:
        return ", ".join(map(ident, self.keys))

    @property
    def _sorted(self) -> str:
        return ", ".join(map(ident, self._identity))

    @property
    def _identity(self) -> list[str]:
        tenant = [self.tenant] if self.tenant else []
        return list(dict.fromkeys([*tenant, *self.keys]))

    @property
    def _key(self) -> str:
        """The key as texts in JSON, each of which tells values apart: see `_key_column`."""
        return f"array({', '.join(self._key_column(name) for name in self._identity)})"

    def _key_column(self, name: str) -> str:
        """One column as a text; what may be bytes is in base64, and times are in UTC."""
        quoted, type_ = ident(name), parsed(self.types[name])
        if type_.name in BINARY:
            return f"base64Encode(toString({quoted}))"
        return f"toString({f'toTimeZone({quoted}, {text(_UTC)})' if _is_time(type_) else quoted})"

    def _key_value(self, name: str, value: str) -> str:
        """What `_key_column` made a text of."""
        type_ = parsed(self.types[name])
        if type_.name in BINARY:
            value = f"base64Decode({value})"
        kept = f"{type_.name}({', '.join([*map(str, type_.numbers), text(_UTC)])})"
        return f"CAST({value}, {text(kept if _is_time(type_) else str(type_))})"

    def _compared_sides(self, name: str, value: str) -> list[tuple[str, str]]:
        """What is compared, one after the other, to have the column's order; NaN comes last."""
        sides = ident(name), self._key_value(name, value)
        if parsed(self.types[name]).name not in FLOATS:
            return [sides]
        doubles = [f"toFloat64({each})" for each in sides]
        nans, others = (
            [how.format(each) for each in doubles]
            for how in ("isNaN({0})", "if(isNaN({0}), 0, {0})")
        )
        return [(nans[0], nans[1]), (others[0], others[1])]

    @property
    def _all(self) -> list[Column]:
        return [*self.columns, *map(_system, _SYSTEM)]

    @property
    def _selected(self) -> str:
        computed = {
            "_owner": self._owner,
            "_row": self._key,
            "_micros": "toUnixTimestamp64Micro(`_timestamp`)",
        }
        system = [f"{computed.get(name, ident(name))} AS {ident(name)}" for name in _SYSTEM]
        return ", ".join([*(each.selected for each in self.columns), *system])

    def _among(self, tenants: Collection[str], bound: Parameters) -> str:
        if not self.tenant:
            return "1" if self.lone in tenants else "0"
        type_ = self.types[self.tenant]
        named = bound.bind("Array(String)", _array(sorted(tenants)))
        return f"{ident(self.tenant)} IN (SELECT CAST(arrayJoin({named}), {text(type_)}))"

    def _compared(self, operator: str, row: tuple[str, ...], bound: Parameters) -> str:
        """Compare keys in their order; ClickHouse does not look up tuples in its primary index."""
        held = [
            sides
            for name, value in zip(self._identity, row, strict=True)
            for sides in self._compared_sides(name, bound.bind("String", value))
        ]
        parts = []
        for place, (name, value) in enumerate(held):
            last = place == len(held) - 1
            same = [f"{other} = {its}" for other, its in held[:place]]
            parts.append(
                " AND ".join([*same, f"{name} {operator if last else operator[0]} {value}"])
            )
        return f"({' OR '.join(f'({part})' for part in parts)})"

    def _seen(self, at: Positions, bound: Parameters) -> str:
        """Whether a change is not after its tenant's position.

        As long as it is for one tenant, so that thousands may each be elsewhere.
        """
        tenants = bound.bind("Array(String)", _array(list(at)))
        places = [
            bound.bind("Array(Int64)", _array(each)) for each in zip(*at.values(), strict=True)
        ]
        reached = [f"transform({self._owner}, {tenants}, {each}, toInt64(-2))" for each in places]
        return f"(`_version`, `_ordinal`) <= ({', '.join(reached)})"

    def _read(
        self, query: str, bound: Parameters, columns: Sequence[Column]
    ) -> list[dict[str, Any]]:
        return rows(self.endpoint, query, bound.values, columns, LIMITS)

    def _paired(self, found: Iterable[dict[str, Any]]) -> Iterable[Stamped]:
        """Changes of image rows in order; the half of one that a limit cut off is left out."""
        before: dict[str, Any] | None = None
        for row in found:
            operation = ChangeKind(row["_change"])
            if operation != ChangeKind.UPDATE:
                yield self._single(row, operation)
            elif before is None:
                before = row
            else:
                yield self._change(row, operation, before, row)
                before = None

    def _single(self, row: dict[str, Any], operation: ChangeKind) -> Stamped:
        gone = operation == ChangeKind.DELETE
        return self._change(row, operation, row if gone else None, None if gone else row)

    def _change(
        self,
        row: dict[str, Any],
        operation: ChangeKind,
        before: dict[str, Any] | None,
        after: dict[str, Any] | None,
    ) -> Stamped:
        change = Change(
            tenant=row["_owner"],
            key="\0".join(row["_row"]),
            operation=operation,
            before=self._columns(before),
            after=self._columns(after),
            fields=tuple(row["_fields"]),
        )
        version, ordinal = int(row["_version"]), int(row["_ordinal"])
        at = SourceTimestamp.of_micros(int(row["_micros"]), version=version, ordinal=ordinal)
        return change, at

    def _columns(self, row: dict[str, Any] | None) -> dict[str, Any] | None:
        if row is None:
            return None
        return {each.field: row[each.field] for each in self.columns}


def _fitting(read: Callable[[int], Result], most: int) -> Result:
    """Read fewer at a time where the rows are too large for one answer."""
    while True:
        try:
            return read(most)
        except ClickHouseError as error:
            if most == 1 or getattr(error.__cause__, "code", None) not in _TOO_LARGE:
                raise
            most = max(most // 8, 1)


def portion(spans: Sequence[Span]) -> list[Span]:
    """As many of the spans as one query takes."""
    chosen = set(list(_grouped(spans))[:MOST_GROUPS])
    return [each for each in spans if (each.after, each.upto) in chosen]


def _grouped(spans: Sequence[Span]) -> dict[tuple[Position, Position], list[str]]:
    groups = defaultdict(list)
    for each in spans:
        groups[each.after, each.upto].append(each.tenant)
    return dict(groups)


def _between(after: Position, upto: Position) -> str:
    # The plain comparison lets ClickHouse skip parts.
    beyond = f"(`_version`, `_ordinal`) > ({after.version:d}, {after.ordinal:d})"
    return f"`_version` >= {max(after.version, 0):d} AND {beyond} AND {_upto(upto)}"


def _upto(position: Position) -> str:
    return f"(`_version`, `_ordinal`) <= ({position.version:d}, {position.ordinal:d})"


def _is_time(type_: ChType) -> bool:
    return type_.name in {"DateTime", "DateTime64"}


def _array(values: Sequence[str] | Sequence[int]) -> Any:
    """A list as the client binds it."""
    return list(values)


def _system(name: str) -> Column:
    found = column(name, parsed(_SYSTEM[name]))
    if found is None:
        raise KeyError(name)
    return found
