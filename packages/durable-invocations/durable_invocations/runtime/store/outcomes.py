"""What operations return, and what they changed for others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from durable_invocations.protocol.failures import FailedExecutions
from durable_invocations.protocol.frames import Frame
from durable_invocations.protocol.results import Result
from durable_invocations.runtime.store.deployments import Deployment
from durable_invocations.runtime.store.views import format_target


@dataclass(frozen=True, kw_only=True)
class OperationRefusal:
    """Nothing was changed."""

    code: int
    """An HTTP status: 400, 404, 409; or 571, a violation of the protocol."""
    message: str
    fenced: bool = False
    """The caller no longer drives the invocation: drop the stream, record nothing."""


@dataclass(frozen=True, kw_only=True)
class ChangeOutcome:
    """The operation's state is reached; `changed` is false if it was before."""

    changed: bool = True


@dataclass(frozen=True, kw_only=True)
class Submitted:
    """The submitted invocation."""

    id: str
    is_new: bool
    result: Result | None = None
    """If it has ended already."""


@dataclass(frozen=True, kw_only=True)
class Registered:
    """The deployment that serves the services now."""

    id: str
    """That of an earlier deployment if it has the same URL."""
    is_new: bool


@dataclass(frozen=True, kw_only=True)
class Claimed:
    """An invocation to drive."""

    id: str
    fence: int
    service: str
    handler: str
    key: str
    """Empty for a plain service."""
    deployment: Deployment
    journal: tuple[Frame, ...]
    """From the Input entry on, with results. None requires an ack: the replay acknowledges."""
    state: tuple[tuple[bytes, bytes], ...] = ()
    partial_state: bool = False
    retries: int = 0
    """Since the last entry was stored."""
    stored_at: int = 0
    """When the last entry was stored; milliseconds since 1970."""
    run_attempts: tuple[FailedExecutions, ...] = ()
    """Of Runs that are not stored, from the last error."""

    @property
    def target(self) -> str:
        """The handler as one text."""
        return format_target(self.service, self.key, self.handler)


@dataclass(frozen=True, kw_only=True)
class CommittedEntry:
    """The entry is durable; `result` if it is completed already, by the runtime."""

    index: int
    result: Result | None = None


@dataclass(frozen=True, kw_only=True)
class Fired:
    """What was due."""

    count: int
    next_at: int | None
    """When more is due; at most `now` if more than `most` was due."""


@dataclass(frozen=True, kw_only=True)
class News:
    """An entry of a driven invocation was completed, or the invocation was taken away."""

    id: str
    fence: int
    index: int | None
    """None: others ended or paused the invocation; drop the stream."""
    result: Result | None = None


@dataclass(frozen=True, kw_only=True)
class Changes:
    """What a transaction's operations changed for those who wait."""

    ready: bool = False
    """There is something to claim."""
    next_at: int | None = None
    """The earliest end of a recorded sleep, delay or retry."""
    ended: Mapping[str, Result] = field(default_factory=dict)
    """By invocation id."""
    news: tuple[News, ...] = ()
    """Of invocations that this store's own runtime drives."""
    uncertain: bool = False
    """The database once did not answer: claims, which `Release` frees, and completions may have
    been committed without anybody being told."""
