"""The changes of a view of the source: what entered, left or changed in it, commit by commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from iscp_dagster.clickhouse.connect.quoting import quote_identifier
from iscp_dagster.clickhouse.kinds.kind import EXACT_FINAL, IndexKind, TableShape, render_settings
from iscp_dagster.model.declared.images import (
    AFTER,
    CHANGE,
    FIELDS,
    IMAGE,
    IMAGE_COLUMNS,
    ORDINAL,
    ChangeKind,
    ImageSource,
)
from iscp_dagster.model.declared.schema import TIMESTAMP, VERSION, DeltaField, to_schema_json
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
    view_suffixes: ClassVar[tuple[str, ...]] = ("as_of",)
    of_images: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.errors != "stop":
            raise ConfigError(
                f"Index {self.name!r}: errors={self.errors!r}, but a changes index without some of "
                "its rows would show changes that never happened; leave errors= out, and keep the "
                "column as another type with types={...}."
            )
        if self.exclude:
            raise ConfigError(
                f"Index {self.name!r}: exclude={self.exclude!r}, but a changes index takes only "
                "columns=[...], the columns whose changes it keeps."
            )
        if self.append:
            raise ConfigError(
                f"Index {self.name!r}: append=True, but changes are tracked by key; declare the "
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
    def image_source(self) -> ImageSource:
        """What its image rows are read from."""
        return ImageSource.of(self.view, self.columns)

    @property
    def definition(self) -> dict[str, Any]:
        return super().definition | {"view": [dict(step) for step in self.view]}

    def extend_definition(self, fields: Sequence[DeltaField]) -> dict[str, Any]:
        """Keep the calculated columns' types, so that no Spark is needed to open the table."""
        names = self.image_source.calculated
        calculated = [field for field in fields if field.name in names]
        return {CALCULATED: to_schema_json(calculated)["fields"]} if calculated else {}

    def list_extra_sort_columns(self) -> Sequence[str]:
        return (VERSION, IMAGE)

    def list_skip_indexes(self) -> Sequence[str]:
        """Let readers of the newest changes skip the others."""
        name, version = quote_identifier("by_version"), quote_identifier(VERSION)
        return (f"INDEX {name} {version} TYPE minmax GRANULARITY 1",)

    def render_live_condition(self) -> str:
        change, image, version = (
            quote_identifier(CHANGE),
            quote_identifier(IMAGE),
            quote_identifier(VERSION),
        )
        latest_image = f"argMaxIf({image}, ({version}, {image}), {change} >= {ChangeKind.BASE})"
        return f"countIf({change} >= {ChangeKind.BASE}) > 0 AND {latest_image} = {AFTER}"

    def render_view_select(self, shape: TableShape, selected: Sequence[str]) -> str:
        columns = [name for name in selected if name not in IMAGE_COLUMNS]
        return (
            f"SELECT {', '.join(map(quote_identifier, (*columns, *SHOWN)))} FROM {shape.final} "
            f"WHERE {quote_identifier(CHANGE)} >= {ChangeKind.BASE} SETTINGS "
            f"{render_settings(EXACT_FINAL)}"
        )

    def render_suffixed_view(self, suffix: str, shape: TableShape, selected: str) -> str:
        """The rows of the view as of a version of the source."""
        del suffix, selected
        return self.render_rows_as_of(shape, "{version:UInt64}")

    def render_rows_as_of(self, shape: TableShape, version: str) -> str:
        """Return the SELECT of the user's columns of the view's rows as of `version`, in SQL."""
        source = shape.source
        key = dict.fromkeys((*([source.tenant] if source.tenant else []), *source.keys))
        quoted_key = ", ".join(map(quote_identifier, key))
        columns = [name for name in shape.columns if name not in IMAGE_COLUMNS]
        newest = f"{quote_identifier(VERSION)} DESC, {quote_identifier(IMAGE)} DESC"
        return (
            f"SELECT {', '.join(map(quote_identifier, columns))} FROM (SELECT * FROM {shape.final} "
            f"WHERE {quote_identifier(VERSION)} <= {version} AND {quote_identifier(CHANGE)} >= "
            f"{ChangeKind.BASE} "
            f"ORDER BY {quoted_key}, {newest} LIMIT 1 BY {quoted_key}) "
            f"WHERE {quote_identifier(IMAGE)} = {AFTER} SETTINGS {render_settings(EXACT_FINAL)}"
        )
