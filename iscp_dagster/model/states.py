"""The states of a job and the one table of transitions between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from types import MappingProxyType

from iscp_dagster.model.errors import ConfigError, TransitionError


class JobState(IntEnum):
    """The state of a job's latest iteration; the numbers are stored."""

    PENDING = 0
    """An iteration waits for a worker."""
    RUNNING = 1
    """A worker executes it."""
    CANCELED = 2
    """It was canceled; the next one may be planned."""
    ERROR = 3
    """It failed with a permanent error; a person must repair it."""
    COMPLETED = 4
    """It finished, or none has begun; the next one may be planned."""

    @property
    def label(self) -> str:
        return self.name.lower()

    @classmethod
    def parse_state(cls, state: JobState | str) -> JobState:
        """The state, which may be given by its name. Raises ConfigError naming all states."""
        states = {member.label: member for member in cls}
        if isinstance(state, JobState):
            return state
        if not isinstance(state, str) or state.lower() not in states:
            raise ConfigError(f"The state {state!r} is unknown; use one of {', '.join(states)}.")
        return states[state.lower()]


class Event(Enum):
    """What happens to a job."""

    REGISTER = "register"
    ENQUEUE = "enqueue"
    START = "start"
    COMPLETE = "complete"
    FAIL_TEMPORARY = "fail temporarily"
    FAIL_PERMANENT = "fail permanently"
    CANCEL = "cancel"
    RECOVER = "recover"
    REPAIR = "repair"
    UPDATE = "update"
    PAUSE = "pause"
    RESUME = "resume"
    UNREGISTER = "unregister"
    STRAND = "strand"
    """Its table is gone: dropped, or recreated under another id."""


@dataclass(frozen=True, kw_only=True)
class Transition:
    """The states (None: no row yet) that an event is allowed in, and the state it leads to.

    A `target` of None leaves the state as it is.
    """

    allowed: frozenset[JobState | None]
    target: JobState | None


def _make_transition(target: JobState | None, *allowed: JobState | None) -> Transition:
    return Transition(allowed=frozenset(allowed), target=target)


_S = JobState
TRANSITIONS: Mapping[Event, Transition] = MappingProxyType(
    {
        Event.REGISTER: _make_transition(_S.COMPLETED, None),
        Event.ENQUEUE: _make_transition(_S.PENDING, _S.COMPLETED, _S.CANCELED),
        Event.START: _make_transition(_S.RUNNING, _S.PENDING, _S.COMPLETED, _S.CANCELED),
        Event.COMPLETE: _make_transition(_S.COMPLETED, _S.RUNNING),
        Event.FAIL_TEMPORARY: _make_transition(_S.COMPLETED, _S.PENDING, _S.RUNNING),
        Event.FAIL_PERMANENT: _make_transition(_S.ERROR, _S.PENDING, _S.RUNNING),
        Event.CANCEL: _make_transition(_S.CANCELED, _S.PENDING, _S.RUNNING),
        Event.RECOVER: _make_transition(_S.COMPLETED, _S.PENDING, _S.RUNNING),
        Event.REPAIR: _make_transition(_S.COMPLETED, _S.ERROR),
        Event.UPDATE: _make_transition(None, *_S),
        Event.PAUSE: _make_transition(None, *_S),
        Event.RESUME: _make_transition(None, *_S),
        Event.UNREGISTER: _make_transition(None, *_S),
        Event.STRAND: _make_transition(_S.ERROR, *_S),
    }
)
"""A temporary failure leads to `completed` with its error code kept, so that the runner
schedules the job again."""


def get_allowed_states(event: Event) -> frozenset[JobState | None]:
    """The states that allow `event`; None means that the job has no row."""
    return TRANSITIONS[event].allowed


STARTABLE = frozenset({JobState.COMPLETED, JobState.CANCELED})
"""The states in which a new iteration may be planned."""

ACTIVE = frozenset({JobState.PENDING, JobState.RUNNING})
"""The states that belong to a run."""


def get_next_state(event: Event, state: JobState | None, job: object) -> JobState:
    """The state that `event` leads to. Raises TransitionError naming `job` if not allowed."""
    transition = TRANSITIONS[event]
    if state in transition.allowed:
        return transition.target if transition.target is not None else JobState(state or 0)
    states = ", ".join(sorted(map(_format_state, transition.allowed)))
    raise TransitionError(
        f"Job {job}: cannot {event.value} in state {_format_state(state)}; allowed in: {states}."
    )


def _format_state(state: JobState | None) -> str:
    return "unregistered" if state is None else state.label
