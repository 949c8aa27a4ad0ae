"""What keeps an insert out that comes too late: a constraint which the server itself checks.

Every insert into an index's rows shows an epoch: the number that the barrier had when its run
looked, while the run held its claims. Who takes a tenant over counts the number up for it; from
then on whatever shows an earlier one is refused, whenever it arrives (ADR 21).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from iscp_dagster.clickhouse.connect.quoting import ident
from iscp_dagster.model.declared.tables import DEFAULT_TENANT

NAME = "iscp_barrier_"
"""The constraint's name, before its epoch: who replaces it names the one that it has seen."""
MOST_TENANTS = 1_000
MOST_BYTES = 100_000
"""Of tenants that a barrier tells apart; below are all others."""

_NOBODY = "-"
_CHECK = re.compile(
    r"splitByChar\(',', '([0-9A-F,-]+)'\), "
    r"CAST\(splitByChar\(',', '([0-9,]+)'\), 'Array\(UInt64\)'\), toUInt64\(([0-9]+)\)"
)


@dataclass(frozen=True, kw_only=True)
class Epochs:
    """What a run shows to the barriers of an index."""

    rows: int = 0
    """Of the table served."""
    letters: int = 0
    """Of the dead letters beside it."""


@dataclass(frozen=True, kw_only=True)
class Barrier:
    """The least epoch that an insert may show: of some tenants in `tenants`, else `floor`."""

    epoch: int
    floor: int
    tenants: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def read(cls, name: str, expression: str) -> Barrier:
        """The barrier of a constraint that is there."""
        names, epochs, floor = _CHECK.findall(expression)[-1]
        pairs = zip(names.split(","), map(int, epochs.split(",")), strict=True)
        tenants = {bytes.fromhex(each).decode(): n for each, n in pairs if each != _NOBODY}
        return cls(epoch=int(name.removeprefix(NAME)), floor=int(floor), tenants=tenants)

    def raised(self, tenants: Collection[str]) -> Barrier:
        """The next one, which lets in nobody who writes these tenants' rows under an earlier epoch.

        Those raised longest ago give way to a higher floor where there are too many: it keeps out
        more than it must, which costs an insert of theirs one more attempt.
        """
        epoch = self.epoch + 1
        kept, left = _latest({**self.tenants, **dict.fromkeys(tenants, epoch)})
        floor = max([self.floor, *left])
        return Barrier(
            epoch=epoch, floor=floor, tenants={name: n for name, n in kept.items() if n > floor}
        )

    @classmethod
    def first(cls, at: datetime) -> Barrier:
        """Of a table that is made now: later than all of one that had its name before."""
        epoch = int(at.timestamp() * 1000)
        return cls(epoch=epoch, floor=epoch)

    @property
    def name(self) -> str:
        return f"{NAME}{self.epoch}"

    def sql(self, column: str | None) -> str:
        """The constraint, by the tenants in a column of the table."""
        tenant = f"toString({ident(column)})" if column else f"'{DEFAULT_TENANT}'"
        names = ",".join([_NOBODY, *map(_hex, self.tenants)])
        epochs = ",".join(map(str, [0, *self.tenants.values()]))
        least = (
            f"transform(hex({tenant}), splitByChar(',', '{names}'), "
            f"CAST(splitByChar(',', '{epochs}'), 'Array(UInt64)'), toUInt64({self.floor}))"
        )
        shown = "toUInt64OrZero(splitByChar(' ', getSetting('log_comment'))[-1])"
        return f"CONSTRAINT {self.name} CHECK {least} <= {shown}"


def shown(database: str, table: str, epoch: int = 0) -> dict[str, str]:
    """The setting by which a statement on a table shows its epoch, and is found while it runs."""
    return {"log_comment": f"{told(database, table)}{epoch}"}


def told(database: str, table: str) -> str:
    """How the comment of every statement on the table begins."""
    return f"iscp {database}.{table} "


def _latest(tenants: Mapping[str, int]) -> tuple[dict[str, int], Iterable[int]]:
    """Those raised last, as many as there is room for, and the epochs of the others."""
    kept, left, size = dict[str, int](), list[int](), 0
    for name, epoch in sorted(tenants.items(), key=lambda each: (-each[1], each[0])):
        size += len(_hex(name)) + len(str(epoch)) + 2
        if size > MOST_BYTES or len(kept) == MOST_TENANTS:
            left.append(epoch)
        else:
            kept[name] = epoch
    return kept, left


def _hex(name: str) -> str:
    return name.encode().hex().upper()
