"""Settings of a runtime."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

from durable_invocations.protocol.decoding import DEFAULT, Limits
from durable_invocations.runtime.owners import BEAT_SECONDS, SILENT_SECONDS
from durable_invocations.runtime.retries import RetryPolicy
from durable_invocations.runtime.writer import PATIENCE

MS = 1_000
AFTER_ERROR_SECONDS = 1.0
"""The wait before an operation that the database failed is retried."""


def _make_owner() -> str:
    return f"rt_{secrets.token_hex(8)}"


@dataclass(frozen=True, kw_only=True)
class RuntimeSettings:
    """Times are seconds."""

    owner: str = field(default_factory=_make_owner)
    """Unique for each start of a runtime."""
    most: int = 256
    """The most attempts that run at once."""
    policy: RetryPolicy = field(default_factory=RetryPolicy)
    inactivity: float = 60.0
    """An attempt without any message for so long is asked to suspend."""
    abort: float = 600.0
    """If it then sends no message for so long, it has failed."""
    yield_after: float = 0.1
    """If invocations wait for one of `most` places, an attempt idle for so long suspends."""
    poll: float = 0.2
    """How often the database is polled for changes by other runtimes."""
    beat: float = BEAT_SECONDS
    silent: float = SILENT_SECONDS
    """A runtime whose beat does not change for so long is dead."""
    patience: float = PATIENCE
    """How long a database that does not answer is retried."""
    prune: float = 60.0
    """How often invocations whose retention is over are forgotten."""
    limits: Limits = DEFAULT
    trusted: str | None = None
    """A file of certificates that are trusted in addition to the system's."""
