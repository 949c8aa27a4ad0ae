"""A receiver of webhooks handles each event once, however often and at once it is delivered."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Self

from idempotent_receiver.store import BeingHandledError, ClaimStatus, Store

WINDOW = timedelta(days=7)
LEASE = 60.0
WAIT = 10.0
"""Seconds; less than a sender's timeout."""
RETRIES = (5.0, 300.0, 1_800.0, 7_200.0, 18_000.0, 36_000.0, 36_000.0)
"""The seconds before each further attempt; the default of an endpoint."""
_SHARE = 1_000
"""How often in a window old events are forgotten."""


def retry_horizon(
    *,
    retries: Sequence[float] = RETRIES,
    jitter: float = 0.2,
    longest_wait: float = 36_000.0,
    failing_days: float = 5.0,
    timeout: float = 15.0,
) -> timedelta:
    """The longest time after the first attempt at which a sender still retries by itself.

    Either its attempts are used up, each as late as jitter and `Retry-After` can make it, or the
    receiver accepts nothing until it is disabled, when the last wait may just have begun.
    `retries` are the seconds before each further attempt, `jitter` the part by which one may be
    longer, `longest_wait` the most seconds that `Retry-After` can set, `failing_days` how long
    a receiver may fail, and `timeout` the seconds of an attempt.
    """
    waits = [max(delay * (1 + jitter), longest_wait) for delay in retries]
    failing = failing_days * timedelta(days=1).total_seconds() + waits[-1]
    attempts = (len(waits) + 1) * timeout
    return timedelta(seconds=max(sum(waits), failing) + attempts)


HORIZON = retry_horizon()


@dataclass(kw_only=True)
class EventClaim:
    """One delivery of an event. Leaving its `with` records the event as handled.

    An exception within releases it, so that the next delivery handles it. A `duplicate` was
    handled before: do nothing, and answer as if it were new.
    """

    store: Store
    event_id: str
    holder: str
    duplicate: bool
    _recorded: bool = field(default=False, init=False)

    def complete(self, **within: Any) -> None:
        """Record it now; `connection=` does so within a transaction, if the store is in SQL.

        Raises ClaimLostError if someone else has claimed the event meanwhile.
        """
        self.store.complete(self.event_id, self.holder, **within)
        self._recorded = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self.duplicate:
            return
        if kind is not None:
            # A transaction that recorded it has been rolled back by now.
            self.store.release(self.event_id, self.holder)
        elif not self._recorded:
            self.complete()


class Deduplicator:
    """Distinguishes new deliveries from those that were handled within `window`.

    `horizon` is how long the sender may attempt an event (`retry_horizon`); a window that is not
    longer is refused with ValueError. A claim is valid for `lease` seconds; a concurrent delivery
    of the same event waits for it, at most `wait` seconds.
    """

    def __init__(
        self,
        store: Store,
        *,
        window: timedelta = WINDOW,
        horizon: timedelta = HORIZON,
        lease: float = LEASE,
        wait: float = WAIT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if window <= horizon:
            raise ValueError(
                f"The window {window} is not longer than {horizon}, for which the sender may "
                "attempt an event; an event could be handled again. Raise window= above that."
            )
        self._store, self._window, self._lease = store, window.total_seconds(), lease
        self._wait, self._clock = wait, clock
        # At the first claim: processes that are short-lived must forget, too.
        self._pruned_at = clock() - self._window / _SHARE

    def claim(self, event_id: str) -> EventClaim:
        """Claim an event, for a `with` statement; waits while another delivery is handled.

        Raises BeingHandledError if that takes longer than `wait`, StoreFullError if the store may
        hold no more events.
        """
        self._prune_if_due()
        holder, until = secrets.token_hex(16), self._clock() + self._wait
        while (status := self._store.claim(event_id, holder, self._lease)) is ClaimStatus.HELD:
            remaining = until - self._clock()
            if remaining <= 0:
                raise BeingHandledError(
                    f"Event {event_id} has been handled elsewhere for more than {self._wait:g} s; "
                    "answer 503, and it is delivered again."
                )
            self._store.wait_for_change(event_id, remaining)
        duplicate = status is ClaimStatus.DONE
        return EventClaim(store=self._store, event_id=event_id, holder=holder, duplicate=duplicate)

    def _prune_if_due(self) -> None:
        """Forget old events now and then."""
        now = self._clock()
        if now - self._pruned_at >= self._window / _SHARE:
            self._pruned_at = now
            self._store.forget(self._window)
