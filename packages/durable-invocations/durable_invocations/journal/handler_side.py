"""The handler's side of an attempt: replaying, processing, closed.

`step` is a pure function from events to events. The caller keeps the recorded entries and the
results, and gives each event its recorded entry, so that the state stays small however long the
journal is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from durable_invocations.journal import handler_events as events
from durable_invocations.journal import handler_steps as steps
from durable_invocations.journal.handler_state import (
    HandlerPhase,
    HandlerState,
    HandlerTransition,
    fail_attempt,
)
from durable_invocations.journal.handler_stream import handle_input_closed, handle_received
from durable_invocations.protocol.failures import ErrorReport, ProtocolError

_STEPS: Mapping[type, Callable[[HandlerState, Any], HandlerTransition]] = MappingProxyType(
    {
        events.FrameReceived: handle_received,
        events.InputClosed: handle_input_closed,
        events.Issued: steps.handle_issued,
        events.RunBegun: steps.handle_begun,
        events.RunFinished: steps.handle_finished,
        events.Awaited: steps.handle_awaited,
        events.Returned: steps.handle_returned,
        events.Failed: steps.handle_failed,
    }
)


def step(state: HandlerState, event: events.InEvent) -> HandlerTransition:
    """The new state, and the events that follow.

    A protocol violation, or a journal that does not match, closes the attempt with an error.
    After that nothing follows.
    """
    if state.phase is HandlerPhase.CLOSED:
        return state, ()
    try:
        return _STEPS[type(event)](state, event)
    except ProtocolError as error:
        return fail_attempt(state, ErrorReport.of(error, state.issued))
