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

from iscp_dagster.clickhouse.connect.quoting import quote_identifier
from iscp_dagster.model.declared.tables import DEFAULT_TENANT

CONSTRAINT_PREFIX = "iscp_barrier_"
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
    def parse(cls, name: str, expression: str) -> Barrier:
        """Read the barrier from an existing constraint."""
        names, epochs, floor = _CHECK.findall(expression)[-1]
        pairs = zip(names.split(","), map(int, epochs.split(",")), strict=True)
        tenants = {
            bytes.fromhex(encoded).decode(): epoch for encoded, epoch in pairs if encoded != _NOBODY
        }
        return cls(
            epoch=int(name.removeprefix(CONSTRAINT_PREFIX)), floor=int(floor), tenants=tenants
        )

    def raise_epochs(self, tenants: Collection[str]) -> Barrier:
        """Return the next barrier, which rejects earlier epochs for these tenants.

        If there are too many tenants, a higher floor replaces those raised longest ago. The floor
        also rejects inserts of earlier runs for other tenants; those runs need one more attempt.
        """
        epoch = self.epoch + 1
        kept, dropped = _keep_latest({**self.tenants, **dict.fromkeys(tenants, epoch)})
        floor = max([self.floor, *dropped])
        return Barrier(
            epoch=epoch, floor=floor, tenants={name: n for name, n in kept.items() if n > floor}
        )

    @classmethod
    def create_initial(cls, at: datetime) -> Barrier:
        """Return the barrier of a new table, above every epoch of an earlier table of its name."""
        epoch = int(at.timestamp() * 1000)
        return cls(epoch=epoch, floor=epoch)

    @property
    def name(self) -> str:
        return f"{CONSTRAINT_PREFIX}{self.epoch}"

    def render_constraint(self, column: str | None) -> str:
        """Return the constraint's SQL; `column` names the tenant of each row."""
        tenant = f"toString({quote_identifier(column)})" if column else f"'{DEFAULT_TENANT}'"
        names = ",".join([_NOBODY, *map(_to_hex, self.tenants)])
        epochs = ",".join(map(str, [0, *self.tenants.values()]))
        least_epoch = (
            f"transform(hex({tenant}), splitByChar(',', '{names}'), "
            f"CAST(splitByChar(',', '{epochs}'), 'Array(UInt64)'), toUInt64({self.floor}))"
        )
        shown_epoch = "toUInt64OrZero(splitByChar(' ', getSetting('log_comment'))[-1])"
        return f"CONSTRAINT {self.name} CHECK {least_epoch} <= {shown_epoch}"


def build_epoch_settings(database: str, table: str, epoch: int = 0) -> dict[str, str]:
    """Return the setting that shows a statement's epoch; running statements are found by it."""
    return {"log_comment": f"{format_comment_prefix(database, table)}{epoch}"}


def format_comment_prefix(database: str, table: str) -> str:
    """Return the prefix of the log comment of every statement on the table."""
    return f"iscp {database}.{table} "


def _keep_latest(tenants: Mapping[str, int]) -> tuple[dict[str, int], Iterable[int]]:
    """Return the latest raised tenants, as many as fit, and the epochs of the others."""
    kept, dropped, size = dict[str, int](), list[int](), 0
    for name, epoch in sorted(tenants.items(), key=lambda pair: (-pair[1], pair[0])):
        size += len(_to_hex(name)) + len(str(epoch)) + 2
        if size > MOST_BYTES or len(kept) == MOST_TENANTS:
            dropped.append(epoch)
        else:
            kept[name] = epoch
    return kept, dropped


def _to_hex(name: str) -> str:
    return name.encode().hex().upper()
