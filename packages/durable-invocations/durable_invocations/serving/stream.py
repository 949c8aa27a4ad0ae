"""One stream over ASGI: receives a replay and completions, sends entries."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

import anyio

from durable_invocations.journal.handler_events import InputClosed
from durable_invocations.protocol.decoding import DEFAULT, Decoder, Limits
from durable_invocations.protocol.failures import JOURNAL_MISMATCH, ErrorReport, ProtocolError
from durable_invocations.protocol.services import ServiceKind
from durable_invocations.serving.attempts.attempt import HandlerAttempt
from durable_invocations.serving.calling import execute_handler
from durable_invocations.serving.declarations.services import DeclaredHandler

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]
logger = logging.getLogger("durable_invocations")


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of all streams of an app. Times in seconds."""

    limits: Limits = DEFAULT
    clock: Callable[[], float] = time.time
    tracebacks: bool = False
    """Whether the runtime is sent tracebacks."""
    drain: float = 60.0
    """How long the runtime may leave its side open once the attempt has ended."""
    grace: float = 5.0
    """How long a canceled handler may keep running before that is logged."""


class Stream:
    """One request to invoke a handler; its tasks end with it."""

    def __init__(
        self,
        service: ServiceKind,
        handler: DeclaredHandler,
        *,
        version: int,
        duplex: bool,
        options: Options,
        receive: Receive,
        send: Send,
    ) -> None:
        self._options = options
        self._duplex = duplex
        self._receive = receive
        self._send = send
        self._changed = asyncio.Event()
        self._decoder = Decoder(options.limits)
        self._attempt = HandlerAttempt(
            service,
            handler,
            version=version,
            limits=options.limits,
            wake=self._changed.set,
            clock=options.clock,
        )
        self._journal = self._attempt.journal
        self._open = True
        """Whether the runtime may send more."""
        self._gone = False
        """Whether the runtime hung up."""

    async def serve(self, headers: Headers) -> None:
        """Answer the request with these headers and the handler's entries."""
        while self._open and self._journal.closed is None and not self._may_answer:
            await self._take_piece()
        if not self._gone:
            await self._send_message(
                {"type": "http.response.start", "status": 200, "headers": headers}
            )
        if self._gone:
            return
        tasks = []
        try:
            if self._journal.closed is None:
                self._attempt.task = asyncio.create_task(
                    execute_handler(self._attempt, tracebacks=self._options.tracebacks)
                )
                tasks.append(self._attempt.task)
                await asyncio.sleep(0)
            if self._journal.closed is None or self._open:
                tasks.append(asyncio.create_task(self._listen()))
            await self._send_output()
        finally:
            await self._stop_tasks(tasks)
            self._log_mismatch()

    @property
    def _may_answer(self) -> bool:
        """Whether the replay is complete; over HTTP/1.1 the request must end first."""
        return self._duplex and self._journal.ready

    def _log_mismatch(self) -> None:
        """Log a journal mismatch; the handler's errors are logged where they are caught."""
        closed = self._journal.closed
        report = None if closed is None else closed.report
        if report is not None and report.code == JOURNAL_MISMATCH:
            logger.warning("%s: an attempt failed: %s", self._attempt, report.message)

    async def _take_piece(self) -> None:
        """Take the next piece of the request."""
        message = await self._receive()
        if message["type"] != "http.request" or not self._open:
            self._note_hangup()
            return
        self._open = message.get("more_body", False)
        try:
            self._journal.receive(self._decoder.feed(message.get("body", b"")))
            if not self._open:
                self._decoder.end()
        except ProtocolError as error:
            self._journal.fail(ErrorReport.of(error))
        else:
            if not self._open:
                self._journal.step(InputClosed())

    async def _listen(self) -> None:
        """Receive until the runtime has sent everything and disconnected."""
        while not self._gone:
            await self._take_piece()
            if not self._open:
                self._changed.set()

    async def _send_output(self) -> None:
        """Send output until the attempt has ended and the runtime has sent everything.

        The last piece follows the request's last one: hypercorn ends the connection, with its
        other streams, when the answer to a request ends before the request.
        """
        while self._journal.closed is None:
            await self._changed.wait()
            self._changed.clear()
            if self._journal.closed is None:
                await self._send_piece(more=True)
        if self._open:
            await self._send_piece(more=True)
            await self._drain_request()
        if not self._gone:
            await self._send_piece(more=False)

    async def _send_piece(self, *, more: bool) -> None:
        body = self._journal.take_output()
        if body or not more:
            await self._send_message(
                {"type": "http.response.body", "body": body, "more_body": more}
            )

    async def _send_message(self, message: Message) -> None:
        try:
            await self._send(message)
        except OSError:
            # A server may report a disconnect this way (ASGI 2.4).
            self._note_hangup()

    def _note_hangup(self) -> None:
        self._open, self._gone = False, True
        self._journal.abort()

    async def _drain_request(self) -> None:
        with anyio.move_on_after(self._options.drain) as scope:
            await self._wait_request_end()
        if scope.cancelled_caught:
            logger.warning(
                "%s: the runtime left the stream open for %s s after its end; it is closed",
                self._attempt,
                self._options.drain,
            )

    async def _wait_request_end(self) -> None:
        while self._open:
            self._changed.clear()
            await self._changed.wait()

    async def _stop_tasks(self, tasks: list[asyncio.Task[None]]) -> None:
        """Cancel the attempt's remaining tasks, and wait until they have ended."""
        tasks = [*tasks, *self._attempt.run_tasks]
        pending = {task for task in tasks if not task.done()}
        for task in pending:
            task.cancel()
        while pending:
            _, pending = await asyncio.wait(pending, timeout=self._options.grace)
            if pending:
                logger.error("%s is still running after it was canceled", self._attempt)
        for task in tasks:
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error
