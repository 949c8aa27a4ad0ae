"""What goes into the handler's side of an invocation, and what comes out."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from durable_invocations.protocol.failures import ErrorReport, FailedExecutions
from durable_invocations.protocol.frames import Frame
from durable_invocations.protocol.results import Result

# In.


@dataclass(frozen=True, kw_only=True, slots=True)
class FrameReceived:
    """The runtime sent a frame."""

    frame: Frame


@dataclass(frozen=True, kw_only=True, slots=True)
class InputClosed:
    """The runtime sends no more; in request/response mode always, once all is received."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Issued:
    """The handler takes its next step, `entry`, with a result if it has one already.

    `recorded` is the journal's entry at this index, None beyond the replay; `where` is the
    handler's line.
    """

    entry: Frame
    recorded: Frame | None = None
    where: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunBegun:
    """The handler's next step is a Run: an `entry` without a result yet."""

    entry: Frame
    recorded: Frame | None = None
    where: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFinished:
    """A Run that was begun in this attempt has its result, in `entry`."""

    index: int
    entry: Frame


@dataclass(frozen=True, kw_only=True, slots=True)
class Awaited:
    """The handler waits until one of these entries is resolved; empty: it waits for nothing.

    A later Awaited replaces an earlier one.
    """

    indexes: frozenset[int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Returned:
    """The handler has issued its Output and ends.

    `recorded` is an entry of the replay beyond the handler's last step, which is a mismatch.
    """

    recorded: Frame | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Failed:
    """The handler cannot continue in this attempt."""

    report: ErrorReport


InEvent = (
    FrameReceived | InputClosed | Issued | RunBegun | RunFinished | Awaited | Returned | Failed
)

# Out.


@dataclass(frozen=True, kw_only=True, slots=True)
class Started:
    """The StartMessage came."""

    message: Any
    run_attempts: tuple[FailedExecutions, ...] | None = None
    """The failed executions of Runs; None: the runtime does not count them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recorded:
    """The journal's entry at this index, for `recorded` of later events; in ascending order."""

    index: int
    entry: Frame


@dataclass(frozen=True, kw_only=True, slots=True)
class Ready:
    """The replay is complete: the handler may begin, and issues its Input first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Send:
    """Send this frame to the runtime."""

    frame: Frame


@dataclass(frozen=True, kw_only=True, slots=True)
class Execute:
    """The Run at this index is not recorded: execute it, then pass RunFinished, or Failed."""

    index: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Resolve:
    """The entry at this index has this result; it may come before the handler issues it."""

    index: int
    result: Result


@dataclass(frozen=True, kw_only=True, slots=True)
class Acknowledged:
    """The runtime has stored the entry at this index, which requested an ack."""

    index: int


class Ending(Enum):
    """How an attempt ends, from the handler's side."""

    ENDED = "ended"
    SUSPENDED = "suspended"
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True, slots=True)
class Close:
    """Close the stream and stop the handler; `report` says why it failed."""

    ending: Ending
    report: ErrorReport | None = None


OutEvent = Started | Recorded | Ready | Send | Execute | Resolve | Acknowledged | Close
