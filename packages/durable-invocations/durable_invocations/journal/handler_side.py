"""The handler's side of an attempt: replaying, processing, closed.

`step` is a pure function from events to events. Whoever drives it keeps the recorded entries and
the results, and gives each event the recorded entry that belongs to it, so that a state stays small
however long the journal is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from durable_invocations.journal import handler_events as events
from durable_invocations.journal import handler_steps as steps
from durable_invocations.journal.handler_state import Attempt, Phase, Step, failed
from durable_invocations.journal.handler_stream import input_closed, received
from durable_invocations.protocol.failures import ErrorReport, ProtocolError

_STEPS: Mapping[type, Callable[[Attempt, Any], Step]] = MappingProxyType(
    {
        events.Received: received,
        events.InputClosed: input_closed,
        events.Issued: steps.issued,
        events.Begun: steps.begun,
        events.Finished: steps.finished,
        events.Awaited: steps.awaited,
        events.Returned: steps.returned,
        events.Failed: steps.broke,
    }
)


def step(state: Attempt, event: events.InEvent) -> Step:
    """What follows from an event.

    A breach of the protocol, or a journal that does not match, closes the attempt with an error.
    Once it is closed nothing follows.
    """
    if state.phase is Phase.CLOSED:
        return state, ()
    try:
        return _STEPS[type(event)](state, event)
    except ProtocolError as error:
        return failed(state, ErrorReport.of(error, state.issued))
