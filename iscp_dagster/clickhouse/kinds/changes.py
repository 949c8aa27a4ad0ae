"""The changes of a view of the source: what entered, left or changed in it, commit by commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from iscp_dagster.clickhouse.kinds.kind import IndexKind
from iscp_dagster.model.declared.views import check_calculated


@dataclass(frozen=True)
class Changes(IndexKind):
    """Every change of the rows of a view, as image rows; of the table itself without `view`."""

    view: Sequence[Mapping[str, Any]] = ()
    """The view's definition, see `View.definition`; empty: all rows of the source."""
    kind: ClassVar[str] = "changes"

    def check_available(self, where: str, available: Sequence[str]) -> None:
        for step in self.view:
            check_calculated(where, step["columns"], available)
            available = (*available, *step["columns"])
