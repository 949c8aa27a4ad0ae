"""Group commit: operations of an event loop share transactions, which one thread does."""

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
from durable_invocations.runtime.store.operations import Operation
from durable_invocations.runtime.store.outcomes import Changes

T = TypeVar("T")
P = ParamSpec("P")

MOST = 500
"""Operations in a transaction."""
PATIENCE = 60.0
"""Seconds for which a database that does not answer is tried again."""
FIRST_DELAY, LAST_DELAY = 0.05, 1.0
READERS = 2

Asked = tuple[Operation[Any], "asyncio.Future[Any]"]
Done = tuple["asyncio.Future[Any]", Any, BaseException | None]


class Writer:
    """Does operations of a store, those together that were asked for meanwhile.

    `on_changes` is called in the loop, after the outcomes are set, whenever a transaction changed
    something for others. Use it as an asynchronous context manager; leaving it does what was asked
    for, first.
    """

    def __init__(
        self, store: SqlStore, on_changes: Callable[[Changes], None], *, patience: float = PATIENCE
    ) -> None:
        self.store = store
        self._on_changes = on_changes
        self._patience = patience
        self._asked: SimpleQueue[Asked | None] = SimpleQueue()
        self._closing = threading.Event()
        self._uncertain = False
        self._thread = threading.Thread(target=self._serve, name="invocations-writer", daemon=True)
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="invocations-reader")

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._thread.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._closing.set()
        self._asked.put(None)
        await asyncio.to_thread(self._thread.join)
        await asyncio.to_thread(self._readers.shutdown)

    def do(self, operation: Operation[T]) -> asyncio.Future[T]:
        """The operation's outcome, when it is durable; it is done even if nobody awaits it.

        Raises UnavailableError if the database does not answer for the writer's patience: whether
        it was done is unknown then.
        """
        if self._closing.is_set():
            raise UnavailableError("The runtime is stopping; ask again when it runs.")
        future: asyncio.Future[T] = self._loop.create_future()
        self._asked.put((operation, future))
        return future

    async def read(self, read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What one of the store's questions returns, asked in another thread."""
        asked = self._loop.run_in_executor(self._readers, lambda: read(*args, **kwargs))
        return await asked

    def _serve(self) -> None:
        while (first := self._asked.get()) is not None:
            some, last = [first], False
            with contextlib.suppress(Empty):
                while len(some) < MOST and not last:
                    more = self._asked.get_nowait()
                    last = more is None
                    some += [] if more is None else [more]
            self._do(some)
            if last:
                return

    def _do(self, asked: Sequence[Asked]) -> None:
        try:
            outcomes, changes = self._run([operation for operation, _ in asked])
        except UnavailableError as error:
            self._tell([(future, None, error) for _, future in asked], Changes())
        except Exception as error:  # noqa: BLE001 - it is raised where the operation is awaited
            if len(asked) == 1:
                self._tell([(asked[0][1], None, error)], Changes())
                return
            for each in asked:
                self._do([each])
        else:
            told = zip(asked, outcomes, strict=True)
            self._tell([(future, outcome, None) for (_, future), outcome in told], changes)

    def _run(self, operations: Sequence[Operation[Any]]) -> tuple[list[Any], Changes]:
        """Do them in one transaction, again while the database is away."""
        until, delay = monotonic() + self._patience, FIRST_DELAY
        while True:
            try:
                outcomes, changes = self.store.run(operations)
            except UnavailableError:
                self._uncertain = True
                if monotonic() + delay > until or self._closing.is_set():
                    raise
                self._closing.wait(delay)
                delay = min(2 * delay, LAST_DELAY)
            else:
                uncertain, self._uncertain = self._uncertain, False
                return outcomes, replace(changes, uncertain=uncertain)

    def _tell(self, done: Sequence[Done], changes: Changes) -> None:
        # The loop may have ended before what was asked for.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._told, done, changes)

    def _told(self, done: Sequence[Done], changes: Changes) -> None:
        for future, outcome, error in done:
            if future.done():
                continue
            if error is None:
                future.set_result(outcome)
            else:
                future.set_exception(error)
        if changes != Changes():
            # Behind the callbacks of the futures, which the loop calls first.
            self._loop.call_soon(self._on_changes, changes)
