"""The source's rows, unchanged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from iscp_dagster.clickhouse.kinds.kind import IndexKind


@dataclass(frozen=True)
class Mirror(IndexKind):
    """The source's rows, unchanged, for SQL."""

    kind: ClassVar[str] = "mirror"
