"""What goes into the runtime's side of an attempt, and what comes out."""

from __future__ import annotations

from dataclasses import dataclass

from durable_invocations.protocol.failures import ErrorReport
from durable_invocations.protocol.frames import Frame
from durable_invocations.protocol.results import Result

# In.


@dataclass(frozen=True, kw_only=True, slots=True)
class Replayed:
    """The runtime has sent the Start and all known entries."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HandlerFrameReceived:
    """The handler sent a frame."""

    frame: Frame


@dataclass(frozen=True, kw_only=True, slots=True)
class Broken:
    """The handler sent bytes that are not frames, or the transport failed."""

    report: ErrorReport


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamClosed:
    """The handler sends no more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EntryCommitted:
    """The entry at this index is stored, with its action; sent in ascending order."""

    index: int


@dataclass(frozen=True, kw_only=True, slots=True)
class EntryRefused:
    """The entry at this index is invalid; neither it nor its action was stored."""

    index: int
    report: ErrorReport


@dataclass(frozen=True, kw_only=True, slots=True)
class CompletionReady:
    """The stored entry at this index has its result."""

    index: int
    result: Result


InEvent = (
    Replayed
    | HandlerFrameReceived
    | Broken
    | StreamClosed
    | EntryCommitted
    | EntryRefused
    | CompletionReady
)

# Out.


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreEntry:
    """Store the entry and do its action, in one transaction.

    Then send EntryCommitted or EntryRefused.
    """

    index: int
    entry: Frame


@dataclass(frozen=True, kw_only=True, slots=True)
class Notify:
    """Send this Completion or EntryAck to the handler."""

    frame: Frame


@dataclass(frozen=True, kw_only=True, slots=True)
class SuspendInvocation:
    """The attempt is over: resume the invocation once one of these entries is completed.

    One that is not completable but requested an ack is stored, and counts as completed.
    """

    indexes: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class FinishInvocation:
    """The invocation has ended: the Output at this index is its result."""

    index: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Retry:
    """The attempt failed: try again, as the policy or the report says."""

    report: ErrorReport


@dataclass(frozen=True, kw_only=True, slots=True)
class Violation:
    """The handler broke the protocol: reset the stream, and try again as after other failures."""

    report: ErrorReport


OutEvent = StoreEntry | Notify | SuspendInvocation | FinishInvocation | Retry | Violation
Last = SuspendInvocation | FinishInvocation | Retry
"""What follows from a stream's last message, once all entries before it are stored."""
