"""Image rows: the one form in which the changes of a view travel, and what they are read from.

INSERT is one row, the image after; DELETE one, the image before; UPDATE two. A history begins with
BASE rows, which are a snapshot's. Beside the view's columns each has the columns below.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

from iscp_dagster.model.declared.schema import Array, DeltaField, Primitive

CHANGE, IMAGE, FIELDS, ORDINAL = IMAGE_COLUMNS = ("_change", "_image", "_fields", "_ordinal")
"""What happened; which side of it; the changed columns of an UPDATE; the place in its commit."""
MATCH, UNMATCH = CONDITION_COLUMNS = ("_match", "_unmatch")
"""Whether the image meets a trigger's conditions."""
_CAPITAL = re.compile("[A-Z]")
BEFORE, AFTER = 0, 1
"""The values of IMAGE."""


class ChangeKind(IntEnum):
    """The values of CHANGE. A tenant's history has one BEGIN row, which no view shows."""

    BEGIN = -1
    BASE = 0
    INSERT = 1
    UPDATE = 2
    DELETE = 3


IMAGE_FIELDS = (
    DeltaField(name=CHANGE, type=Primitive("byte"), nullable=False),
    DeltaField(name=IMAGE, type=Primitive("byte"), nullable=False),
    DeltaField(
        name=FIELDS, type=Array(element=Primitive("string"), nullable=False), nullable=False
    ),
    DeltaField(name=ORDINAL, type=Primitive("long"), nullable=False),
)


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One view of a chain: a predicate and calculated columns, over the rows of the one below."""

    where: str | None = None
    columns: tuple[tuple[str, str], ...] = ()
    """(name, expression)."""


@dataclass(frozen=True, kw_only=True)
class TriggerConditions:
    """A trigger's conditions on the view's columns; `unmatch` defaults to: `match` is not met."""

    name: str
    match: str
    unmatch: str | None = None

    def format_column_name(self, which: str) -> str:
        """The frame's column for MATCH or UNMATCH; several triggers share a frame.

        Spark ignores the case of names, so capitals are marked; no source is expected to use `$`.
        """
        return f"{which}${_CAPITAL.sub(lambda match: f'${match[0].lower()}', self.name)}"


@dataclass(frozen=True, kw_only=True)
class ImageSource:
    """What image rows are read from: a view, and the conditions of its triggers."""

    stages: tuple[Stage, ...] = ()
    """From the source up; none: the source table itself."""
    columns: tuple[str, ...] | None = None
    """The source columns that the images have; None: all."""
    conditions: tuple[TriggerConditions, ...] = ()

    @classmethod
    def of(
        cls, definition: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None
    ) -> ImageSource:
        """Read a view's definition, as `View.definition` writes it."""
        stages = [
            Stage(where=view.get("where"), columns=tuple(dict(view.get("columns") or {}).items()))
            for view in definition
        ]
        names = None if columns is None else tuple(sorted(columns))
        return cls(stages=tuple(stages), columns=names)

    @property
    def view(self) -> ImageSource:
        """Without the conditions: readers of the same view share one scan."""
        return replace(self, conditions=())

    @property
    def calculated(self) -> tuple[str, ...]:
        """The names of the calculated columns, from the source up."""
        return tuple(name for stage in self.stages for name, _ in stage.columns)

    def select_columns(self, available: Sequence[str], needed: Collection[str]) -> tuple[str, ...]:
        """The columns of an image: the selected and the `needed` ones among those `available` in
        the source, then the calculated ones.
        """
        selected = set(available if self.columns is None else (*self.columns, *needed))
        return (*(name for name in available if name in selected), *self.calculated)

    def replace_conditions(self, conditions: Collection[TriggerConditions]) -> ImageSource:
        """The same view with these conditions, ordered by name."""
        return replace(
            self, conditions=tuple(sorted(conditions, key=lambda condition: condition.name))
        )
