"""What the runtime's frames do to the handler's side of an attempt."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from durable_invocations.journal import handler_events as events
from durable_invocations.journal import index_sets
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
    received = event.frame
    if state.replay_length is None:
        return _handle_start(state, received)
    if state.phase is HandlerPhase.STARTING:
        return _record_entry(state, state.replay_length, received)
    if received.code == kinds.COMPLETION.code:
        return _handle_completion(state, received.message())
    if received.code == kinds.ENTRY_ACK.code:
        return _handle_ack(state, received.message().entry_index)
    raise ProtocolError(
        f"The runtime sent {received.kind} after the replay, when only a Completion or an EntryAck "
        "may come; the runtime breaks the protocol."
    )


def handle_input_closed(state: HandlerState, _: events.InputClosed) -> HandlerTransition:
    if state.phase is HandlerPhase.STARTING:
        length = "an unknown number of" if state.replay_length is None else state.replay_length
        raise ProtocolError(
            f"The stream ended after {state.sent} of {length} entries of the replay; the runtime "
            "or the connection broke."
        )
    return suspend_if_waiting(replace(state, input_closed=True))


def _handle_start(state: HandlerState, received: Frame) -> HandlerTransition:
    if received.code != kinds.START.code:
        raise ProtocolError(f"The stream begins with {received.kind}; it must begin with a Start.")
    message = received.message()
    if not message.known_entries:
        raise ProtocolError("The Start announces no entries; an invocation has at least its Input.")
    event = events.Started(message=message, run_attempts=read_run_attempts(received.body))
    return replace(state, replay_length=message.known_entries), (event,)


def _record_entry(state: HandlerState, length: int, received: Frame) -> HandlerTransition:
    index = state.sent
    if not received.kind.entry or (index == 0) != (received.code == kinds.INPUT.code):
        raise ProtocolError(
            f"The runtime sent {received.kind} as entry {index} of a replay of {length}; a replay "
            "consists of entries, of which the first and no other is the Input."
        )
    if received.kind.custom:
        _ = received.name  # Raises for fields that custom entries must not use.
    state, out = add_entry(state, received), events.Recorded(index=index, entry=received)
    if state.sent < length:
        return state, (out,)
    return replace(state, phase=HandlerPhase.REPLAYING), (out, events.Ready())


def _handle_completion(state: HandlerState, message: Any) -> HandlerTransition:
    index, variant = message.entry_index, message.WhichOneof(ONEOF)
    allowed = {"empty": state.empties, "value": state.values, "failure": state.completable}
    result = get_result(message)
    if result is None or not index_sets.has(allowed[variant], index):
        raise ProtocolError(
            f"The runtime completed entry {index} with {variant or 'no result'}: it was not sent, "
            "is not completable, or has no such result."
        )
    if not index_sets.has(state.open, index):
        # The first result stands.
        return state, ()
    state = replace(state, open=state.open & ~index_sets.make_bit(index))
    return state, (events.Resolve(index=index, result=result),)


def _handle_ack(state: HandlerState, index: int) -> HandlerTransition:
    """An ack covers all earlier entries, since they are stored in order."""
    if index >= state.sent:
        raise ProtocolError(
            f"The runtime acknowledged entry {index}, but only {state.sent} were sent."
        )
    acked = state.unacked & index_sets.mask_up_to(index)
    state = replace(state, unacked=state.unacked & ~acked)
    return state, tuple(
        events.Acknowledged(index=entry_index) for entry_index in index_sets.iter_indexes(acked)
    )
