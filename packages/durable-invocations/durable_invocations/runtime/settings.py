"""What a runtime can be told."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

from durable_invocations.protocol.decoding import DEFAULT, Limits
from durable_invocations.runtime.owners import BEAT_SECONDS, SILENT_SECONDS
from durable_invocations.runtime.retries import RetryPolicy
from durable_invocations.runtime.writer import PATIENCE

MS = 1_000
AFTER_ERROR_SECONDS = 1.0
"""What the database refused is asked of it again after that."""


def _owner() -> str:
    return f"rt_{secrets.token_hex(8)}"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Times are seconds."""

    owner: str = field(default_factory=_owner)
    """Another one for each start of a runtime."""
    most: int = 256
    """Attempts that are under way at once."""
    policy: RetryPolicy = field(default_factory=RetryPolicy)
    inactivity: float = 60.0
    """An attempt without any message for so long is asked to suspend."""
    abort: float = 600.0
    """One that then still says nothing for so long has failed."""
    yield_after: float = 0.1
    """Where others wait for one of `most`, an attempt that is idle for so long makes room."""
    poll: float = 0.2
    """How often the database is asked what other runtimes did."""
    beat: float = BEAT_SECONDS
    silent: float = SILENT_SECONDS
    """A runtime whose beat stands still for so long is dead."""
    patience: float = PATIENCE
    """A database that does not answer is tried again for so long."""
    prune: float = 60.0
    """How often invocations whose retention is over are forgotten."""
    limits: Limits = DEFAULT
    trusted: str | None = None
    """A file of certificates that are trusted beside the system's."""
