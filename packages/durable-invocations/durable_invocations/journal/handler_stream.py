"""What the runtime's frames do to the handler's side of an attempt."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from durable_invocations.journal import bits
from durable_invocations.journal import handler_events as events
from durable_invocations.journal.handler_state import Attempt, Phase, Step, added, suspended
from durable_invocations.protocol import kinds
from durable_invocations.protocol.failures import ProtocolError, read_run_attempts
from durable_invocations.protocol.frames import ONEOF, Frame
from durable_invocations.protocol.results import result_of


def received(state: Attempt, event: events.Received) -> Step:
    got = event.frame
    if state.known is None:
        return _started(state, got)
    if state.phase is Phase.STARTING:
        return _recorded(state, state.known, got)
    if got.code == kinds.COMPLETION.code:
        return _completed(state, got.message())
    if got.code == kinds.ENTRY_ACK.code:
        return _acknowledged(state, got.message().entry_index)
    raise ProtocolError(
        f"The runtime sent {got.kind} after the replay, when only a Completion or an EntryAck may "
        "come; the runtime breaks the protocol."
    )


def input_closed(state: Attempt, _: events.InputClosed) -> Step:
    if state.phase is Phase.STARTING:
        known = "unknown many" if state.known is None else state.known
        raise ProtocolError(
            f"The stream ended after {state.sent} of {known} entries of the replay; the runtime "
            "or the connection broke."
        )
    return suspended(replace(state, input_closed=True))


def _started(state: Attempt, got: Frame) -> Step:
    if got.code != kinds.START.code:
        raise ProtocolError(f"The stream begins with {got.kind}; it must begin with a Start.")
    message = got.message()
    if not message.known_entries:
        raise ProtocolError("The Start tells of no entries; an invocation has its Input at least.")
    event = events.Started(message=message, run_attempts=read_run_attempts(got.body))
    return replace(state, known=message.known_entries), (event,)


def _recorded(state: Attempt, known: int, got: Frame) -> Step:
    index = state.sent
    if not got.kind.entry or (index == 0) != (got.code == kinds.INPUT.code):
        raise ProtocolError(
            f"The runtime sent {got.kind} as entry {index} of a replay of {known}; a replay "
            "consists of entries, of which the first and no other is the Input."
        )
    if got.kind.custom:
        _ = got.name  # Raises for fields that custom entries must not use.
    state, out = added(state, got), events.Recorded(index=index, entry=got)
    if state.sent < known:
        return state, (out,)
    return replace(state, phase=Phase.REPLAYING), (out, events.Ready())


def _completed(state: Attempt, message: Any) -> Step:
    index, variant = message.entry_index, message.WhichOneof(ONEOF)
    allowed = {"empty": state.empties, "value": state.values, "failure": state.completable}
    result = result_of(message)
    if result is None or not bits.has(allowed[variant], index):
        raise ProtocolError(
            f"The runtime completed entry {index} with {variant or 'no result'}: it was not sent, "
            "is not completable, or has no such result."
        )
    if not bits.has(state.open, index):
        # It cannot become another: the first result stands.
        return state, ()
    state = replace(state, open=state.open & ~bits.bit(index))
    return state, (events.Resolve(index=index, result=result),)


def _acknowledged(state: Attempt, index: int) -> Step:
    """Entries are stored in order: an ack of one says that those before it are stored."""
    if index >= state.sent:
        raise ProtocolError(f"The runtime acknowledged entry {index}, of {state.sent} that it has.")
    told = state.unacked & bits.up_to(index)
    state = replace(state, unacked=state.unacked & ~told)
    return state, tuple(events.Acknowledged(index=each) for each in bits.each(told))
