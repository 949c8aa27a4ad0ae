"""What the runtime's frames do to the handler's side of an attempt."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from durable_invocations.journal import bits
from durable_invocations.journal import handler_events as events
from durable_invocations.journal.handler_state import (
    HandlerPhase,
    HandlerState,
    HandlerTransition,
    add_entry,
    suspend_if_waiting,
)
from durable_invocations.protocol import kinds
from durable_invocations.protocol.failures import ProtocolError, read_run_attempts
from durable_invocations.protocol.frames import ONEOF, Frame
from durable_invocations.protocol.results import get_result


def handle_received(state: HandlerState, event: events.FrameReceived) -> HandlerTransition:
    got = event.frame
    if state.known is None:
        return _handle_start(state, got)
    if state.phase is HandlerPhase.STARTING:
        return _record_entry(state, state.known, got)
    if got.code == kinds.COMPLETION.code:
        return _handle_completion(state, got.message())
    if got.code == kinds.ENTRY_ACK.code:
        return _handle_ack(state, got.message().entry_index)
    raise ProtocolError(
        f"The runtime sent {got.kind} after the replay, when only a Completion or an EntryAck may "
        "come; the runtime breaks the protocol."
    )


def handle_input_closed(state: HandlerState, _: events.InputClosed) -> HandlerTransition:
    if state.phase is HandlerPhase.STARTING:
        known = "unknown many" if state.known is None else state.known
        raise ProtocolError(
            f"The stream ended after {state.sent} of {known} entries of the replay; the runtime "
            "or the connection broke."
        )
    return suspend_if_waiting(replace(state, input_closed=True))


def _handle_start(state: HandlerState, got: Frame) -> HandlerTransition:
    if got.code != kinds.START.code:
        raise ProtocolError(f"The stream begins with {got.kind}; it must begin with a Start.")
    message = got.message()
    if not message.known_entries:
        raise ProtocolError("The Start tells of no entries; an invocation has its Input at least.")
    event = events.Started(message=message, run_attempts=read_run_attempts(got.body))
    return replace(state, known=message.known_entries), (event,)


def _record_entry(state: HandlerState, known: int, got: Frame) -> HandlerTransition:
    index = state.sent
    if not got.kind.entry or (index == 0) != (got.code == kinds.INPUT.code):
        raise ProtocolError(
            f"The runtime sent {got.kind} as entry {index} of a replay of {known}; a replay "
            "consists of entries, of which the first and no other is the Input."
        )
    if got.kind.custom:
        _ = got.name  # Raises for fields that custom entries must not use.
    state, out = add_entry(state, got), events.Recorded(index=index, entry=got)
    if state.sent < known:
        return state, (out,)
    return replace(state, phase=HandlerPhase.REPLAYING), (out, events.Ready())


def _handle_completion(state: HandlerState, message: Any) -> HandlerTransition:
    index, variant = message.entry_index, message.WhichOneof(ONEOF)
    allowed = {"empty": state.empties, "value": state.values, "failure": state.completable}
    result = get_result(message)
    if result is None or not bits.has(allowed[variant], index):
        raise ProtocolError(
            f"The runtime completed entry {index} with {variant or 'no result'}: it was not sent, "
            "is not completable, or has no such result."
        )
    if not bits.has(state.open, index):
        # It cannot become another: the first result stands.
        return state, ()
    state = replace(state, open=state.open & ~bits.make_bit(index))
    return state, (events.Resolve(index=index, result=result),)


def _handle_ack(state: HandlerState, index: int) -> HandlerTransition:
    """Entries are stored in order: an ack of one says that those before it are stored."""
    if index >= state.sent:
        raise ProtocolError(f"The runtime acknowledged entry {index}, of {state.sent} that it has.")
    told = state.unacked & bits.mask_up_to(index)
    state = replace(state, unacked=state.unacked & ~told)
    return state, tuple(events.Acknowledged(index=each) for each in bits.iter_indexes(told))
