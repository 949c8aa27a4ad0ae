"""A declared endpoint: where the events of triggers are delivered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

from iscp_dagster.model.declared.names import checked_name
from iscp_dagster.model.errors import ConfigError

RETRIES = (5, 300, 1_800, 7_200, 18_000, 36_000, 36_000)
"""The seconds before each further attempt, by default."""


@dataclass(frozen=True)
class Endpoint:
    """A receiver of webhooks, by the Standard Webhooks specification."""

    name: str
    _: KW_ONLY
    url: str
    secrets: Sequence[str]
    """The environment variables that hold its secrets, newest first; all of them sign."""
    batch: int = 1
    """The most events of one request; 1: one event a request."""
    concurrency: int = 8
    """The most requests under way."""
    timeout: float = 15.0
    """The seconds that one attempt may take, from resolving the name to the end of the answer."""
    retries: Sequence[float] = RETRIES
    """The seconds before each further attempt, without the jitter."""
    failing_days: float = 5.0
    """For how long it may fail before it is disabled."""
    allow: Sequence[str] = ()
    """Networks (CIDR) that it may be in beside public ones."""
    pending: int = 100_000
    """The most events of one trigger that may wait for it; beyond, the trigger's job stops."""

    def __post_init__(self) -> None:
        checked_name(self.name, "endpoint")
        for option in ("secrets", "retries", "allow"):
            value = getattr(self, option)
            if isinstance(value, str) or not isinstance(value, Sequence):
                raise ConfigError(
                    f"Endpoint {self.name!r}: {option}={value!r} is not a list; write "
                    f"{option}=[...]."
                )
            object.__setattr__(self, option, tuple(value))
