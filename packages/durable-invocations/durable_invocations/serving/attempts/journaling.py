"""The journal of one attempt: what the handler issues goes in, results and bytes come out."""

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
    """Drives the pure machine: keeps the recorded entries, the results and what is to be sent.

    `wake` is told of bytes to send and of the end; `execute` begins a run that is not recorded.
    """

    start: Any = None
    """The StartMessage, once it came."""
    counter: RunCounter | None = None
    """The failed executions of runs, once it came."""

    def __init__(
        self, version: int, *, wake: Callable[[], None], execute: Callable[[int], None]
    ) -> None:
        self.ready = False
        """Whether the whole replay is there."""
        self.closed: events.Close | None = None
        self.recorded: deque[Frame] = deque()
        """What is to be replayed still."""
        self.issued = 0
        self.results: dict[int, Result] = {}
        """Results that came before their entry was issued, or wait for an acknowledgement."""
        self.waiter: asyncio.Future[None] | None = None
        """What the handler waits with until the next result."""
        self._wake = wake
        self._execute = execute
        self._machine = handler_state.Attempt(version=version)
        self._operations: dict[int, Operation[Any]] = {}
        self._order = 0
        self._output: list[bytes] = []
        self._on: Mapping[type, Callable[[Any], None]] = {
            events.Started: self._started,
            events.Recorded: self._recorded,
            events.Ready: self._is_ready,
            events.Send: self._send,
            events.Execute: self._executes,
            events.Resolve: self._resolve,
            events.Acknowledged: self._acknowledged,
            events.Close: self._close,
        }

    def step(self, event: events.InEvent) -> None:
        """Let the machine take an event, and do what follows."""
        self._machine, out = handler_side.step(self._machine, event)
        for each in out:
            self._on[type(each)](each)

    def receive(self, frames: Iterable[Frame]) -> None:
        """Take what the runtime sent."""
        for each in frames:
            self.step(events.Received(frame=each))

    def expect(self, operation: Operation[Any], result: Result | None = None) -> None:
        """Let an operation have the result of the next entry: `result` once that is stored."""
        operation.index = self.issued
        self._operations[operation.index] = operation
        if result is not None:
            self.results[operation.index] = result

    def enter(
        self, entry: Frame, where: str, event: Callable[..., events.InEvent] = events.Issued
    ) -> int:
        """Issue an entry: match it with the recorded one, or have it sent; its index.

        Raises CancelledError when the attempt ends with it.
        """
        index, self.issued = self.issued, self.issued + 1
        recorded = self.recorded.popleft() if self.recorded else None
        self.step(event(entry=entry, recorded=recorded, where=where))
        if recorded is not None and index in self.results:
            self._done(index)
        self.check_open()
        return index

    def end(self) -> None:
        """The handler has issued its output."""
        self.step(events.Returned(recorded=self.recorded[0] if self.recorded else None))

    def check_open(self) -> None:
        """Raises CancelledError once the attempt has ended."""
        if self.closed is not None:
            raise asyncio.CancelledError

    def fail(self, report: ErrorReport) -> None:
        """End the attempt; the runtime tries again."""
        runs = self.counter.run_attempts if self.counter else None
        self.step(events.Failed(report=replace(report, run_attempts=runs)))

    def abandon(self) -> None:
        """End the attempt without a word: the stream is gone."""
        self._close(events.Close(ending=events.Ending.FAILED))

    def taken(self) -> bytes:
        """What is to be sent now."""
        output, self._output = b"".join(self._output), []
        return output

    def _started(self, event: events.Started) -> None:
        self.start = event.message
        self.counter = RunCounter(event.message, event.run_attempts)

    def _recorded(self, event: events.Recorded) -> None:
        self.recorded.append(event.entry)

    def _is_ready(self, _: events.Ready) -> None:
        self.ready = True

    def _send(self, event: events.Send) -> None:
        self._output.append(encode(event.frame))
        self._wake()

    def _executes(self, event: events.Execute) -> None:
        self._execute(event.index)

    def _resolve(self, event: events.Resolve) -> None:
        self.results[event.index] = event.result
        if event.index < self.issued:
            self._done(event.index)

    def _acknowledged(self, event: events.Acknowledged) -> None:
        if event.index in self.results:
            self._done(event.index)

    def _done(self, index: int) -> None:
        result = self.results.pop(index)
        operation = self._operations.pop(index, None)
        if operation is not None:
            self._order += 1
            operation.finish(result, self._order)
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    def _close(self, event: events.Close) -> None:
        if self.closed is None:
            self.closed = event
            self._wake()
