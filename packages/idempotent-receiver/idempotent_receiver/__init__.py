"""For receivers of events and subscribers to changes: recognizes what was handled before.

`SqlStore` needs SQLAlchemy, the extra `sql`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from idempotent_receiver.memory import MemoryStore
from idempotent_receiver.receivers import Deduplicator, EventClaim, retry_horizon
from idempotent_receiver.store import (
    BeingHandledError,
    ClaimLostError,
    ReceiverError,
    StoreFullError,
)
from idempotent_receiver.subscribers import NewestPositions

if TYPE_CHECKING:
    from idempotent_receiver.sql import SqlStore

__all__ = [
    "BeingHandledError",
    "ClaimLostError",
    "Deduplicator",
    "EventClaim",
    "MemoryStore",
    "NewestPositions",
    "ReceiverError",
    "SqlStore",
    "StoreFullError",
    "retry_horizon",
]


def __getattr__(name: str) -> Any:
    """Import what needs SQLAlchemy on first use."""
    if name == "SqlStore":
        return import_module("idempotent_receiver.sql").SqlStore
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
