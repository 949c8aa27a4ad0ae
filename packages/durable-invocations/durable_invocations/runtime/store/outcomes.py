"""What operations give back, and what they changed for others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from durable_invocations.protocol.failures import RunAttempts
from durable_invocations.protocol.frames import Frame
from durable_invocations.protocol.results import Result
from durable_invocations.runtime.store.deployments import Deployment
from durable_invocations.runtime.store.views import target


@dataclass(frozen=True, kw_only=True)
class Refused:
    """Nothing was changed."""

    code: int
    """An HTTP status: 400, 404, 409; or 571, a violation of the protocol."""
    message: str
    fenced: bool = False
    """The caller does not drive the invocation any more: drop the stream, record nothing."""


@dataclass(frozen=True, kw_only=True)
class Done:
    """It is so now; `changed` says whether it was not before."""

    changed: bool = True


@dataclass(frozen=True, kw_only=True)
class Submitted:
    """The invocation that was asked for."""

    id: str
    is_new: bool
    result: Result | None = None
    """If it has ended already."""


@dataclass(frozen=True, kw_only=True)
class Registered:
    """The deployment that serves the services now."""

    id: str
    """An earlier one's, if that has the same URL."""
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
    """From the Input entry on; results filled in. None asks for an ack: a replay is one."""
    state: tuple[tuple[bytes, bytes], ...] = ()
    partial_state: bool = False
    retries: int = 0
    """Since the last entry was stored."""
    stored_at: int = 0
    """When the last entry was stored; milliseconds since 1970."""
    run_attempts: tuple[RunAttempts, ...] = ()
    """Of Runs that are not stored, as the last error told."""

    @property
    def target(self) -> str:
        """The handler as one text."""
        return target(self.service, self.key, self.handler)


@dataclass(frozen=True, kw_only=True)
class Committed:
    """The entry is durable; `result` if it is completed already, by the runtime."""

    index: int
    result: Result | None = None


@dataclass(frozen=True, kw_only=True)
class Fired:
    """What was due."""

    count: int
    next_at: int | None
    """When there is more; at most `now` if more was due than was asked for."""


@dataclass(frozen=True, kw_only=True)
class News:
    """An entry of an invocation that its owner drives was completed, or the invocation taken."""

    id: str
    fence: int
    index: int | None
    """None: it was ended or paused by somebody else; drop the stream."""
    result: Result | None = None


@dataclass(frozen=True, kw_only=True)
class Changes:
    """What the operations of one transaction mean for who waits."""

    ready: bool = False
    """There is something to claim."""
    next_at: int | None = None
    """A sleep, a delay or a retry was recorded that ends then."""
    ended: Mapping[str, Result] = field(default_factory=dict)
    """By invocation id."""
    news: tuple[News, ...] = ()
    """Of invocations that this store's own runtime drives."""
    uncertain: bool = False
    """The database failed meanwhile, and may have done what it did not tell: claims, which
    `Release` frees, and completions of what is driven."""
