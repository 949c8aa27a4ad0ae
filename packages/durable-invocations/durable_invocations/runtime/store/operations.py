"""What changes the store: operations, each with the outcome that it has when it is committed.

Each is atomic, and idempotent where it names an invocation: who does not know whether it was
committed does it again. A fence is the number that a claim gave; an operation with another one is
refused as fenced, and changes nothing. Times are milliseconds since 1970.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Generic, TypeVar

from durable_invocations.protocol.failures import ErrorReport
from durable_invocations.protocol.frames import Frame
from durable_invocations.protocol.results import Result
from durable_invocations.runtime.store.deployments import Deployment, Service
from durable_invocations.runtime.store.outcomes import (
    Claimed,
    Committed,
    Done,
    Fired,
    News,
    Refused,
    Registered,
    Submitted,
)

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, kw_only=True)
class Operation(Generic[T_co]):
    """Changes the store, and has the outcome `T_co`."""


# What anybody asks for.


@dataclass(frozen=True, kw_only=True)
class Submit(Operation[Submitted | Refused]):
    """Invoke a handler; refused (404, 400) for an unknown handler, or a key that does not fit.

    With an idempotency key that was used for this service, key and handler, or for a workflow's
    run that was submitted for this key, the outcome is that invocation.
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
    """Not begun before, by the machine's clock."""


@dataclass(frozen=True, kw_only=True)
class CompleteAwakeable(Operation[Done | Refused]):
    """Complete an awakeable, also one whose entry is not committed yet.

    Done(changed=False) if it is completed already; refused (404) if there is none of that id.
    """

    awakeable: str
    result: Result
    """A value or a failure."""


@dataclass(frozen=True, kw_only=True)
class Cancel(Operation[Done | Refused]):
    """Cancel an invocation: one that did not begin ends with failure 409.

    Else the entries that it waits for fail with 409, or if there are none the next one that would
    wait; the calls that it waits for are canceled too. One that is paused ends at once; one whose
    attempts fail, at the next that fails, unless that comes to wait. Done(changed=False) if it has
    ended; refused (404) if it is unknown.
    """

    id: str


@dataclass(frozen=True, kw_only=True)
class Kill(Operation[Done | Refused]):
    """End an invocation and its open calls at once, with failure 409, whatever it does."""

    id: str


@dataclass(frozen=True, kw_only=True)
class Pause(Operation[Done | Refused]):
    """Have nobody drive an invocation until it is resumed.

    With a fence, the attempt's error exhausted the retries; without, a person pauses it. Refused
    (409) for one that has ended.
    """

    id: str
    fence: int | None = None
    error: ErrorReport | None = None


@dataclass(frozen=True, kw_only=True)
class Resume(Operation[Done | Refused]):
    """Drive a paused or backing off invocation at once, with all retries; no change for others."""

    id: str


@dataclass(frozen=True, kw_only=True)
class Purge(Operation[Done | Refused]):
    """Forget an ended invocation and its journal; a workflow's run with state and promises.

    Done(changed=False) if it is unknown; refused (409) if it has not ended.
    """

    id: str


@dataclass(frozen=True, kw_only=True)
class Register(Operation[Registered | Refused]):
    """Have a deployment serve these services; new invocations go to it, begun ones stay.

    A deployment of the same id is replaced, with its URL; else one of the same URL, which keeps
    its id. Refused (409) if a service would be of another kind than now, unless forced.
    """

    deployment: Deployment
    services: tuple[Service, ...]
    force: bool = False


@dataclass(frozen=True, kw_only=True)
class Unregister(Operation[Done | Refused]):
    """Forget a deployment and the services it serves now.

    Refused (409) while unfinished invocations need it, unless forced: then they are killed.
    """

    id: str
    force: bool = False


# What a runtime does.


@dataclass(frozen=True, kw_only=True)
class Claim(Operation[tuple[Claimed, ...]]):
    """Take at most `most` ready invocations, oldest first; each gets a new fence.

    An invocation that was never claimed is bound to the deployment that serves its service now.
    """

    owner: str
    most: int
    without: Collection[str] = ()
    """Deployments whose invocations are left."""
    eager_bytes: int = 64 * 1024
    """State beyond is left out, and `partial_state` set."""


@dataclass(frozen=True, kw_only=True)
class Commit(Operation[Committed | Refused]):
    """Commit an entry and do what it says, in one.

    The same entry at the same index again changes nothing. Refused, with nothing done, if the
    entry is invalid (a fallible one, or one out of order), so that later ones are refused too.
    """

    id: str
    fence: int
    index: int
    frame: Frame


@dataclass(frozen=True, kw_only=True)
class Suspend(Operation[Done | Refused]):
    """Leave an invocation until one of the entries is completed.

    It is ready at once if one is, or is of a kind that nothing completes (a Run that waits for its
    ack). Refused (571) for an index that is not in the journal, or none, and for another `length`.
    """

    id: str
    fence: int
    indexes: tuple[int, ...]
    length: int | None = None
    """How many entries the journal has, if all that came before were committed."""


@dataclass(frozen=True, kw_only=True)
class Finish(Operation[Done | Refused]):
    """End an invocation with its Output entry; refused (571) if it has none."""

    id: str
    fence: int


@dataclass(frozen=True, kw_only=True)
class Fail(Operation[Done | Refused]):
    """End an attempt with an error; the invocation is ready again at `next_at`."""

    id: str
    fence: int
    error: ErrorReport
    next_at: int


@dataclass(frozen=True, kw_only=True)
class Release(Operation[int]):
    """Make ready what `owner` claimed, but for `held`; how many. For claims that were lost.

    An id is held with the fence of its claim: a later claim of it may be lost, too.
    """

    owner: str
    held: Collection[tuple[str, int]] = ()


@dataclass(frozen=True, kw_only=True)
class Beat(Operation[int]):
    """Say that a runtime is alive: its beat, one more than the last."""

    owner: str


@dataclass(frozen=True, kw_only=True)
class Recover(Operation[int]):
    """Make ready what these runtimes drive, and forget them; how many.

    `beats` are those that were seen last: one that has moved on is alive.
    """

    beats: tuple[tuple[str, int], ...]


@dataclass(frozen=True, kw_only=True)
class Fire(Operation[Fired]):
    """Complete sleeps, begin delayed invocations and retries that are due, at most `most`."""

    now: int
    most: int = 1_000


@dataclass(frozen=True, kw_only=True)
class TakeNews(Operation[tuple[News, ...]]):
    """What other runtimes did to invocations that `owner` drives; each is told once."""

    owner: str


@dataclass(frozen=True, kw_only=True)
class Prune(Operation[int]):
    """Forget at most `most` invocations whose retention is over; how many. Repeat until fewer."""

    now: int
    most: int = 500
