"""Group commit: operations of an event loop share transactions, in one thread."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any, ParamSpec, Self, TypeVar

from durable_invocations.errors import UnavailableError
from durable_invocations.runtime.sql.store import SqlStore
from durable_invocations.runtime.store.operations import StoreOperation
from durable_invocations.runtime.store.outcomes import Changes

T = TypeVar("T")
P = ParamSpec("P")

MOST = 500
"""The most operations in a transaction."""
PATIENCE = 60.0
"""Seconds for which a database that does not answer is retried."""
FIRST_DELAY, LAST_DELAY = 0.05, 1.0
READERS = 2

QueuedOperation = tuple[StoreOperation[Any], "asyncio.Future[Any]"]
Done = tuple["asyncio.Future[Any]", Any, BaseException | None]


class Writer:
    """Runs operations of a store; those queued meanwhile share the next transaction.

    `on_changes` is called in the loop, after the outcomes are set, whenever a transaction changed
    something for others. Use it as an asynchronous context manager; leaving it finishes the queue.
    """

    def __init__(
        self, store: SqlStore, on_changes: Callable[[Changes], None], *, patience: float = PATIENCE
    ) -> None:
        self.store = store
        self._on_changes = on_changes
        self._patience = patience
        self._queue: SimpleQueue[QueuedOperation | None] = SimpleQueue()
        self._closing = threading.Event()
        self._uncertain = False
        self._thread = threading.Thread(
            target=self._serve_queue, name="invocations-writer", daemon=True
        )
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="invocations-reader")

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._thread.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._closing.set()
        self._queue.put(None)
        await asyncio.to_thread(self._thread.join)
        await asyncio.to_thread(self._readers.shutdown)

    def do(self, operation: StoreOperation[T]) -> asyncio.Future[T]:
        """The operation's outcome, once it is durable; it runs even if nobody awaits it.

        Raises UnavailableError if the database does not answer within `patience`: the operation
        may have been committed.
        """
        if self._closing.is_set():
            raise UnavailableError("The runtime is stopping; try again when it runs.")
        future: asyncio.Future[T] = self._loop.create_future()
        self._queue.put((operation, future))
        return future

    async def read(self, read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call one of the store's read methods in another thread."""
        future = self._loop.run_in_executor(self._readers, lambda: read(*args, **kwargs))
        return await future

    def _serve_queue(self) -> None:
        while (first := self._queue.get()) is not None:
            batch, stopping = [first], False
            with contextlib.suppress(Empty):
                while len(batch) < MOST and not stopping:
                    queued = self._queue.get_nowait()
                    stopping = queued is None
                    batch += [] if queued is None else [queued]
            self._do_batch(batch)
            if stopping:
                return

    def _do_batch(self, batch: Sequence[QueuedOperation]) -> None:
        try:
            outcomes, changes = self._run_with_retry([operation for operation, _ in batch])
        except UnavailableError as error:
            self._send_outcomes([(future, None, error) for _, future in batch], Changes())
        except Exception as error:  # noqa: BLE001 - it is raised where the operation is awaited
            if len(batch) == 1:
                self._send_outcomes([(batch[0][1], None, error)], Changes())
                return
            for queued in batch:
                self._do_batch([queued])
        else:
            pairs = zip(batch, outcomes, strict=True)
            self._send_outcomes(
                [(future, outcome, None) for (_, future), outcome in pairs], changes
            )

    def _run_with_retry(
        self, operations: Sequence[StoreOperation[Any]]
    ) -> tuple[list[Any], Changes]:
        """Run them in one transaction; retry while the database does not answer."""
        deadline, delay = monotonic() + self._patience, FIRST_DELAY
        while True:
            try:
                outcomes, changes = self.store.run(operations)
            except UnavailableError:
                self._uncertain = True
                if monotonic() + delay > deadline or self._closing.is_set():
                    raise
                self._closing.wait(delay)
                delay = min(2 * delay, LAST_DELAY)
            else:
                uncertain, self._uncertain = self._uncertain, False
                return outcomes, replace(changes, uncertain=uncertain)

    def _send_outcomes(self, outcomes: Sequence[Done], changes: Changes) -> None:
        # The loop may have ended before the queue.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._set_outcomes, outcomes, changes)

    def _set_outcomes(self, outcomes: Sequence[Done], changes: Changes) -> None:
        for future, outcome, error in outcomes:
            if future.done():
                continue
            if error is None:
                future.set_result(outcome)
            else:
                future.set_exception(error)
        if changes != Changes():
            # After the callbacks of the futures, which the loop calls first.
            self._loop.call_soon(self._on_changes, changes)
