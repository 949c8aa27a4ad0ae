"""A subscription's messages: which rows a change brings in, changes or takes out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from iscp_dagster.events.changes import Row, RowChange, StampedChange
from iscp_dagster.events.timestamps import SourceTimestamp
from iscp_dagster.model.declared.images import ChangeKind
from iscp_dagster.serve.where import EVERYTHING, WhereExpression, compile_predicate

INSERT, UPDATE, DELETE, PROGRESS = "INSERT", "UPDATE", "DELETE", "PROGRESS"


@dataclass(frozen=True, kw_only=True)
class ChangeMessage:
    """One result of a subscription. `data` is the row after the change, for DELETE before it.

    `fields` are the columns that an UPDATE changed. The timestamp is beside the data; PROGRESS,
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
class ChangeFilter:
    """The rows of a subscription: those of visible tenants that meet `where`."""

    where: WhereExpression = EVERYTHING
    tenants: frozenset[str] | None = None
    """None: all."""
    field_names: Mapping[str, str] = field(default_factory=dict)
    """The GraphQL names of the served columns; empty: all, under their own names."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_meets", compile_predicate(self.where))

    def can_see(self, tenant: str) -> bool:
        """Whether the tenant is visible."""
        return self.tenants is None or tenant in self.tenants

    def build_message(self, stamped: StampedChange, cursor: str) -> ChangeMessage | None:
        """The message of a change of a visible tenant; None if no row of it changed.

        An UPDATE of only columns that are not served is ignored.
        An UPDATE that brings a row in becomes an INSERT, one that takes it out a DELETE.
        """
        change, timestamp = stamped
        outcome = self._find_operation(change)
        if outcome is None:
            return None
        operation, row = outcome
        fields = tuple(change.fields or ()) if operation == UPDATE else ()
        changed_fields = tuple(
            self.field_names[name] for name in fields if name in self.field_names
        )
        if self.field_names and fields and not changed_fields:
            return None
        return ChangeMessage(
            operation=operation,
            data=row,
            fields=changed_fields if self.field_names else fields,
            timestamp=timestamp,
            cursor=cursor,
        )

    def _find_operation(self, change: RowChange) -> tuple[str, Row] | None:
        meets: Callable[[Row], bool] = self.__dict__["_meets"]
        before = change.before if change.before is not None and meets(change.before) else None
        after = change.after if change.after is not None and meets(change.after) else None
        if after is None:
            return None if before is None else (DELETE, before)
        updates = change.operation == ChangeKind.UPDATE and before is not None
        return (UPDATE if updates else INSERT), after
