"""What a subscriber is told of a change: which rows enter and leave what it asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from iscp_dagster.events.changes import Change, Row, Stamped
from iscp_dagster.events.timestamps import SourceTimestamp
from iscp_dagster.model.declared.images import ChangeKind
from iscp_dagster.serve.where import EVERYTHING, Expression, predicate

INSERT, UPDATE, DELETE, PROGRESS = "INSERT", "UPDATE", "DELETE", "PROGRESS"


@dataclass(frozen=True, kw_only=True)
class Message:
    """One result of a subscription. `data` is the row after the change, for DELETE before it.

    `fields` are the columns that an UPDATE changed. The timestamp lies beside the data; PROGRESS,
    which only moves the cursor, has neither.
    """

    operation: str
    data: Mapping[str, Any] | None = None
    fields: tuple[str, ...] = ()
    timestamp: SourceTimestamp | None = None
    cursor: str = ""

    @property
    def ts_timestamp(self) -> str | None:
        """Nanoseconds since 1970, as decimal digits."""
        return None if self.timestamp is None else self.timestamp.text


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The rows that a subscriber asked for: those that meet `where`, of tenants that it may see."""

    where: Expression = EVERYTHING
    tenants: frozenset[str] | None = None
    """None: all."""
    named: Mapping[str, str] = field(default_factory=dict)
    """The GraphQL names of the columns that are served; empty: all, as they are named."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_meets", predicate(self.where))

    def sees(self, tenant: str) -> bool:
        """Whether the tenant's changes may be told at all."""
        return self.tenants is None or tenant in self.tenants

    def told(self, stamped: Stamped, cursor: str) -> Message | None:
        """The message of a change of a visible tenant; None if no row that was asked for changed.

        An UPDATE of columns alone that are not served is no change.
        An UPDATE that brings a row in is told as INSERT, one that takes it out as DELETE.
        """
        change, timestamp = stamped
        found = self._operation(change)
        if found is None:
            return None
        operation, row = found
        fields = tuple(change.fields or ()) if operation == UPDATE else ()
        shown = tuple(self.named[name] for name in fields if name in self.named)
        if self.named and fields and not shown:
            return None
        return Message(
            operation=operation,
            data=row,
            fields=shown if self.named else fields,
            timestamp=timestamp,
            cursor=cursor,
        )

    def _operation(self, change: Change) -> tuple[str, Row] | None:
        meets: Callable[[Row], bool] = self.__dict__["_meets"]
        before = change.before if change.before is not None and meets(change.before) else None
        after = change.after if change.after is not None and meets(change.after) else None
        if after is None:
            return None if before is None else (DELETE, before)
        updates = change.operation == ChangeKind.UPDATE and before is not None
        return (UPDATE if updates else INSERT), after
