"""The changes of a view of the source: what entered, left or changed in it, commit by commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from iscp_dagster.clickhouse.connect.quoting import ident
from iscp_dagster.clickhouse.kinds.kind import EXACT_FINAL, IndexKind, Shape, settings
from iscp_dagster.model.declared.images import (
    AFTER,
    CHANGE,
    FIELDS,
    IMAGE,
    IMAGE_COLUMNS,
    ORDINAL,
    ChangeKind,
    Transitions,
)
from iscp_dagster.model.declared.schema import TIMESTAMP, VERSION, DeltaField, schema_json
from iscp_dagster.model.declared.views import check_calculated
from iscp_dagster.model.errors import ConfigError

SHOWN = (CHANGE, FIELDS, VERSION, TIMESTAMP, ORDINAL, IMAGE)
"""The last columns of the view, after the user's."""
CALCULATED = "calculated"
"""The definition's key for the calculated columns, as a schema."""


@dataclass(frozen=True)
class Changes(IndexKind):
    """Every change of the rows of a view, as image rows; of the table itself without `view`."""

    view: Sequence[Mapping[str, Any]] = ()
    """The view's definition, see `View.definition`; empty: all rows of the source."""
    kind: ClassVar[str] = "changes"
    beside: ClassVar[tuple[str, ...]] = ("as_of",)
    of_images: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.errors != "stop":
            raise ConfigError(
                f"Index {self.name!r}: errors={self.errors!r}, but a changes index without some of "
                "its rows would tell of changes that never were; leave errors= out, and keep the "
                "column as another type with types={...}."
            )
        if self.exclude:
            raise ConfigError(
                f"Index {self.name!r}: exclude={self.exclude!r}, but a changes index takes only "
                "columns=[...], the columns whose changes it keeps."
            )
        if self.append:
            raise ConfigError(
                f"Index {self.name!r}: append=True, but a change is a change of a key; declare the "
                "table's key=, and leave append= out."
            )
        if self.sharding is not None:
            raise ConfigError(
                f"Index {self.name!r}: a changes index is read in the order of its commits, so it "
                "is not sharded; leave sharding= out."
            )

    def check_available(self, where: str, available: Sequence[str]) -> None:
        for step in self.view:
            check_calculated(where, step["columns"], available)
            available = (*available, *step["columns"])

    @property
    def transitions(self) -> Transitions:
        """What its image rows are read of."""
        return Transitions.of(self.view, self.columns)

    @property
    def definition(self) -> dict[str, Any]:
        return super().definition | {"view": [dict(each) for each in self.view]}

    def described(self, fields: Sequence[DeltaField]) -> dict[str, Any]:
        """Keep the calculated columns' types, so that no Spark is needed to open the table."""
        names = self.transitions.calculated
        made = [each for each in fields if each.name in names]
        return {CALCULATED: schema_json(made)["fields"]} if made else {}

    def sorted_after(self) -> Sequence[str]:
        return (VERSION, IMAGE)

    def skip_indexes(self) -> Sequence[str]:
        """Let readers of the newest changes skip the others."""
        return (f"INDEX {ident('by_version')} {ident(VERSION)} TYPE minmax GRANULARITY 1",)

    def live(self) -> str:
        change, image, version = ident(CHANGE), ident(IMAGE), ident(VERSION)
        held = f"argMaxIf({image}, ({version}, {image}), {change} >= {ChangeKind.BASE})"
        return f"countIf({change} >= {ChangeKind.BASE}) > 0 AND {held} = {AFTER}"

    def select(self, shape: Shape, selected: Sequence[str]) -> str:
        columns = [name for name in selected if name not in IMAGE_COLUMNS]
        return (
            f"SELECT {', '.join(map(ident, (*columns, *SHOWN)))} FROM {shape.final} "
            f"WHERE {ident(CHANGE)} >= {ChangeKind.BASE} SETTINGS {settings(EXACT_FINAL)}"
        )

    def view_beside(self, end: str, shape: Shape, selected: str) -> str:
        """The rows of the view as of a version of the source."""
        del end, selected
        return self.rows_as_of(shape, "{version:UInt64}")

    def rows_as_of(self, shape: Shape, version: str) -> str:
        """Return the SELECT of the user's columns of the view's rows as of `version`, in SQL."""
        source = shape.source
        key = dict.fromkeys((*([source.tenant] if source.tenant else []), *source.keys))
        by = ", ".join(map(ident, key))
        columns = [name for name in shape.columns if name not in IMAGE_COLUMNS]
        newest = f"{ident(VERSION)} DESC, {ident(IMAGE)} DESC"
        return (
            f"SELECT {', '.join(map(ident, columns))} FROM (SELECT * FROM {shape.final} "
            f"WHERE {ident(VERSION)} <= {version} AND {ident(CHANGE)} >= {ChangeKind.BASE} "
            f"ORDER BY {by}, {newest} LIMIT 1 BY {by}) "
            f"WHERE {ident(IMAGE)} = {AFTER} SETTINGS {settings(EXACT_FINAL)}"
        )
