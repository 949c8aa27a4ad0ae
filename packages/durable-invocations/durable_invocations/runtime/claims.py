"""When a runtime claims: behind what it makes ready itself, and when others did."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from typing import Any

from durable_invocations.protocol import kinds
from durable_invocations.runtime.driving.drives import Drives
from durable_invocations.runtime.driving.tools import Put
from durable_invocations.runtime.settings import AFTER_ERROR_SECONDS
from durable_invocations.runtime.store import operations as op
from durable_invocations.runtime.store.outcomes import Claimed

AT_ONCE = 64
"""Invocations that are claimed in one transaction."""
_READYING = frozenset({op.Submit, op.Suspend, op.Finish, op.Fire, op.CompleteAwakeable, op.Resume})
_READYING_ENTRIES = kinds.CALLS | {
    *(kinds.COMPLETE_AWAKEABLE.code, kinds.COMPLETE_PROMISE.code, kinds.CANCEL_INVOCATION.code),
}

logger = logging.getLogger(__name__)


class Claims:
    """Claims while there are places, one claim at a time. Belongs to one event loop."""

    def __init__(self, owner: str, put: Put) -> None:
        self._owner, self._put = owner, put
        self._drives: Drives | None = None
        self._pending: asyncio.Future[tuple[Claimed, ...]] | None = None
        self._again = False
        self.crowded = False
        """Whether invocations may wait for a place."""

    def drive(self, drives: Drives) -> None:
        """Begin to claim, for these places; None are claimed before."""
        self._drives = drives
        self.wanted()

    def stop(self) -> None:
        """Claim no more."""
        self._drives = None

    def wanted(self) -> None:
        """Something may be ready: claim it, now or when a place becomes free."""
        if self._pending is not None:
            self._again = True
        elif self._drives is not None:
            most, full = min(self._drives.free, AT_ONCE), self._drives.full
            self.crowded = not most or bool(full)
            if most:
                self._claim(most, full)

    def behind(self, operation: op.Operation[Any]) -> None:
        """Claim in the same transaction what an operation that was just put makes ready.

        Where that does not come about, the operation's `Changes` lead to a claim.
        """
        kind = type(operation)
        readies = kind in _READYING
        if isinstance(operation, op.Commit):
            readies = operation.frame.code in _READYING_ENTRIES
        if readies and self._pending is None:
            self.wanted()

    def freed(self) -> None:
        """A place became free."""
        if self.crowded:
            self.wanted()

    def _claim(self, most: int, full: Collection[str]) -> None:
        self._again = False
        self._pending = self._put(op.Claim(owner=self._owner, most=most, without=full))
        self._pending.add_done_callback(lambda future: self._claimed(most, future))

    def _claimed(self, most: int, future: asyncio.Future[tuple[Claimed, ...]]) -> None:
        self._pending = None
        error = None if future.cancelled() else future.exception()
        if future.cancelled() or self._drives is None:
            return
        if error is not None:
            logger.warning("nothing could be claimed: %s", error)
            asyncio.get_running_loop().call_later(AFTER_ERROR_SECONDS, self.wanted)
            return
        claimed: Sequence[Claimed] = future.result()
        self._drives.start(claimed)
        if self._again or len(claimed) == most:
            self.wanted()
