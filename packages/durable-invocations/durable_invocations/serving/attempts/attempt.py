"""One attempt of an invocation: what its handler's operations do."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from durable_invocations.errors import DurableError
from durable_invocations.journal.handler_events import RunBegun, RunFinished
from durable_invocations.journal.state import EagerState
from durable_invocations.protocol import kinds
from durable_invocations.protocol.decoding import Limits
from durable_invocations.protocol.failures import ErrorReport, Failure, ProtocolError
from durable_invocations.protocol.frames import make_frame
from durable_invocations.protocol.pb import protocol_pb2 as pb
from durable_invocations.protocol.results import EMPTY, Result, get_result, set_result
from durable_invocations.protocol.services import ServiceKind
from durable_invocations.serving.attempts import choices
from durable_invocations.serving.attempts.journaling import Journaling
from durable_invocations.serving.attempts.operations import (
    Operation,
    ignore_result,
    make_value_parser,
)
from durable_invocations.serving.attempts.reports import make_report
from durable_invocations.serving.attempts.running import RunAction
from durable_invocations.serving.attempts.steps import Steps, check_all, list_undone, where
from durable_invocations.serving.declarations.services import DeclaredHandler

T = TypeVar("T")
LEAST_WAIT, MOST_WAIT = 0.05, 1.0
"""How long a failed run waits for other running ones, in seconds."""
logger = logging.getLogger("durable_invocations")


class HandlerAttempt(Steps):
    """The steps of one handler that need more than an entry: output, state, runs and choices."""

    def __init__(
        self,
        service: ServiceKind,
        handler: DeclaredHandler,
        *,
        version: int,
        limits: Limits,
        wake: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        journal = Journaling(version, wake=wake, execute=self._execute_run)
        super().__init__(
            handler.qualified_name, journal, version=version, most=limits.journal_entries
        )
        self.service = service
        self.handler = handler
        self.clock = clock
        """The wall clock, in seconds."""
        self.run_tasks: set[asyncio.Task[None]] = set()
        """Runs under way."""
        self._actions: dict[int, RunAction] = {}
        self._executing: dict[int, asyncio.Future[None]] = {}
        self._failing = False
        """Whether a run has failed, and others may still end before it is reported."""
        self._state = EagerState({}, partial=True)

    @property
    def start(self) -> Any:
        """The StartMessage; None before it arrives."""
        return self.journal.start

    def __str__(self) -> str:
        """Its invocation and handler, for the log."""
        started = self.start is not None
        return (
            f"{self.start.debug_id if started else 'no invocation'} ({self.handler.qualified_name})"
        )

    def log_failure(self, problem: str, error: BaseException) -> None:
        """Log why it failed, with the traceback of an error of the user's code."""
        cause = error.__cause__ if isinstance(error, DurableError) else error
        logger.warning(
            "%s: an attempt %s: %s", self, problem, make_report(error).message, exc_info=cause
        )

    def read_input(self) -> Any:
        """The message of the first entry."""
        values = {entry.key: entry.value for entry in self.start.state_map}
        self._state = EagerState(values, partial=self.start.partial_state)
        recorded = self.journal.recorded[0]
        self.issue(make_frame(pb.InputEntryMessage()))
        return recorded.message()

    def end(self, output: pb.OutputEntryMessage) -> None:
        """Issue the invocation's output, and end it once all runs have ended."""
        self.issue(make_frame(output), self.handler.line)
        self.journal.end()

    def get_state(self, message: Any, parse: Callable[[Result], T]) -> Operation[T]:
        """Issue an entry that reads the state, with its result if that is known here."""
        keyed = isinstance(message, pb.GetStateEntryMessage)
        result = self._state.get(message.key) if keyed else self._state.keys()
        if result is not None:
            set_result(message, result, kinds.GET_STATE if keyed else kinds.GET_STATE_KEYS)
        return self.issue_operation(message, parse)

    def update_state(self, message: Any) -> None:
        """Issue an entry that changes the state, and apply it to the local copy."""
        self.issue_unawaited(message)
        if isinstance(message, pb.SetStateEntryMessage):
            self._state.set(message.key, message.value)
        elif isinstance(message, pb.ClearStateEntryMessage):
            self._state.clear(message.key)
        else:
            self._state.clear_all()

    def run(self, action: RunAction) -> Operation[Any]:
        """Begin a run, if it is not recorded."""
        operation = Operation(self, make_value_parser(action.serde))
        entry = make_frame(pb.RunEntryMessage(name=action.name), requires_ack=True)
        self._actions[self.journal.issued] = action
        self.attach_and_issue(operation, entry, RunBegun)
        self._actions.pop(operation.index, None)
        return operation

    async def wait_first(self, operations: Sequence[Operation[Any]]) -> Operation[Any]:
        """Wait until one is done, and journal which."""
        check_all(operations)
        self.check_use()
        if self.journal.recorded:
            return self._replay_choice(operations)
        await self.wait(
            lambda: (
                frozenset()
                if any(operation.done for operation in operations)
                else list_undone(operations)
            )
        )
        chosen = min(
            (operation for operation in operations if operation.done),
            key=lambda operation: operation.order,
        )
        journaled = Operation(self, ignore_result)
        self.attach_and_issue(journaled, choices.make_choice_entry(chosen.index), result=EMPTY)
        await journaled
        return chosen

    def _replay_choice(self, operations: Sequence[Operation[Any]]) -> Operation[Any]:
        recorded = self.journal.recorded[0]
        index = self.issue(choices.make_choice_entry())
        try:
            return choices.find_chosen(recorded, index, operations, where())
        except ProtocolError as error:
            self.journal.fail(ErrorReport.of(error, index))
            raise asyncio.CancelledError from error

    def _execute_run(self, index: int) -> None:
        loop = asyncio.get_running_loop()
        self._executing[index] = loop.create_future()
        task = loop.create_task(self._run_action(index, self._actions[index]))
        self.run_tasks.add(task)
        task.add_done_callback(self.run_tasks.discard)

    async def _run_action(self, index: int, action: RunAction) -> None:
        """Execute a run, and journal how it ended; a cancellation ends it too."""
        counter, started_at = self.journal.counter, time.monotonic()
        assert counter is not None
        try:
            prior_tries = counter.get_failed_executions(index, action.name)
            message = await action.execute(prior_tries, time.monotonic, self)
        except (Exception, SystemExit, asyncio.CancelledError) as error:  # noqa: BLE001
            error_report = make_report(error, index, action.name, kinds.RUN.code)
            if not isinstance(error, asyncio.CancelledError):
                self.log_failure(f"failed in the run {action.name!r}", error)
                spent = time.monotonic() - started_at
                counter.add(index, action.name, spent, error_report.retry_after or 0)
            self._executing.pop(index).set_result(None)
            await self._fail_by_run(error_report)
            return
        self._executing.pop(index).set_result(None)
        result = get_result(message)
        assert result is not None
        if isinstance(result, Failure):
            counter.give_up(index, action.name, result)
        self.journal.results[index] = result
        self.journal.step(RunFinished(index=index, entry=make_frame(message, requires_ack=True)))

    async def _fail_by_run(self, error_report: ErrorReport) -> None:
        """End the attempt with the first run that failed.

        Other runs may end while the next attempt has to wait anyway: their results are stored, or
        their failures counted, so they do not run in vain.
        """
        if self._failing:
            return
        self._failing = True
        waited_ms = 0
        if self._executing and self.journal.closed is None:
            started_at = time.monotonic()
            most = min(max(LEAST_WAIT, (error_report.retry_after or 0) / 1000), MOST_WAIT)
            await asyncio.wait(list(self._executing.values()), timeout=most)
            waited_ms = round((time.monotonic() - started_at) * 1000)
        if error_report.retry_after is not None:
            error_report = replace(
                error_report, retry_after=max(0, error_report.retry_after - waited_ms)
            )
        self.journal.fail(error_report)
