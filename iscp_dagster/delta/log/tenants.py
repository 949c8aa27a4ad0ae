"""The tenants with rows in a table, if it can be read."""

from __future__ import annotations

from iscp_dagster.delta.log.deltalog import DeltaLog
from iscp_dagster.model.errors import SourceError, UnavailableError


def find_tenants(log: DeltaLog) -> frozenset[str] | None:
    """The tenants at the latest version; None where the table cannot be read."""
    try:
        return frozenset(log.list_tenants())
    except (SourceError, UnavailableError):
        return None
