"""The state of the handler's side of an attempt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from durable_invocations.journal import index_sets
from durable_invocations.journal.handler_events import Close, Ending, OutEvent, Send
from durable_invocations.protocol.failures import ErrorReport
from durable_invocations.protocol.frames import Frame, make_frame
from durable_invocations.protocol.pb import protocol_pb2 as pb
from durable_invocations.protocol.results import list_variants
from durable_invocations.protocol.versions import NEWEST


class HandlerPhase(Enum):
    """The phases of the handler's side."""

    STARTING = "starting"
    """The replay is incomplete."""
    REPLAYING = "replaying"
    """The handler repeats recorded steps."""
    PROCESSING = "processing"
    """The handler makes new entries."""
    CLOSED = "closed"


@dataclass(frozen=True, kw_only=True, slots=True)
class HandlerState:
    """The handler's side. Sets of indexes are integers, see `index_sets`."""

    version: int = NEWEST
    phase: HandlerPhase = HandlerPhase.STARTING
    replay_length: int | None = None
    """How many entries are replayed; None before the StartMessage."""
    issued: int = 0
    """How many entries the handler has issued: the next one's index."""
    sent: int = 0
    """How many entries the runtime has or was sent, in order."""
    completable: int = 0
    """Sent entries that can be completed."""
    empties: int = 0
    """Sent entries that can be completed with Empty."""
    values: int = 0
    """Sent entries that can be completed with a value."""
    open: int = 0
    """Sent entries that can be completed and are not yet."""
    unacked: int = 0
    """Entries sent with REQUIRES_ACK and not acknowledged."""
    unsent: Mapping[int, Frame | None] = field(default_factory=dict)
    """Entries not sent yet: Runs without a result (None), and those issued after them."""
    awaited: frozenset[int] = frozenset()
    input_closed: bool = False
    returned: bool = False

    @property
    def replaying(self) -> bool:
        """Whether the handler's next step is recorded."""
        return self.issued < (self.replay_length or 0)


HandlerTransition = tuple[HandlerState, tuple[OutEvent, ...]]


def add_entry(state: HandlerState, entry: Frame) -> HandlerState:
    """The state once the runtime has this entry, or was sent it."""
    mark = index_sets.make_bit(state.sent)
    state = replace(state, sent=state.sent + 1)
    if entry.kind.completable:
        allowed = list_variants(entry.kind)
        state = replace(
            state,
            completable=state.completable | mark,
            empties=state.empties | mark * ("empty" in allowed),
            values=state.values | mark * ("value" in allowed),
            open=state.open | mark * (not entry.completed),
        )
    return state


def suspend_if_waiting(state: HandlerState) -> HandlerTransition:
    """Suspend if the handler waits for results that only a later attempt can get."""
    waits = state.input_closed and state.awaited and None not in state.unsent.values()
    unresolved = state.open | state.unacked
    if not waits or not all(index_sets.has(unresolved, index) for index in state.awaited):
        return state, ()
    message = make_frame(pb.SuspensionMessage(entry_indexes=sorted(state.awaited)))
    return closed(state), (Send(frame=message), Close(ending=Ending.SUSPENDED))


def end_if_returned(state: HandlerState) -> HandlerTransition:
    """End if the handler has returned and all its entries are sent."""
    if not state.returned or state.unsent:
        return state, ()
    return closed(state), (Send(frame=make_frame(pb.EndMessage())), Close(ending=Ending.ENDED))


def fail_attempt(state: HandlerState, report: ErrorReport) -> HandlerTransition:
    message = make_frame(report.written(state.version))
    return closed(state), (Send(frame=message), Close(ending=Ending.FAILED, report=report))


def closed(state: HandlerState) -> HandlerState:
    return replace(state, phase=HandlerPhase.CLOSED, unsent={}, awaited=frozenset())
