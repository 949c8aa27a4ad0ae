"""The journal of one attempt: takes the handler's entries, returns results and bytes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from durable_invocations.journal import handler_events as events
from durable_invocations.journal import handler_side, handler_state
from durable_invocations.protocol.failures import ErrorReport
from durable_invocations.protocol.frames import Frame, encode
from durable_invocations.protocol.results import Result
from durable_invocations.serving.attempts.counting import RunCounter
from durable_invocations.serving.attempts.operations import Operation


class Journaling:
    """Drives the pure state machine: keeps recorded entries, results and pending output.

    `wake` is called for bytes to send and at the end; `execute` begins a run that is not recorded.
    """

    start: Any = None
    """The StartMessage, once it has arrived."""
    counter: RunCounter | None = None
    """The failed executions of runs, once the StartMessage has arrived."""

    def __init__(
        self, version: int, *, wake: Callable[[], None], execute: Callable[[int], None]
    ) -> None:
        self.ready = False
        """Whether the replay is complete."""
        self.closed: events.Close | None = None
        self.recorded: deque[Frame] = deque()
        """Entries that are still to be replayed."""
        self.issued = 0
        self.results: dict[int, Result] = {}
        """Results that arrived before their entry was issued, or wait for an ack."""
        self.waiter: asyncio.Future[None] | None = None
        """The future of the next result, while the handler waits."""
        self._wake = wake
        self._execute = execute
        self._machine = handler_state.HandlerState(version=version)
        self._operations: dict[int, Operation[Any]] = {}
        self._order = 0
        self._output: list[bytes] = []
        self._handlers: Mapping[type, Callable[[Any], None]] = {
            events.Started: self._handle_started,
            events.Recorded: self._handle_recorded,
            events.Ready: self._handle_ready,
            events.Send: self._handle_send,
            events.Execute: self._handle_execute,
            events.Resolve: self._handle_resolve,
            events.Acknowledged: self._handle_acknowledged,
            events.Close: self._handle_close,
        }

    def step(self, event: events.InEvent) -> None:
        """Pass an event to the state machine, and apply its effects."""
        self._machine, out = handler_side.step(self._machine, event)
        for output in out:
            self._handlers[type(output)](output)

    def receive(self, frames: Iterable[Frame]) -> None:
        """Process frames from the runtime."""
        for frame in frames:
            self.step(events.FrameReceived(frame=frame))

    def attach_operation(self, operation: Operation[Any], result: Result | None = None) -> None:
        """Give an operation the result of the next entry: `result` once the entry is stored."""
        operation.index = self.issued
        self._operations[operation.index] = operation
        if result is not None:
            self.results[operation.index] = result

    def issue(
        self, entry: Frame, where: str, event: Callable[..., events.InEvent] = events.Issued
    ) -> int:
        """Issue an entry: match it with the recorded one, or send it; returns its index.

        Raises CancelledError if that ends the attempt.
        """
        index, self.issued = self.issued, self.issued + 1
        recorded = self.recorded.popleft() if self.recorded else None
        self.step(event(entry=entry, recorded=recorded, where=where))
        if recorded is not None and index in self.results:
            self._finish_operation(index)
        self.check_open()
        return index

    def end(self) -> None:
        """Note that the handler has issued its output."""
        self.step(events.Returned(recorded=self.recorded[0] if self.recorded else None))

    def check_open(self) -> None:
        """Raises CancelledError once the attempt has ended."""
        if self.closed is not None:
            raise asyncio.CancelledError

    def fail(self, report: ErrorReport) -> None:
        """End the attempt; the runtime tries again."""
        runs = self.counter.run_attempts if self.counter else None
        self.step(events.Failed(report=replace(report, run_attempts=runs)))

    def abort(self) -> None:
        """End the attempt without a message: the stream is gone."""
        self._handle_close(events.Close(ending=events.Ending.FAILED))

    def take_output(self) -> bytes:
        """Take the pending output."""
        output, self._output = b"".join(self._output), []
        return output

    def _handle_started(self, event: events.Started) -> None:
        self.start = event.message
        self.counter = RunCounter(event.message, event.run_attempts)

    def _handle_recorded(self, event: events.Recorded) -> None:
        self.recorded.append(event.entry)

    def _handle_ready(self, _: events.Ready) -> None:
        self.ready = True

    def _handle_send(self, event: events.Send) -> None:
        self._output.append(encode(event.frame))
        self._wake()

    def _handle_execute(self, event: events.Execute) -> None:
        self._execute(event.index)

    def _handle_resolve(self, event: events.Resolve) -> None:
        self.results[event.index] = event.result
        if event.index < self.issued:
            self._finish_operation(event.index)

    def _handle_acknowledged(self, event: events.Acknowledged) -> None:
        if event.index in self.results:
            self._finish_operation(event.index)

    def _finish_operation(self, index: int) -> None:
        result = self.results.pop(index)
        operation = self._operations.pop(index, None)
        if operation is not None:
            self._order += 1
            operation.finish(result, self._order)
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    def _handle_close(self, event: events.Close) -> None:
        if self.closed is None:
            self.closed = event
            self._wake()
