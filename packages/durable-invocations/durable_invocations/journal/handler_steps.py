"""What the handler's own steps do to its side of an attempt."""

from __future__ import annotations

from dataclasses import replace

from durable_invocations.journal import bits, matching
from durable_invocations.journal import handler_events as events
from durable_invocations.journal.handler_state import (
    Attempt,
    Phase,
    Step,
    added,
    ended,
    failed,
    suspended,
)
from durable_invocations.protocol import kinds
from durable_invocations.protocol.failures import ProtocolError
from durable_invocations.protocol.frames import Frame
from durable_invocations.protocol.results import result_of
from durable_invocations.protocol.versions import needed


def issued(state: Attempt, event: events.Issued) -> Step:
    if state.replaying:
        return _replayed(state, event)
    _supported(state, event.entry)
    out = _result(event.entry, state.issued) if event.entry.completed else ()
    state, more = _flushed(_taken(state, event.entry))
    return state, (*more, *out)


def begun(state: Attempt, event: events.Begun) -> Step:
    if state.replaying:
        return _replayed(state, event)
    return _taken(state, None), (events.Execute(index=state.issued),)


def finished(state: Attempt, event: events.Finished) -> Step:
    if state.held.get(event.index, event.entry) is not None:
        raise ProtocolError(f"Entry {event.index} is no Run that waits for its result.")
    return _flushed(replace(state, held={**state.held, event.index: event.entry}))


def awaited(state: Attempt, event: events.Awaited) -> Step:
    return suspended(replace(state, awaited=event.indexes))


def returned(state: Attempt, event: events.Returned) -> Step:
    if state.replaying:
        assert event.recorded is not None, "a replayed entry comes with the event"
        matching.check(state.issued, None, event.recorded)
    return ended(replace(state, returned=True))


def broke(state: Attempt, event: events.Failed) -> Step:
    return failed(state, event.report)


def _replayed(state: Attempt, event: events.Issued | events.Begun) -> Step:
    index, recorded = state.issued, event.recorded
    assert recorded is not None, "a replayed entry comes with the event"
    matching.check(index, event.entry, recorded, event.where)
    phase = state.phase if index + 1 < (state.known or 0) else Phase.PROCESSING
    state = replace(state, issued=index + 1, phase=phase)
    if recorded.completed or recorded.code == kinds.RUN.code:
        return state, _result(recorded, index)
    return state, ()


def _result(entry: Frame, index: int) -> tuple[events.OutEvent, ...]:
    result = result_of(entry.message())
    if result is None:
        raise ProtocolError(f"Entry {index} is a Run without a result.")
    return (events.Resolve(index=index, result=result),)


def _taken(state: Attempt, entry: Frame | None) -> Attempt:
    """The state when the handler has made a new entry, which is not sent yet."""
    held = {**state.held, state.issued: entry}
    return replace(state, phase=Phase.PROCESSING, issued=state.issued + 1, held=held)


def _flushed(state: Attempt) -> Step:
    """Send what is behind no unfinished Run; then end or suspend if nothing else is left to do."""
    out: list[events.OutEvent] = []
    while (entry := state.held.get(state.sent)) is not None:
        out.append(events.Send(frame=entry))
        state = _sent(state, entry)
    state, more = ended(state) if state.returned else suspended(state)
    return state, (*out, *more)


def _sent(state: Attempt, entry: Frame) -> Attempt:
    index = state.sent
    held = {each: held for each, held in state.held.items() if each != index}
    unacked = state.unacked | bits.bit(index) * entry.requires_ack
    return replace(added(state, entry), held=held, unacked=unacked)


def _supported(state: Attempt, entry: Frame) -> None:
    if needed(entry) > state.version:
        raise ProtocolError(
            f"{entry.kind} needs version {needed(entry)} of the protocol, and the runtime speaks "
            f"{state.version}; upgrade it, or do without."
        )
