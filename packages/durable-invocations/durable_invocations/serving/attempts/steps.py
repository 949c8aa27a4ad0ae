"""The steps of a handler: each is an entry of the journal, and most are waited for."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from durable_invocations.journal.handler_events import Awaited, InEvent, Issued
from durable_invocations.protocol.frames import Frame, frame
from durable_invocations.protocol.results import Result
from durable_invocations.protocol.versions import NEWEST, needed
from durable_invocations.serving.attempts.journaling import Journaling
from durable_invocations.serving.attempts.operations import Operation
from durable_invocations.serving.errors import ContextError

T = TypeVar("T")
_TURN = 256
"""After so many waits that were over at once, others have their turn."""
_HERE = __name__.rpartition(".attempts.")[0]
_NOTHING: frozenset[int] = frozenset()


class Steps:
    """Takes the steps of the handler `called`, in one event loop, and in one task of it."""

    task: asyncio.Task[None] | None = None
    """The handler's."""

    def __init__(self, called: str, journal: Journaling, *, version: int, most: int) -> None:
        self.journal = journal
        self._called = called
        self._version = version
        self._most = most
        """How many entries the journal may have."""
        self._turns = 0

    def record(self, message: Any) -> int:
        """Issue an entry that has no result; its index."""
        return self.enter(frame(message))

    def operation(self, message: Any, taken: Callable[[Result], T]) -> Operation[T]:
        """Issue an entry that has a result."""
        operation = Operation(self, taken)
        self.begin(operation, frame(message))
        return operation

    def begin(
        self,
        operation: Operation[Any],
        entry: Frame,
        event: Callable[..., InEvent] = Issued,
        result: Result | None = None,
    ) -> None:
        """Issue an entry, whose result `operation` gets; `result` once the entry is stored."""
        self._check(entry)
        self.journal.expect(operation, result)
        self.journal.enter(entry, where(), event)

    def enter(self, entry: Frame, at: str = "") -> int:
        """Issue an entry; its index. `at` is the handler's line, if it is not the calling one."""
        self._check(entry)
        return self.journal.enter(entry, at or where())

    async def until(self, operation: Operation[Any]) -> None:
        """Wait until an operation is done."""
        await self.wait(lambda: undone((operation,)))

    async def all_of(self, operations: Sequence[Operation[Any]]) -> None:
        """Wait until all are done."""
        check_all(operations)
        await self.wait(lambda: undone(operations))

    async def wait(self, wanted: Callable[[], frozenset[int]]) -> None:
        """Wait until there are no indexes that are waited for."""
        self.check_use()
        self._turns += 1
        if self._turns % _TURN == 0:
            await asyncio.sleep(0)
        while indexes := wanted():
            self.journal.step(Awaited(indexes=indexes))
            self.journal.check_open()
            self.journal.waiter = asyncio.get_running_loop().create_future()
            try:
                await self.journal.waiter
            except asyncio.CancelledError:
                self.journal.step(Awaited(indexes=_NOTHING))
                raise

    def check_use(self) -> None:
        """Raise unless the handler itself asks, while its attempt goes on."""
        self.journal.check_open()
        try:
            current = asyncio.current_task()
        except RuntimeError:
            current = None
        if current is not self.task:
            raise ContextError(
                f"{self._called} uses its context in another task or thread, or in a run, "
                "where the order of its steps is not that of the journal; use it in the handler "
                "itself, with gather() or select() for several operations."
            )

    def _check(self, entry: Frame) -> None:
        self.check_use()
        if self._version < NEWEST and needed(entry) > self._version:
            raise ContextError(
                f"{entry.kind} needs version {needed(entry)} of the protocol, and the runtime "
                f"speaks version {self._version}; use another runtime, or do without."
            )
        if self.journal.issued >= self._most:
            raise ContextError(
                f"The journal has {self.journal.issued} entries, and no more are allowed; hand the "
                "rest of the work to an invocation of its own, or raise the limit."
            )


def undone(operations: Sequence[Operation[Any]]) -> frozenset[int]:
    """The indexes of those that are not done."""
    return frozenset(each.index for each in operations if not each.done)


def check_all(operations: Sequence[Any]) -> None:
    """Raise ContextError unless all are operations."""
    for each in operations:
        if not isinstance(each, Operation):
            raise ContextError(
                f"{type(each).__name__} is not an operation of the context, which alone are "
                "waited for together; do other work in a run."
            )


def where() -> str:
    """The line of the handler that is being executed."""
    at = sys._getframe(1)  # noqa: SLF001 - the traceback module is slow
    while at.f_back is not None and at.f_globals.get("__name__", "").startswith(_HERE):
        at = at.f_back
    return f"{at.f_code.co_filename}, line {at.f_lineno}"
