"""ClickHouse index tables that stay in step with Delta Lake tables, exactly once, in Dagster."""

from __future__ import annotations

from iscp_dagster.core.tables import FullText, Index, Mirror, SourceTable, Vector

__all__ = ["FullText", "Index", "Mirror", "SourceTable", "Vector"]
