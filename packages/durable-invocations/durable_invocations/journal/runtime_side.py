"""The runtime's side of an attempt: what a handler's stream may send, and what follows.

`step` is a pure function from events to events. Entries are committed in order; what a last message
asks for follows once all entries before it are stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType
from typing import Any

from durable_invocations.journal import bits, validity
from durable_invocations.journal import runtime_events as events
from durable_invocations.protocol import kinds
from durable_invocations.protocol.failures import UNKNOWN, ErrorReport, ProtocolError
from durable_invocations.protocol.frames import Frame, frame
from durable_invocations.protocol.pb import protocol_pb2 as pb
from durable_invocations.protocol.results import completion
from durable_invocations.protocol.versions import NEWEST


class Phase(Enum):
    """What the runtime's side does."""

    REPLAYING = "replaying"
    PROCESSING = "processing"
    ENDING = "ending"
    """The last message came, and entries before it are not stored yet."""
    CLOSED = "closed"


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """Where the runtime's side is. Sets of indexes are whole numbers, as `bits` reads them."""

    version: int = NEWEST
    duplex: bool
    phase: Phase = Phase.REPLAYING
    length: int
    """How many entries the journal has, with those that are being stored."""
    stored: int
    open: int
    """Completable entries that the handler may take for not completed."""
    told: int = 0
    """Those of them whose completion was told in this attempt."""
    acking: int = 0
    """Entries that asked for an ack."""
    output: int | None = None
    """The Output's index."""
    last: events.Last | None = None


Step = tuple[Attempt, tuple[events.OutEvent, ...]]


def begun(journal: Iterable[Frame], *, duplex: bool, version: int = NEWEST) -> Attempt:
    """An attempt that replays this journal, each entry with its result if there is one."""
    length, still_open, output = 0, 0, None
    for index, entry in enumerate(journal):
        length = index + 1
        still_open |= bits.bit(index) * (entry.kind.completable and not entry.completed)
        output = index if entry.code == kinds.OUTPUT.code else output
    return Attempt(
        version=version, duplex=duplex, length=length, stored=length, open=still_open, output=output
    )


def step(state: Attempt, event: events.InEvent) -> Step:
    """What follows from an event; after a last message nothing but what it asks for."""
    if state.phase is Phase.CLOSED:
        return state, ()
    try:
        return _STEPS[type(event)](state, event)
    except ProtocolError as error:
        report = ErrorReport.of(error, state.length)
        return replace(state, phase=Phase.CLOSED), (events.Violation(report=report),)


def _replayed(state: Attempt, _: events.Replayed) -> Step:
    return replace(state, phase=Phase.PROCESSING), ()


def _received(state: Attempt, event: events.Received) -> Step:
    got = event.frame
    if state.phase is Phase.ENDING:
        # What comes after the last message changes nothing.
        return state, ()
    if got.code == kinds.ERROR.code:
        return _last(state, events.Retry(report=ErrorReport.read(got.message())))
    if state.phase is Phase.REPLAYING:
        raise ProtocolError(f"The handler sent {got.kind} before the replay was over.")
    if got.kind.entry:
        return _entry(state, got)
    if got.code == kinds.SUSPENSION.code:
        return _last(state, _suspend(state, got.message().entry_indexes))
    if got.code == kinds.END.code:
        _ = got.message()
        return _last(state, _finish(state))
    raise ProtocolError(f"The handler sent {got.kind}, which the runtime alone sends.")


def _entry(state: Attempt, entry: Frame) -> Step:
    index = state.length
    if state.output is not None:
        raise ProtocolError(f"Entry {index}, {entry.kind}, comes after the Output.")
    validity.check(index, entry, state.version)
    mark = bits.bit(index)
    state = replace(
        state,
        length=index + 1,
        open=state.open | mark * (entry.kind.completable and not entry.completed),
        acking=state.acking | mark * entry.requires_ack,
        output=index if entry.code == kinds.OUTPUT.code else None,
    )
    return state, (events.Commit(index=index, entry=entry),)


def _suspend(state: Attempt, indexes: Iterable[int]) -> events.Suspend:
    named = sorted(set(indexes))
    if not named:
        raise ProtocolError("A Suspension names no entry; it must name one that will complete.")
    for index in named:
        if not bits.has(state.open | state.acking, index):
            raise ProtocolError(
                f"A Suspension names entry {index}, which was not sent, is not completable, or is "
                "completed."
            )
    return events.Suspend(indexes=tuple(named))


def _finish(state: Attempt) -> events.Finish:
    if state.output is None:
        raise ProtocolError("The handler ended without an Output.")
    return events.Finish(index=state.output)


def _last(state: Attempt, last: events.Last) -> Step:
    return _settled(replace(state, phase=Phase.ENDING, last=last))


def _settled(state: Attempt) -> Step:
    if state.last is None or state.stored < state.length:
        return state, ()
    return replace(state, phase=Phase.CLOSED), (state.last,)


def _broken(state: Attempt, event: events.Broken) -> Step:
    if state.phase is Phase.ENDING:
        return state, ()
    return _last(state, events.Retry(report=event.report))


def _stream_closed(state: Attempt, _: events.StreamClosed) -> Step:
    return _broken(state, events.Broken(report=UNKNOWN))


def _committed(state: Attempt, event: events.Committed) -> Step:
    index = event.index
    assert index == state.stored < state.length, "commits are told in order"
    state, out = _settled(replace(state, stored=index + 1))
    if bits.has(state.acking, index) and state.duplex and state.last is None:
        return state, (events.Notify(frame=frame(pb.EntryAckMessage(entry_index=index))), *out)
    return state, out


def _refused(state: Attempt, event: events.Refused) -> Step:
    return replace(state, phase=Phase.CLOSED), (events.Retry(report=event.report),)


def _completion_ready(state: Attempt, event: events.CompletionReady) -> Step:
    index = event.index
    if not bits.has(state.open & ~state.told, index):
        return state, ()
    tells = state.duplex and state.last is None
    state = replace(state, told=state.told | bits.bit(index))
    return state, (events.Notify(frame=completion(index, event.result)),) if tells else ()


_STEPS: Mapping[type, Callable[[Attempt, Any], Step]] = MappingProxyType(
    {
        events.Replayed: _replayed,
        events.Received: _received,
        events.Broken: _broken,
        events.StreamClosed: _stream_closed,
        events.Committed: _committed,
        events.Refused: _refused,
        events.CompletionReady: _completion_ready,
    }
)
