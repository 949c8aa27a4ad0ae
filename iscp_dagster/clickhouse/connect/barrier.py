"""The barrier: a constraint by which the server itself rejects late inserts.

Every insert into an index's rows shows an epoch: the barrier's number when its run read it, while
holding its claims. A run that takes over a tenant raises the number for it; from then on an insert
that shows an earlier epoch is rejected, whenever it arrives (ADR 21).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from iscp_dagster.clickhouse.connect.quoting import ident
from iscp_dagster.model.declared.tables import DEFAULT_TENANT

NAME = "iscp_barrier_"
"""Prefix of the constraint's name. The epoch follows, so an ALTER names the one it replaces."""
MOST_TENANTS = 1_000
MOST_BYTES = 100_000
"""Limits for the tenants that a barrier lists; its floor applies to all others."""

_NOBODY = "-"
_CHECK = re.compile(
    r"splitByChar\(',', '([0-9A-F,-]+)'\), "
    r"CAST\(splitByChar\(',', '([0-9,]+)'\), 'Array\(UInt64\)'\), toUInt64\(([0-9]+)\)"
)


@dataclass(frozen=True, kw_only=True)
class Epochs:
    """The epochs that a run shows to the barriers of an index."""

    rows: int = 0
    """For the served table."""
    letters: int = 0
    """For the table of dead letters."""


@dataclass(frozen=True, kw_only=True)
class Barrier:
    """The lowest epoch that an insert may show: for each tenant in `tenants`, else `floor`."""

    epoch: int
    floor: int
    tenants: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def read(cls, name: str, expression: str) -> Barrier:
        """Read the barrier from an existing constraint."""
        names, epochs, floor = _CHECK.findall(expression)[-1]
        pairs = zip(names.split(","), map(int, epochs.split(",")), strict=True)
        tenants = {bytes.fromhex(each).decode(): n for each, n in pairs if each != _NOBODY}
        return cls(epoch=int(name.removeprefix(NAME)), floor=int(floor), tenants=tenants)

    def raised(self, tenants: Collection[str]) -> Barrier:
        """Return the next barrier, which rejects earlier epochs for these tenants.

        If there are too many tenants, a higher floor replaces those raised longest ago. The floor
        also rejects inserts of earlier runs for other tenants; those runs need one more attempt.
        """
        epoch = self.epoch + 1
        kept, left = _latest({**self.tenants, **dict.fromkeys(tenants, epoch)})
        floor = max([self.floor, *left])
        return Barrier(
            epoch=epoch, floor=floor, tenants={name: n for name, n in kept.items() if n > floor}
        )

    @classmethod
    def first(cls, at: datetime) -> Barrier:
        """Return the barrier of a new table, above every epoch of an earlier table of its name."""
        epoch = int(at.timestamp() * 1000)
        return cls(epoch=epoch, floor=epoch)

    @property
    def name(self) -> str:
        return f"{NAME}{self.epoch}"

    def sql(self, column: str | None) -> str:
        """Return the constraint's SQL; `column` names the tenant of each row."""
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
    """Return the setting that shows a statement's epoch; running statements are found by it."""
    return {"log_comment": f"{told(database, table)}{epoch}"}


def told(database: str, table: str) -> str:
    """Return the prefix of the log comment of every statement on the table."""
    return f"iscp {database}.{table} "


def _latest(tenants: Mapping[str, int]) -> tuple[dict[str, int], Iterable[int]]:
    """Return the tenants raised last, as many as fit, and the epochs of the others."""
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
