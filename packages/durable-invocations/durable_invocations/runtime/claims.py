"""When a runtime claims: after its own operations make invocations ready, or others' do."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from typing import Any

from durable_invocations.protocol import kinds
from durable_invocations.runtime.driving.drives import AttemptPool
from durable_invocations.runtime.driving.shared_services import Put
from durable_invocations.runtime.settings import AFTER_ERROR_SECONDS
from durable_invocations.runtime.store import operations as op
from durable_invocations.runtime.store.outcomes import Claimed

AT_ONCE = 64
"""The most invocations that are claimed in one transaction."""
_READYING = frozenset({op.Submit, op.Suspend, op.Finish, op.Fire, op.CompleteAwakeable, op.Resume})
_READYING_ENTRIES = kinds.CALLS | {
    *(kinds.COMPLETE_AWAKEABLE.code, kinds.COMPLETE_PROMISE.code, kinds.CANCEL_INVOCATION.code),
}

logger = logging.getLogger(__name__)


class Claimer:
    """Claims while places are free, one claim at a time. Belongs to one event loop."""

    def __init__(self, owner: str, put: Put) -> None:
        self._owner, self._put = owner, put
        self._drives: AttemptPool | None = None
        self._pending: asyncio.Future[tuple[Claimed, ...]] | None = None
        self._again = False
        self.crowded = False
        """Whether invocations may wait for a place."""

    def drive(self, drives: AttemptPool) -> None:
        """Begin to claim for these drives; nothing is claimed before."""
        self._drives = drives
        self.request_claim()

    def stop(self) -> None:
        """Stop claiming."""
        self._drives = None

    def request_claim(self) -> None:
        """Claim what is ready, now or when a place becomes free."""
        if self._pending is not None:
            self._again = True
        elif self._drives is not None:
            most, full = min(self._drives.free, AT_ONCE), self._drives.full
            self.crowded = not most or bool(full)
            if most:
                self._put_claim(most, full)

    def claim_behind(self, operation: op.StoreOperation[Any]) -> None:
        """Claim, in the same transaction, what an operation that was just queued makes ready.

        Otherwise the operation's `Changes` lead to a claim.
        """
        kind = type(operation)
        readies = kind in _READYING
        if isinstance(operation, op.CommitEntry):
            readies = operation.frame.code in _READYING_ENTRIES
        if readies and self._pending is None:
            self.request_claim()

    def note_freed(self) -> None:
        """A place became free."""
        if self.crowded:
            self.request_claim()

    def _put_claim(self, most: int, full: Collection[str]) -> None:
        self._again = False
        self._pending = self._put(op.Claim(owner=self._owner, most=most, without=full))
        self._pending.add_done_callback(lambda future: self._handle_claimed(most, future))

    def _handle_claimed(self, most: int, future: asyncio.Future[tuple[Claimed, ...]]) -> None:
        self._pending = None
        error = None if future.cancelled() else future.exception()
        if future.cancelled() or self._drives is None:
            return
        if error is not None:
            logger.warning("nothing could be claimed: %s", error)
            asyncio.get_running_loop().call_later(AFTER_ERROR_SECONDS, self.request_claim)
            return
        claimed: Sequence[Claimed] = future.result()
        self._drives.start(claimed)
        if self._again or len(claimed) == most:
            self.request_claim()
