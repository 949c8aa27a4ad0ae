"""For who receives events or subscribes to changes: tells what has been handled already.

Needs neither Spark nor Dagster; `SqlStore` needs SQLAlchemy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from iscp_dagster.dedup.memory import MemoryStore
from iscp_dagster.dedup.receivers import Claim, Deduplicator, retry_horizon
from iscp_dagster.dedup.store import BeingHandledError, ClaimLostError, StoreFullError
from iscp_dagster.dedup.subscribers import Newest

if TYPE_CHECKING:
    from iscp_dagster.dedup.sql import SqlStore

__all__ = [
    "BeingHandledError",
    "Claim",
    "ClaimLostError",
    "Deduplicator",
    "MemoryStore",
    "Newest",
    "SqlStore",
    "StoreFullError",
    "retry_horizon",
]


def __getattr__(name: str) -> Any:
    """Import what needs SQLAlchemy when it is asked for."""
    if name == "SqlStore":
        return import_module("iscp_dagster.dedup.sql").SqlStore
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
