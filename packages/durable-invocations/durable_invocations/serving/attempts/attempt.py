"""One attempt of an invocation: what its handler's operations do."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from durable_invocations.errors import DurableError
from durable_invocations.journal.handler_events import Begun, Finished
from durable_invocations.journal.state import EagerState
from durable_invocations.protocol import kinds
from durable_invocations.protocol.decoding import Limits
from durable_invocations.protocol.failures import ErrorReport, Failure, ProtocolError
from durable_invocations.protocol.frames import frame
from durable_invocations.protocol.pb import protocol_pb2 as pb
from durable_invocations.protocol.results import EMPTY, Result, put, result_of
from durable_invocations.protocol.services import ServiceKind
from durable_invocations.serving.attempts import choices
from durable_invocations.serving.attempts.journaling import Journaling
from durable_invocations.serving.attempts.operations import Operation, nothing, valued
from durable_invocations.serving.attempts.reports import report
from durable_invocations.serving.attempts.running import Action
from durable_invocations.serving.attempts.steps import Steps, check_all, undone, where
from durable_invocations.serving.declared.services import Handler

T = TypeVar("T")
LEAST_WAIT, MOST_WAIT = 0.05, 1.0
"""How long a run that failed waits for others that are being executed, in seconds."""
logger = logging.getLogger("durable_invocations")


class Attempt(Steps):
    """The steps of one handler that have more to them: its ends, state, runs and choices."""

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
        journal = Journaling(version, wake=wake, execute=self._execute)
        super().__init__(handler.called, journal, version=version, most=limits.journal_entries)
        self.service = service
        self.handler = handler
        self.clock = clock
        """The wall clock, in seconds."""
        self.actions: set[asyncio.Task[None]] = set()
        """Runs under way."""
        self._runs: dict[int, Action] = {}
        self._executing: dict[int, asyncio.Future[None]] = {}
        self._failing = False
        """Whether a run has failed, and others may still end before that is told."""
        self._state = EagerState({}, partial=True)

    @property
    def start(self) -> Any:
        """The StartMessage; None before it came."""
        return self.journal.start

    def __str__(self) -> str:
        """Its invocation and handler, for the log."""
        begun = self.start is not None
        return f"{self.start.debug_id if begun else 'no invocation'} ({self.handler.called})"

    def log_failure(self, how: str, error: BaseException) -> None:
        """Log why it failed, with the traceback of what is not ours."""
        at = error.__cause__ if isinstance(error, DurableError) else error
        logger.warning("%s: an attempt %s: %s", self, how, report(error).message, exc_info=at)

    def input(self) -> Any:
        """The message of the first entry."""
        held = {each.key: each.value for each in self.start.state_map}
        self._state = EagerState(held, partial=self.start.partial_state)
        recorded = self.journal.recorded[0]
        self.enter(frame(pb.InputEntryMessage()))
        return recorded.message()

    def end(self, output: pb.OutputEntryMessage) -> None:
        """Give the invocation's result, and end it once all runs have ended."""
        self.enter(frame(output), self.handler.line)
        self.journal.end()

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
        operation = Operation(self, valued(action.serde))
        entry = frame(pb.RunEntryMessage(name=action.name), requires_ack=True)
        self._runs[self.journal.issued] = action
        self.begin(operation, entry, Begun)
        self._runs.pop(operation.index, None)
        return operation

    async def first_of(self, operations: Sequence[Operation[Any]]) -> Operation[Any]:
        """Wait until one is done, and journal which one it was."""
        check_all(operations)
        self.check_use()
        if self.journal.recorded:
            return self._chosen_before(operations)
        await self.wait(
            lambda: frozenset() if any(each.done for each in operations) else undone(operations)
        )
        chosen = min((each for each in operations if each.done), key=lambda each: each.order)
        journaled = Operation(self, nothing)
        self.begin(journaled, choices.written(chosen.index), result=EMPTY)
        await journaled
        return chosen

    def _chosen_before(self, operations: Sequence[Operation[Any]]) -> Operation[Any]:
        recorded = self.journal.recorded[0]
        index = self.enter(choices.written())
        try:
            return choices.chosen(recorded, index, operations, where())
        except ProtocolError as error:
            self.journal.fail(ErrorReport.of(error, index))
            raise asyncio.CancelledError from error

    def _execute(self, index: int) -> None:
        loop = asyncio.get_running_loop()
        self._executing[index] = loop.create_future()
        task = loop.create_task(self._acted(index, self._runs[index]))
        self.actions.add(task)
        task.add_done_callback(self.actions.discard)

    async def _acted(self, index: int, action: Action) -> None:
        """Execute a run, and tell the journal how it ended; it ends also when it is canceled."""
        counter, begun = self.journal.counter, time.monotonic()
        assert counter is not None
        try:
            tried = counter.tried(index, action.name)
            message = await action.done(tried, time.monotonic, self)
        except (Exception, SystemExit, asyncio.CancelledError) as error:  # noqa: BLE001
            told = report(error, index, action.name, kinds.RUN.code)
            if not isinstance(error, asyncio.CancelledError):
                self.log_failure(f"failed in the run {action.name!r}", error)
                spent = time.monotonic() - begun
                counter.add(index, action.name, spent, told.retry_after or 0)
            self._executing.pop(index).set_result(None)
            await self._failed(told)
            return
        self._executing.pop(index).set_result(None)
        result = result_of(message)
        assert result is not None
        if isinstance(result, Failure):
            counter.give_up(index, action.name, result)
        self.journal.results[index] = result
        self.journal.step(Finished(index=index, entry=frame(message, requires_ack=True)))

    async def _failed(self, told: ErrorReport) -> None:
        """End the attempt by the first run that failed.

        Others that are being executed may end while the next attempt would have to wait anyway:
        their results are stored, or their failures counted, and they are not executed in vain.
        """
        if self._failing:
            return
        self._failing = True
        waited = 0
        if self._executing and self.journal.closed is None:
            begun = time.monotonic()
            most = min(max(LEAST_WAIT, (told.retry_after or 0) / 1000), MOST_WAIT)
            await asyncio.wait(list(self._executing.values()), timeout=most)
            waited = round((time.monotonic() - begun) * 1000)
        if told.retry_after is not None:
            told = replace(told, retry_after=max(0, told.retry_after - waited))
        self.journal.fail(told)
