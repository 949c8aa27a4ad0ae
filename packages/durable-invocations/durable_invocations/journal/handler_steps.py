"""What the handler's own steps do to its side of an attempt."""

from __future__ import annotations

from dataclasses import replace

from durable_invocations.journal import handler_events as events
from durable_invocations.journal import index_sets, matching
from durable_invocations.journal.handler_state import (
    HandlerPhase,
    HandlerState,
    HandlerTransition,
    add_entry,
    end_if_returned,
    fail_attempt,
    suspend_if_waiting,
)
from durable_invocations.protocol import kinds
from durable_invocations.protocol.failures import ProtocolError
from durable_invocations.protocol.frames import Frame
from durable_invocations.protocol.results import get_result
from durable_invocations.protocol.versions import get_needed_version


def handle_issued(state: HandlerState, event: events.Issued) -> HandlerTransition:
    if state.replaying:
        return _replay_entry(state, event)
    _check_supported(state, event.entry)
    out = _resolve_entry(event.entry, state.issued) if event.entry.completed else ()
    state, flushed = _flush_entries(_take_entry(state, event.entry))
    return state, (*flushed, *out)


def handle_begun(state: HandlerState, event: events.RunBegun) -> HandlerTransition:
    if state.replaying:
        return _replay_entry(state, event)
    return _take_entry(state, None), (events.Execute(index=state.issued),)


def handle_finished(state: HandlerState, event: events.RunFinished) -> HandlerTransition:
    if state.unsent.get(event.index, event.entry) is not None:
        raise ProtocolError(f"Entry {event.index} is not a Run that waits for its result.")
    return _flush_entries(replace(state, unsent={**state.unsent, event.index: event.entry}))


def handle_awaited(state: HandlerState, event: events.Awaited) -> HandlerTransition:
    return suspend_if_waiting(replace(state, awaited=event.indexes))


def handle_returned(state: HandlerState, event: events.Returned) -> HandlerTransition:
    if state.replaying:
        assert event.recorded is not None, "a replayed entry comes with the event"
        matching.check(state.issued, None, event.recorded)
    return end_if_returned(replace(state, returned=True))


def handle_failed(state: HandlerState, event: events.Failed) -> HandlerTransition:
    return fail_attempt(state, event.report)


def _replay_entry(state: HandlerState, event: events.Issued | events.RunBegun) -> HandlerTransition:
    index, recorded = state.issued, event.recorded
    assert recorded is not None, "a replayed entry comes with the event"
    matching.check(index, event.entry, recorded, event.where)
    phase = state.phase if index + 1 < (state.replay_length or 0) else HandlerPhase.PROCESSING
    state = replace(state, issued=index + 1, phase=phase)
    if recorded.completed or recorded.code == kinds.RUN.code:
        return state, _resolve_entry(recorded, index)
    return state, ()


def _resolve_entry(entry: Frame, index: int) -> tuple[events.OutEvent, ...]:
    result = get_result(entry.message())
    if result is None:
        raise ProtocolError(f"Entry {index} is a Run without a result.")
    return (events.Resolve(index=index, result=result),)


def _take_entry(state: HandlerState, entry: Frame | None) -> HandlerState:
    """The state once the handler has made a new entry, which is not sent yet."""
    unsent = {**state.unsent, state.issued: entry}
    return replace(state, phase=HandlerPhase.PROCESSING, issued=state.issued + 1, unsent=unsent)


def _flush_entries(state: HandlerState) -> HandlerTransition:
    """Send the entries before the first unfinished Run; then end or suspend if possible."""
    out: list[events.OutEvent] = []
    while (entry := state.unsent.get(state.sent)) is not None:
        out.append(events.Send(frame=entry))
        state = _send_entry(state, entry)
    state, final = end_if_returned(state) if state.returned else suspend_if_waiting(state)
    return state, (*out, *final)


def _send_entry(state: HandlerState, entry: Frame) -> HandlerState:
    index = state.sent
    unsent = {number: frame for number, frame in state.unsent.items() if number != index}
    unacked = state.unacked | index_sets.make_bit(index) * entry.requires_ack
    return replace(add_entry(state, entry), unsent=unsent, unacked=unacked)


def _check_supported(state: HandlerState, entry: Frame) -> None:
    if get_needed_version(entry) > state.version:
        raise ProtocolError(
            f"{entry.kind} needs version {get_needed_version(entry)} of the protocol, and the "
            f"runtime speaks {state.version}; upgrade it, or do without."
        )
