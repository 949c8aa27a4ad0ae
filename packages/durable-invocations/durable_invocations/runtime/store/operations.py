"""What changes the store: operations, each with its outcome once it is committed.

Each is atomic, and idempotent if it names an invocation: repeat it if you do not know whether it
was committed. A fence is the number that a claim gave; an operation with another fence is refused
as fenced, and changes nothing. Times are milliseconds since 1970.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Generic, TypeVar

from durable_invocations.protocol.failures import ErrorReport
from durable_invocations.protocol.frames import Frame
from durable_invocations.protocol.results import Result
from durable_invocations.runtime.store.deployments import Deployment, RegisteredService
from durable_invocations.runtime.store.outcomes import (
    ChangeOutcome,
    Claimed,
    CommittedEntry,
    Fired,
    News,
    OperationRefusal,
    Registered,
    Submitted,
)

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, kw_only=True)
class StoreOperation(Generic[T_co]):
    """Changes the store, and has the outcome `T_co`."""


# For callers.


@dataclass(frozen=True, kw_only=True)
class Submit(StoreOperation[Submitted | OperationRefusal]):
    """Invoke a handler; refused (404, 400) for an unknown handler, or a key that does not fit.

    If the idempotency key was used for this service, key and handler, or the workflow's run was
    submitted for this key, the outcome is that invocation.
    """

    id: str
    """A new invocation id; the same one again is the same submission."""
    service: str
    handler: str
    key: str = ""
    argument: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    idempotency_key: str | None = None
    at: int = 0
    """The earliest start, by the machine's clock."""


@dataclass(frozen=True, kw_only=True)
class CompleteAwakeable(StoreOperation[ChangeOutcome | OperationRefusal]):
    """Complete an awakeable, even if its entry is not committed yet.

    ChangeOutcome(changed=False) if it is completed already; refused (404) for an unknown id.
    """

    awakeable: str
    result: Result
    """A value or a failure."""


@dataclass(frozen=True, kw_only=True)
class Cancel(StoreOperation[ChangeOutcome | OperationRefusal]):
    """Cancel an invocation: if it has not begun, it ends with failure 409.

    Else the entries that it waits for fail with 409, or the next one that would wait; the calls
    that it waits for are canceled too. If it is paused it ends at once; if it backs off, it
    ends when its next attempt fails; if that attempt waits, the wait fails instead.
    ChangeOutcome(changed=False) if it has ended; refused (404) if it is unknown.
    """

    id: str


@dataclass(frozen=True, kw_only=True)
class Kill(StoreOperation[ChangeOutcome | OperationRefusal]):
    """End an invocation and its open calls at once, with failure 409, whatever it does."""

    id: str


@dataclass(frozen=True, kw_only=True)
class Pause(StoreOperation[ChangeOutcome | OperationRefusal]):
    """Stop driving an invocation until it is resumed.

    With a fence, the attempt's error exhausted the retries; without, a person pauses it. Refused
    (409) if it has ended.
    """

    id: str
    fence: int | None = None
    error: ErrorReport | None = None


@dataclass(frozen=True, kw_only=True)
class Resume(StoreOperation[ChangeOutcome | OperationRefusal]):
    """Drive a paused or backing off invocation now, with all retries; others do not change."""

    id: str


@dataclass(frozen=True, kw_only=True)
class Purge(StoreOperation[ChangeOutcome | OperationRefusal]):
    """Forget an ended invocation and its journal; a workflow's run with its state and promises.

    ChangeOutcome(changed=False) if it is unknown; refused (409) if it has not ended.
    """

    id: str


@dataclass(frozen=True, kw_only=True)
class Register(StoreOperation[Registered | OperationRefusal]):
    """Let a deployment serve these services; new invocations go to it, begun ones stay.

    It replaces the deployment with the same id, else the one with the same URL, which keeps its
    id. Refused (409) if the kind of a service would change, unless forced.
    """

    deployment: Deployment
    services: tuple[RegisteredService, ...]
    force: bool = False


@dataclass(frozen=True, kw_only=True)
class Unregister(StoreOperation[ChangeOutcome | OperationRefusal]):
    """Forget a deployment and the services it serves now.

    Refused (409) while unfinished invocations need it; if forced, they are killed.
    """

    id: str
    force: bool = False


# What a runtime does.


@dataclass(frozen=True, kw_only=True)
class Claim(StoreOperation[tuple[Claimed, ...]]):
    """Take at most `most` ready invocations, oldest first; each gets a new fence.

    An invocation that was never claimed is bound to the deployment that serves its service now.
    """

    owner: str
    most: int
    without: Collection[str] = ()
    """Deployments whose invocations are not claimed."""
    eager_bytes: int = 64 * 1024
    """State beyond this is left out, and `partial_state` is set."""


@dataclass(frozen=True, kw_only=True)
class CommitEntry(StoreOperation[CommittedEntry | OperationRefusal]):
    """Commit an entry and its action, in one transaction.

    Repeating an entry at its index changes nothing. Refused, and nothing stored, if it is
    invalid or not the journal's next; those after it are then out of order, and refused as well.
    """

    id: str
    fence: int
    index: int
    frame: Frame


@dataclass(frozen=True, kw_only=True)
class Suspend(StoreOperation[ChangeOutcome | OperationRefusal]):
    """Suspend an invocation until one of the entries is completed.

    It is ready at once if one is completed, or is not completable (a Run that waits for its ack).
    Refused (571) for an index that is not in the journal, for no index, and for another `length`.
    """

    id: str
    fence: int
    indexes: tuple[int, ...]
    length: int | None = None
    """How many entries the journal has if all earlier ones were committed."""


@dataclass(frozen=True, kw_only=True)
class Finish(StoreOperation[ChangeOutcome | OperationRefusal]):
    """End an invocation with its Output entry; refused (571) if it has none."""

    id: str
    fence: int


@dataclass(frozen=True, kw_only=True)
class Fail(StoreOperation[ChangeOutcome | OperationRefusal]):
    """End an attempt with an error; the invocation is ready again at `next_at`."""

    id: str
    fence: int
    error: ErrorReport
    next_at: int


@dataclass(frozen=True, kw_only=True)
class Release(StoreOperation[int]):
    """Make ready what `owner` claimed, except `driven`; how many. For lost claims.

    `driven` are ids with the fence of their claim: a later claim of the id may be lost, too.
    """

    owner: str
    driven: Collection[tuple[str, int]] = ()


@dataclass(frozen=True, kw_only=True)
class Beat(StoreOperation[int]):
    """Record that a runtime is alive; returns its new beat."""

    owner: str


@dataclass(frozen=True, kw_only=True)
class Recover(StoreOperation[int]):
    """Make ready what these runtimes drive, and forget them; how many.

    `beats` are the beats that were seen last: a runtime with another beat is alive.
    """

    beats: tuple[tuple[str, int], ...]


@dataclass(frozen=True, kw_only=True)
class Fire(StoreOperation[Fired]):
    """Complete sleeps, begin delayed invocations and retries that are due.

    At most `most` sleeps and `most` others.
    """

    now: int
    most: int = 1_000


@dataclass(frozen=True, kw_only=True)
class TakeNews(StoreOperation[tuple[News, ...]]):
    """What other runtimes did to invocations that `owner` drives; each is returned once."""

    owner: str


@dataclass(frozen=True, kw_only=True)
class Prune(StoreOperation[int]):
    """Forget at most `most` invocations whose retention is over; how many. Repeat until fewer."""

    now: int
    most: int = 500
