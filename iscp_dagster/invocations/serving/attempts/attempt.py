"""One attempt of an invocation: what its handler's operations do."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from iscp_dagster.invocations.journal.handler_events import Awaited, Begun, Finished
from iscp_dagster.invocations.journal.state import EagerState
from iscp_dagster.invocations.protocol import kinds
from iscp_dagster.invocations.protocol.decoding import Limits
from iscp_dagster.invocations.protocol.failures import ErrorReport, ProtocolError
from iscp_dagster.invocations.protocol.frames import Frame, frame
from iscp_dagster.invocations.protocol.pb import protocol_pb2 as pb
from iscp_dagster.invocations.protocol.results import EMPTY, Result, put, result_of
from iscp_dagster.invocations.protocol.versions import NEWEST, needed
from iscp_dagster.invocations.serving.attempts import choices
from iscp_dagster.invocations.serving.attempts.journaling import Journaling
from iscp_dagster.invocations.serving.attempts.operations import Operation, nothing, valued
from iscp_dagster.invocations.serving.attempts.reports import report
from iscp_dagster.invocations.serving.attempts.running import Action, Tried
from iscp_dagster.invocations.serving.declared.services import Handler, ServiceKind
from iscp_dagster.invocations.serving.errors import ContextError

T = TypeVar("T")
_TURN = 256
"""After so many waits that were over at once, others have their turn."""
_HERE = __name__.rpartition(".attempts.")[0]


class Attempt:
    """The operations of one handler, in one event loop, and in one task of it."""

    def __init__(
        self,
        service: ServiceKind,
        handler: Handler,
        *,
        version: int,
        limits: Limits,
        wake: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self.service = service
        self.handler = handler
        self.clock = clock
        """The wall clock, in seconds."""
        self.journal = Journaling(version, wake=wake, execute=self._execute)
        self.task: asyncio.Task[None] | None = None
        """The handler's."""
        self.actions: set[asyncio.Task[None]] = set()
        self._version = version
        self._limits = limits
        self._turns = 0
        self._runs: dict[int, Action] = {}

    @property
    def start(self) -> Any:
        """The StartMessage."""
        return self.journal.start

    def input(self) -> Any:
        """The message of the first entry."""
        held = self.start.state_map
        self._state = EagerState(
            {each.key: each.value for each in held}, partial=self.start.partial_state
        )
        recorded = self.journal.recorded[0]
        self._enter(frame(pb.InputEntryMessage()))
        return recorded.message()

    def end(self, output: pb.OutputEntryMessage) -> None:
        """Give the invocation's result, and end it once all runs have ended."""
        self._enter(self._fitting(frame(output)), self.handler.line)
        self.journal.end()

    def record(self, message: Any) -> int:
        """Issue an entry that has no result; its index."""
        self._check()
        return self._enter(self._fitting(frame(message)))

    def operation(self, message: Any, taken: Callable[[Result], T]) -> Operation[T]:
        """Issue an entry that has a result."""
        operation = Operation(self, taken)
        self.begin(operation, message)
        return operation

    def begin(self, operation: Operation[Any], message: Any) -> None:
        """Issue an entry, whose result `operation` gets."""
        self._check()
        entry = self._fitting(frame(message))
        self.journal.expect(operation)
        self._enter(entry)

    def get_state(self, message: Any, taken: Callable[[Result], T]) -> Operation[T]:
        """Issue an entry that reads the state, with its result when that is known here."""
        keyed = isinstance(message, pb.GetStateEntryMessage)
        known = self._state.get(message.key) if keyed else self._state.keys()
        if known is not None:
            put(message, known, kinds.GET_STATE if keyed else kinds.GET_STATE_KEYS)
        return self.operation(message, taken)

    def change_state(self, message: Any) -> None:
        """Issue an entry that changes the state, also of what is known of it here."""
        self.record(message)
        if isinstance(message, pb.SetStateEntryMessage):
            self._state.set(message.key, message.value)
        elif isinstance(message, pb.ClearStateEntryMessage):
            self._state.clear(message.key)
        else:
            self._state.clear_all()

    def run(self, action: Action) -> Operation[Any]:
        """Begin a run, if it is not recorded."""
        self._check()
        operation = Operation(self, valued(action.serde))
        entry = self._fitting(frame(pb.RunEntryMessage(name=action.name), requires_ack=True))
        self.journal.expect(operation)
        self._runs[operation.index] = action
        self._enter(entry, event=Begun)
        return operation

    async def until(self, operation: Operation[Any]) -> None:
        """Wait until an operation is done."""
        await self._until(lambda: _undone((operation,)))

    async def all_of(self, operations: Sequence[Operation[Any]]) -> None:
        """Wait until all are done."""
        _check_all(operations)
        await self._until(lambda: _undone(operations))

    async def first_of(self, operations: Sequence[Operation[Any]]) -> Operation[Any]:
        """Wait until one is done, and journal which one it was."""
        _check_all(operations)
        self._check()
        if self.journal.recorded:
            return self._chosen_before(operations)
        await self._until(lambda: _undone(operations, first=True))
        chosen = min((each for each in operations if each.done), key=lambda each: each.order)
        journaled = Operation(self, nothing)
        entry = self._fitting(choices.written(chosen.index))
        self.journal.expect(journaled)
        self.journal.results[journaled.index] = EMPTY
        self._enter(entry)
        await journaled
        return chosen

    def _chosen_before(self, operations: Sequence[Operation[Any]]) -> Operation[Any]:
        recorded = self.journal.recorded[0]
        index = self._enter(choices.written())
        try:
            return choices.chosen(recorded, index, operations, _where())
        except ProtocolError as error:
            self.journal.fail(ErrorReport.of(error, index))
            raise asyncio.CancelledError from error

    def _fitting(self, entry: Frame) -> Frame:
        """The entry. Raises ContextError if it cannot be issued."""
        if self._version < NEWEST and needed(entry) > self._version:
            raise ContextError(
                f"{entry.kind} needs version {needed(entry)} of the protocol, and the runtime "
                f"speaks version {self._version}; use another runtime, or do without."
            )
        if self.journal.issued >= self._limits.journal_entries:
            raise ContextError(
                f"The journal has {self.journal.issued} entries, and no more are allowed; hand the "
                "rest of the work to an invocation of its own, or raise the limit."
            )
        return entry

    def _enter(self, entry: Frame, where: str = "", **event: Any) -> int:
        return self.journal.enter(entry, where or _where(), **event)

    def _check(self) -> None:
        """Raise unless the handler itself asks, while its attempt goes on."""
        self.journal.check_open()
        try:
            current = asyncio.current_task()
        except RuntimeError:
            current = None
        if current is not self.task:
            raise ContextError(
                f"{self.handler.called} uses its context in another task or thread, or in a run, "
                "where the order of its steps is not that of the journal; use it in the handler "
                "itself, with gather() or select() for several operations."
            )

    async def _until(self, wanted: Callable[[], frozenset[int]]) -> None:
        """Wait until there are no indexes that are waited for."""
        self._check()
        self._turns += 1
        if self._turns % _TURN == 0:
            await asyncio.sleep(0)
        while indexes := wanted():
            self.journal.step(Awaited(indexes=indexes))
            self.journal.check_open()
            self.journal.waiter = asyncio.get_running_loop().create_future()
            await self.journal.waiter

    def _execute(self, index: int) -> None:
        action = self._runs.pop(index)
        task = asyncio.get_running_loop().create_task(self._acted(index, action))
        self.actions.add(task)
        task.add_done_callback(self.actions.discard)

    async def _acted(self, index: int, action: Action) -> None:
        try:
            message = await action.done(self._tried(index), time.monotonic)
        except Exception as error:  # noqa: BLE001 - whatever a user's function raises
            self.journal.fail(report(error, index, action.name, kinds.RUN.code))
            return
        result = result_of(message)
        assert result is not None
        self.journal.results[index] = result
        self.journal.step(Finished(index=index, entry=frame(message, requires_ack=True)))

    def _tried(self, index: int) -> Tried:
        """How often it was tried, which the runtime tells of the first entry after the replay."""
        count = self.start.retry_count_since_last_stored_entry
        if index != self.start.known_entries or not count:
            return Tried()
        return Tried(count=count, seconds=self.start.duration_since_last_stored_entry / 1000)


def _undone(operations: Sequence[Operation[Any]], *, first: bool = False) -> frozenset[int]:
    if first and any(each.done for each in operations):
        return frozenset()
    return frozenset(each.index for each in operations if not each.done)


def _check_all(operations: Sequence[Any]) -> None:
    for each in operations:
        if not isinstance(each, Operation):
            raise ContextError(
                f"{type(each).__name__} is not an operation of the context, which alone are "
                "waited for together; do other work in a run."
            )


def _where() -> str:
    """The line of the handler that is being executed."""
    at = sys._getframe(1)  # noqa: SLF001 - the traceback module is slow
    while at.f_back is not None and at.f_globals.get("__name__", "").startswith(_HERE):
        at = at.f_back
    return f"{at.f_code.co_filename}, line {at.f_lineno}"
