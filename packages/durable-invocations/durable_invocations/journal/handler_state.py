"""Where the handler's side of an attempt is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from durable_invocations.journal import bits
from durable_invocations.journal.handler_events import Close, Ending, OutEvent, Send
from durable_invocations.protocol.failures import ErrorReport
from durable_invocations.protocol.frames import Frame, frame
from durable_invocations.protocol.pb import protocol_pb2 as pb
from durable_invocations.protocol.results import variants
from durable_invocations.protocol.versions import NEWEST


class Phase(Enum):
    """What the handler's side does."""

    STARTING = "starting"
    """The replay is not received whole."""
    REPLAYING = "replaying"
    """The handler takes steps that are recorded."""
    PROCESSING = "processing"
    """The handler makes new entries."""
    CLOSED = "closed"


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """Where the handler's side is. Sets of indexes are whole numbers, as `bits` reads them."""

    version: int = NEWEST
    phase: Phase = Phase.STARTING
    known: int | None = None
    """How many entries are replayed; None before the StartMessage."""
    issued: int = 0
    """How many entries the handler has issued: the next one's index."""
    sent: int = 0
    """How many entries the runtime has, or was sent: they go out in order."""
    completable: int = 0
    """What was sent and can be completed."""
    empties: int = 0
    """What was sent and can be completed with nothing."""
    values: int = 0
    """What was sent and can be completed with a value."""
    open: int = 0
    """What was sent, can be completed and is not."""
    unacked: int = 0
    """What was sent with REQUIRES_ACK, and is not acknowledged."""
    held: Mapping[int, Frame | None] = field(default_factory=dict)
    """What is not sent yet: Runs without result (None), and what was issued after them."""
    awaited: frozenset[int] = frozenset()
    input_closed: bool = False
    returned: bool = False

    @property
    def replaying(self) -> bool:
        """The next step of the handler is recorded."""
        return self.issued < (self.known or 0)


Step = tuple[Attempt, tuple[OutEvent, ...]]


def added(state: Attempt, entry: Frame) -> Attempt:
    """The state when the runtime has this entry, or was sent it."""
    mark = bits.bit(state.sent)
    state = replace(state, sent=state.sent + 1)
    if entry.kind.completable:
        allowed = variants(entry.kind)
        state = replace(
            state,
            completable=state.completable | mark,
            empties=state.empties | mark * ("empty" in allowed),
            values=state.values | mark * ("value" in allowed),
            open=state.open | mark * (not entry.completed),
        )
    return state


def suspended(state: Attempt) -> Step:
    """Suspend if the handler waits for what only a later attempt can bring."""
    waits = state.input_closed and state.awaited and None not in state.held.values()
    unresolved = state.open | state.unacked
    if not waits or not all(bits.has(unresolved, each) for each in state.awaited):
        return state, ()
    message = frame(pb.SuspensionMessage(entry_indexes=sorted(state.awaited)))
    return closed(state), (Send(frame=message), Close(ending=Ending.SUSPENDED))


def ended(state: Attempt) -> Step:
    """End if the handler has returned and all its entries are sent."""
    if not state.returned or state.held:
        return state, ()
    return closed(state), (Send(frame=frame(pb.EndMessage())), Close(ending=Ending.ENDED))


def failed(state: Attempt, report: ErrorReport) -> Step:
    message = frame(report.written(state.version))
    return closed(state), (Send(frame=message), Close(ending=Ending.FAILED, report=report))


def closed(state: Attempt) -> Attempt:
    return replace(state, phase=Phase.CLOSED, held={}, awaited=frozenset())
