"""What a store of handled events must do."""

from __future__ import annotations

from enum import Enum
from typing import Protocol


class ReceiverError(Exception):
    """An event cannot be handled now; answer 503, and it is delivered again."""


class BeingHandledError(ReceiverError):
    """The event is still being handled elsewhere."""


class StoreFullError(ReceiverError):
    """The store holds as many events as it may; raise its bound."""


class ClaimLostError(ReceiverError):
    """Handling took longer than its lease and someone else claimed the event; undo the work."""


class ClaimStatus(Enum):
    """An event's status, for a caller that wants to handle it."""

    MINE = "mine"
    """The caller has claimed it."""
    HELD = "held"
    """Someone else has, and is not done."""
    DONE = "done"
    """It was handled."""


class Store(Protocol):
    """Events that are being handled or were; safe for threads, and for processes if it is shared.

    `holder` names one claim and no other. An event is claimed by at most one holder at a time.
    """

    def claim(self, event_id: str, holder: str, lease: float) -> ClaimStatus:
        """Claim an event for `lease` seconds, unless it is done or another's claim is valid.

        Raises StoreFullError if it may hold no more.
        """

    def complete(self, event_id: str, holder: str) -> None:
        """Record that the event was handled. Raises ClaimLostError if `holder` has no claim."""

    def release(self, event_id: str, holder: str) -> None:
        """Give up a claim, so that the event can be handled again; does nothing without one."""

    def wait_for_change(self, event_id: str, seconds: float) -> None:
        """Wait until the event's status may have changed, at most `seconds`."""

    def forget(self, seconds: float) -> int:
        """Forget events claimed or done longer ago than `seconds`; returns how many."""


def make_claim_lost_error(event_id: str) -> ClaimLostError:
    return ClaimLostError(
        f"The claim of event {event_id} ran out, and another holds it or has handled it; undo what "
        "was done for it, and raise lease= above the time that handling takes."
    )
