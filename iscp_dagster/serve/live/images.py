"""The image rows of a changes index in ClickHouse: the one place that knows how to select them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from iscp_dagster.clickhouse.connect.endpoint import Endpoint
from iscp_dagster.clickhouse.connect.quoting import ident, text
from iscp_dagster.clickhouse.kinds.kind import EXACT_FINAL, settings
from iscp_dagster.clickhouse.tables.ddl import table_name
from iscp_dagster.clickhouse.tables.generations import IndexData
from iscp_dagster.clickhouse.types.typetext import parsed
from iscp_dagster.events.changes import Change, Operation, Stamped
from iscp_dagster.events.timestamps import SourceTimestamp
from iscp_dagster.serve.columns import Column, column
from iscp_dagster.serve.live.positions import START, Position, Positions
from iscp_dagster.serve.rows import Limits, rows
from iscp_dagster.serve.sql import Parameters, condition
from iscp_dagster.serve.where import EVERYTHING, Expression

LIMITS = Limits(rows=100_000)
BEGIN = int(Operation.BEGIN)
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
        return self.changes([Span(tenant=each, after=START, upto=START) for each in tenants], 0)[0]

    def base(self, tenant: str, version: int, told: int, most: int) -> list[Stamped]:
        """The rows as of `version` that the tenant's history begins with, after the first ones."""
        bound = Parameters()
        where = f"`_change` = 0 AND `_version` = {version:d} AND {self._among([tenant], bound)}"
        order = f"ORDER BY {self._keys} LIMIT {most:d} OFFSET {told:d}"
        query = f"SELECT {self._selected} FROM {self._table} FINAL WHERE {where} {order}"
        return list(self._paired(self._read(query, bound, self._all)))

    def changes(self, spans: Sequence[Span], most: int) -> tuple[Mapping[str, int], list[Stamped]]:
        """Where the histories begin, and the oldest changes of the spans, at most `most`.

        Both are of one moment. Of each tenant the changes are those that come first; fewer than
        `most` are all that there are. Give no more spans than `portion` returns.
        """
        bound = Parameters()
        groups = _grouped(spans)
        parts = [
            f"({self._among(tenants, bound)} AND (`_change` = {BEGIN} OR ({_between(*span)})))"
            for span, tenants in groups.items()
        ]
        # An insert that was repeated may not be merged yet.
        query = (
            f"SELECT {self._selected} FROM {self._table} WHERE `_change` != 0 "
            f"AND ({' OR '.join(parts) or 0}) "
            f"ORDER BY `_change` != {BEGIN}, `_version`, `_owner`, `_ordinal`, `_image` "
            "LIMIT 1 BY `_change`, `_version`, `_owner`, `_ordinal`, `_image` "
            # An update has two rows.
            f"LIMIT {len(spans) + 2 * most:d}"
        )
        begins: dict[str, int] = {}
        found = []
        for row in self._read(query, bound, self._all):
            if row["_change"] == BEGIN:
                begins[row["_owner"]] = int(row["_version"])
            else:
                found.append(row)
        return begins, list(self._paired(found))[:most]

    def standing(
        self, at: Positions, row: tuple[str, ...], most: int, where: Expression = EVERYTHING
    ) -> list[tuple[tuple[str, ...], Stamped]]:
        """The rows that stand at these positions, by key, after the row with the key `row`."""
        bound = Parameters()
        groups = defaultdict(list)
        for tenant, position in at.items():
            groups[position].append(tenant)
        upto = " OR ".join(
            f"({self._among(tenants, bound)} AND {_upto(position)})"
            for position, tenants in groups.items()
        )
        later = f" AND {self._later(row, bound)}" if row else ""
        last = (
            f"SELECT * FROM {self._table} FINAL WHERE `_change` >= 0 AND ({upto}){later} "
            f"ORDER BY {self._sorted}, `_version` DESC, `_image` DESC LIMIT 1 BY {self._sorted}"
        )
        meets = condition(where, bound)
        query = (
            f"SELECT {self._selected} FROM ({last}) WHERE `_image` = 1 AND {meets} "
            f"ORDER BY {self._sorted} LIMIT {most:d} SETTINGS {settings(EXACT_FINAL)}"
        )
        found = self._read(query, bound, self._all)
        return [(tuple(each["_row"]), self._single(each, Operation.BASE)) for each in found]

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
    def _all(self) -> list[Column]:
        return [*self.columns, *map(_system, _SYSTEM)]

    @property
    def _selected(self) -> str:
        row = ", ".join(f"toString({ident(name)})" for name in self._identity)
        computed = {
            "_owner": self._owner,
            "_row": f"array({row})",
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

    def _later(self, row: tuple[str, ...], bound: Parameters) -> str:
        held = [
            f"CAST({bound.bind('String', value)}, {text(self.types[name])})"
            for name, value in zip(self._identity, row, strict=True)
        ]
        return f"({self._sorted}) > ({', '.join(held)})"

    def _read(
        self, query: str, bound: Parameters, columns: Sequence[Column]
    ) -> list[dict[str, Any]]:
        return rows(self.endpoint, query, bound.values, columns, LIMITS)

    def _paired(self, found: Iterable[dict[str, Any]]) -> Iterable[Stamped]:
        """Changes of image rows in order; the half of one that a limit cut off is left out."""
        before: dict[str, Any] | None = None
        for row in found:
            operation = Operation(row["_change"])
            if operation != Operation.UPDATE:
                yield self._single(row, operation)
            elif before is None:
                before = row
            else:
                yield self._change(row, operation, before, row)
                before = None

    def _single(self, row: dict[str, Any], operation: Operation) -> Stamped:
        gone = operation == Operation.DELETE
        return self._change(row, operation, row if gone else None, None if gone else row)

    def _change(
        self,
        row: dict[str, Any],
        operation: Operation,
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


def _array(values: Sequence[str]) -> Any:
    """A list as the client binds it."""
    return list(values)


def _system(name: str) -> Column:
    found = column(name, parsed(_SYSTEM[name]))
    if found is None:
        raise KeyError(name)
    return found
