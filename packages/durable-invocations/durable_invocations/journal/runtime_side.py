"""The runtime's side of an attempt: what a handler's stream may send, and what follows.

`step` is a pure function from events to events. Entries are committed in order; a last message
takes effect once all entries before it are stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType
from typing import Any

from durable_invocations.journal import index_sets, validity
from durable_invocations.journal import runtime_events as events
from durable_invocations.protocol import kinds
from durable_invocations.protocol.failures import UNKNOWN, ErrorReport, ProtocolError
from durable_invocations.protocol.frames import Frame, make_frame
from durable_invocations.protocol.pb import protocol_pb2 as pb
from durable_invocations.protocol.results import make_completion
from durable_invocations.protocol.versions import NEWEST


class RuntimePhase(Enum):
    """The phases of the runtime's side."""

    REPLAYING = "replaying"
    PROCESSING = "processing"
    ENDING = "ending"
    """The last message came, and entries before it are not stored yet."""
    CLOSED = "closed"


@dataclass(frozen=True, kw_only=True, slots=True)
class RuntimeState:
    """The runtime's side. Sets of indexes are integers, see `index_sets`."""

    version: int = NEWEST
    duplex: bool
    phase: RuntimePhase = RuntimePhase.REPLAYING
    length: int
    """How many entries the journal has, including those that are being stored."""
    stored: int
    open: int
    """Completable entries that the handler may consider incomplete."""
    notified: int = 0
    """Open entries whose completion was sent in this attempt."""
    acking: int = 0
    """Entries that requested an ack."""
    output: int | None = None
    """The Output's index."""
    last: events.Last | None = None


RuntimeTransition = tuple[RuntimeState, tuple[events.OutEvent, ...]]


def begin_attempt(journal: Iterable[Frame], *, duplex: bool, version: int = NEWEST) -> RuntimeState:
    """An attempt that replays this journal, each entry with its result if there is one."""
    length, still_open, output = 0, 0, None
    for index, entry in enumerate(journal):
        length = index + 1
        still_open |= index_sets.make_bit(index) * (entry.kind.completable and not entry.completed)
        output = index if entry.code == kinds.OUTPUT.code else output
    return RuntimeState(
        version=version, duplex=duplex, length=length, stored=length, open=still_open, output=output
    )


def step(state: RuntimeState, event: events.InEvent) -> RuntimeTransition:
    """The new state, and the events that follow; after a last message only its own effect."""
    if state.phase is RuntimePhase.CLOSED:
        return state, ()
    try:
        return _STEPS[type(event)](state, event)
    except ProtocolError as error:
        report = ErrorReport.of(error, state.length)
        return replace(state, phase=RuntimePhase.CLOSED), (events.Violation(report=report),)


def _handle_replayed(state: RuntimeState, _: events.Replayed) -> RuntimeTransition:
    return replace(state, phase=RuntimePhase.PROCESSING), ()


def _handle_received(state: RuntimeState, event: events.HandlerFrameReceived) -> RuntimeTransition:
    received = event.frame
    if state.phase is RuntimePhase.ENDING:
        # Frames after the last message change nothing.
        return state, ()
    if received.code == kinds.ERROR.code:
        return _set_last(state, events.Retry(report=ErrorReport.read(received.message())))
    if state.phase is RuntimePhase.REPLAYING:
        raise ProtocolError(f"The handler sent {received.kind} before the replay was over.")
    if received.kind.entry:
        return _accept_entry(state, received)
    if received.code == kinds.SUSPENSION.code:
        return _set_last(state, _make_suspend(state, received.message().entry_indexes))
    if received.code == kinds.END.code:
        _ = received.message()
        return _set_last(state, _make_finish(state))
    raise ProtocolError(f"The handler sent {received.kind}, which only the runtime sends.")


def _accept_entry(state: RuntimeState, entry: Frame) -> RuntimeTransition:
    index = state.length
    if state.output is not None:
        raise ProtocolError(f"Entry {index}, {entry.kind}, comes after the Output.")
    validity.check(index, entry, state.version)
    mark = index_sets.make_bit(index)
    state = replace(
        state,
        length=index + 1,
        open=state.open | mark * (entry.kind.completable and not entry.completed),
        acking=state.acking | mark * entry.requires_ack,
        output=index if entry.code == kinds.OUTPUT.code else None,
    )
    return state, (events.StoreEntry(index=index, entry=entry),)


def _make_suspend(state: RuntimeState, indexes: Iterable[int]) -> events.SuspendInvocation:
    distinct = sorted(set(indexes))
    if not distinct:
        raise ProtocolError("A Suspension names no entry; it must name one that will complete.")
    for index in distinct:
        if not index_sets.has(state.open | state.acking, index):
            raise ProtocolError(
                f"A Suspension names entry {index}, which was not sent, is not completable, or is "
                "completed."
            )
    return events.SuspendInvocation(indexes=tuple(distinct))


def _make_finish(state: RuntimeState) -> events.FinishInvocation:
    if state.output is None:
        raise ProtocolError("The handler ended without an Output.")
    return events.FinishInvocation(index=state.output)


def _set_last(state: RuntimeState, last: events.Last) -> RuntimeTransition:
    return _close_if_stored(replace(state, phase=RuntimePhase.ENDING, last=last))


def _close_if_stored(state: RuntimeState) -> RuntimeTransition:
    if state.last is None or state.stored < state.length:
        return state, ()
    return replace(state, phase=RuntimePhase.CLOSED), (state.last,)


def _handle_broken(state: RuntimeState, event: events.Broken) -> RuntimeTransition:
    if state.phase is RuntimePhase.ENDING:
        return state, ()
    return _set_last(state, events.Retry(report=event.report))


def _handle_stream_closed(state: RuntimeState, _: events.StreamClosed) -> RuntimeTransition:
    return _handle_broken(state, events.Broken(report=UNKNOWN))


def _handle_committed(state: RuntimeState, event: events.EntryCommitted) -> RuntimeTransition:
    index = event.index
    assert index == state.stored < state.length, "commits come in order"
    state, out = _close_if_stored(replace(state, stored=index + 1))
    if index_sets.has(state.acking, index) and state.duplex and state.last is None:
        return state, (events.Notify(frame=make_frame(pb.EntryAckMessage(entry_index=index))), *out)
    return state, out


def _handle_refused(state: RuntimeState, event: events.EntryRefused) -> RuntimeTransition:
    return replace(state, phase=RuntimePhase.CLOSED), (events.Retry(report=event.report),)


def _handle_completion_ready(
    state: RuntimeState, event: events.CompletionReady
) -> RuntimeTransition:
    index = event.index
    if not index_sets.has(state.open & ~state.notified, index):
        return state, ()
    notifies = state.duplex and state.last is None
    state = replace(state, notified=state.notified | index_sets.make_bit(index))
    return state, (events.Notify(frame=make_completion(index, event.result)),) if notifies else ()


_STEPS: Mapping[type, Callable[[RuntimeState, Any], RuntimeTransition]] = MappingProxyType(
    {
        events.Replayed: _handle_replayed,
        events.HandlerFrameReceived: _handle_received,
        events.Broken: _handle_broken,
        events.StreamClosed: _handle_stream_closed,
        events.EntryCommitted: _handle_committed,
        events.EntryRefused: _handle_refused,
        events.CompletionReady: _handle_completion_ready,
    }
)
