"""The steps of a handler: each is an entry of the journal, and most are awaited."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from durable_invocations.journal.handler_events import Awaited, InEvent, Issued
from durable_invocations.protocol.frames import Frame, make_frame
from durable_invocations.protocol.results import Result
from durable_invocations.protocol.versions import NEWEST, get_needed_version
from durable_invocations.serving.attempts.journaling import Journaling
from durable_invocations.serving.attempts.operations import Operation
from durable_invocations.serving.errors import ContextError

T = TypeVar("T")
_TURN = 256
"""After so many waits, other tasks get a turn."""
_HERE = __name__.rpartition(".attempts.")[0]
_NOTHING: frozenset[int] = frozenset()


class Steps:
    """Takes the steps of the handler `called`, in one task of one event loop."""

    task: asyncio.Task[None] | None = None
    """The handler's."""

    def __init__(self, called: str, journal: Journaling, *, version: int, most: int) -> None:
        self.journal = journal
        self._called = called
        self._version = version
        self._most = most
        """How many entries the journal may have."""
        self._turns = 0

    def issue_unawaited(self, message: Any) -> int:
        """Issue an entry without a result; returns its index."""
        return self.issue(make_frame(message))

    def issue_operation(self, message: Any, parse: Callable[[Result], T]) -> Operation[T]:
        """Issue an entry with a result."""
        operation = Operation(self, parse)
        self.attach_and_issue(operation, make_frame(message))
        return operation

    def attach_and_issue(
        self,
        operation: Operation[Any],
        entry: Frame,
        event: Callable[..., InEvent] = Issued,
        result: Result | None = None,
    ) -> None:
        """Issue an entry for `operation`, which gets its result; `result` once it is stored."""
        self._check_entry(entry)
        self.journal.attach_operation(operation, result)
        self.journal.issue(entry, where(), event)

    def issue(self, entry: Frame, line: str = "") -> int:
        """Issue an entry; returns its index. `line` is the handler's if not the calling one."""
        self._check_entry(entry)
        return self.journal.issue(entry, line or where())

    async def wait_operation(self, operation: Operation[Any]) -> None:
        """Wait until an operation is done."""
        await self.wait(lambda: list_undone((operation,)))

    async def wait_all(self, operations: Sequence[Operation[Any]]) -> None:
        """Wait until all are done."""
        check_all(operations)
        await self.wait(lambda: list_undone(operations))

    async def wait(self, list_pending: Callable[[], frozenset[int]]) -> None:
        """Wait until `list_pending` returns no indexes."""
        self.check_use()
        self._turns += 1
        if self._turns % _TURN == 0:
            await asyncio.sleep(0)
        while indexes := list_pending():
            self.journal.step(Awaited(indexes=indexes))
            self.journal.check_open()
            self.journal.waiter = asyncio.get_running_loop().create_future()
            try:
                await self.journal.waiter
            except asyncio.CancelledError:
                self.journal.step(Awaited(indexes=_NOTHING))
                raise

    def check_use(self) -> None:
        """Raise unless the handler's own task calls, while its attempt runs."""
        self.journal.check_open()
        try:
            current = asyncio.current_task()
        except RuntimeError:
            current = None
        if current is not self.task:
            raise ContextError(
                f"{self._called} uses its context in another task or thread, or in a run, "
                "where the order of its steps is not in the journal; use it in the handler "
                "itself, with gather() or select() for several operations."
            )

    def _check_entry(self, entry: Frame) -> None:
        self.check_use()
        if self._version < NEWEST and get_needed_version(entry) > self._version:
            raise ContextError(
                f"{entry.kind} needs version {get_needed_version(entry)} of the protocol, and the "
                f"runtime speaks version {self._version}; use another runtime, or do without."
            )
        if self.journal.issued >= self._most:
            raise ContextError(
                f"The journal has {self.journal.issued} entries, and no more are allowed; move the "
                "rest of the work to another invocation, or raise the limit."
            )


def list_undone(operations: Sequence[Operation[Any]]) -> frozenset[int]:
    """The indexes of the operations that are not done."""
    return frozenset(operation.index for operation in operations if not operation.done)


def check_all(operations: Sequence[Any]) -> None:
    """Raise ContextError unless all are operations."""
    for operation in operations:
        if not isinstance(operation, Operation):
            raise ContextError(
                f"{type(operation).__name__} is not an operation of the context; only these can "
                "be awaited together. Do other work in a run."
            )


def where() -> str:
    """The line of the handler that is being executed."""
    caller = sys._getframe(1)  # noqa: SLF001 - the traceback module is slow
    while caller.f_back is not None and caller.f_globals.get("__name__", "").startswith(_HERE):
        caller = caller.f_back
    return f"{caller.f_code.co_filename}, line {caller.f_lineno}"
