"""One stream over ASGI: a replay comes in, entries go out, and completions come meanwhile."""

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
from durable_invocations.serving.attempts.attempt import Attempt
from durable_invocations.serving.calling import handled
from durable_invocations.serving.declared.services import Handler

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]
logger = logging.getLogger("durable_invocations")


@dataclass(frozen=True, kw_only=True)
class Options:
    """What holds for all streams of an app. Times in seconds."""

    limits: Limits = DEFAULT
    clock: Callable[[], float] = time.time
    tracebacks: bool = False
    """Whether the runtime is sent tracebacks."""
    drain: float = 60.0
    """How long the runtime may leave its side open once the attempt has ended."""
    grace: float = 5.0
    """How long a handler may go on once it is canceled, before that is logged."""


class Stream:
    """One request to invoke a handler, which ends with it; nothing of it is left behind."""

    def __init__(
        self,
        service: ServiceKind,
        handler: Handler,
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
        self._attempt = Attempt(
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
        """Answer the request with these headers, and all that the handler does."""
        while self._open and self._journal.closed is None and not self._may_answer:
            await self._take()
        if not self._gone:
            await self._say({"type": "http.response.start", "status": 200, "headers": headers})
        if self._gone:
            return
        tasks = []
        try:
            if self._journal.closed is None:
                self._attempt.task = asyncio.create_task(
                    handled(self._attempt, tracebacks=self._options.tracebacks)
                )
                tasks.append(self._attempt.task)
                await asyncio.sleep(0)
            if self._journal.closed is None or self._open:
                tasks.append(asyncio.create_task(self._listen()))
            await self._tell()
        finally:
            await self._stop(tasks)
            self._log_mismatch()

    @property
    def _may_answer(self) -> bool:
        """Whether the replay is there; over HTTP/1.1 the whole request precedes the response."""
        return self._duplex and self._journal.ready

    def _log_mismatch(self) -> None:
        """Log that the code is another; what the handler raised is logged where it is caught."""
        closed = self._journal.closed
        report = None if closed is None else closed.report
        if report is not None and report.code == JOURNAL_MISMATCH:
            logger.warning("%s: an attempt failed: %s", self._attempt, report.message)

    async def _take(self) -> None:
        """Take the next piece of the request."""
        message = await self._receive()
        if message["type"] != "http.request" or not self._open:
            self._hung_up()
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
        """Take what comes until the runtime has said all, and hung up when it does that."""
        while not self._gone:
            await self._take()
            if not self._open:
                self._changed.set()

    async def _tell(self) -> None:
        """Send what there is until the attempt has ended, and the runtime has said all.

        The last piece goes after the request's last one: hypercorn ends the connection, with its
        other streams, when the answer to a request ends before the request.
        """
        while self._journal.closed is None:
            await self._changed.wait()
            self._changed.clear()
            if self._journal.closed is None:
                await self._put(more=True)
        if self._open:
            await self._put(more=True)
            await self._drained()
        if not self._gone:
            await self._put(more=False)

    async def _put(self, *, more: bool) -> None:
        body = self._journal.taken()
        if body or not more:
            await self._say({"type": "http.response.body", "body": body, "more_body": more})

    async def _say(self, message: Message) -> None:
        try:
            await self._send(message)
        except OSError:
            # So a server may say that the runtime hung up (ASGI 2.4).
            self._hung_up()

    def _hung_up(self) -> None:
        self._open, self._gone = False, True
        self._journal.abandon()

    async def _drained(self) -> None:
        with anyio.move_on_after(self._options.drain) as scope:
            await self._said_all()
        if scope.cancelled_caught:
            logger.warning(
                "%s: the runtime left the stream open for %s s after its end; it is closed",
                self._attempt,
                self._options.drain,
            )

    async def _said_all(self) -> None:
        while self._open:
            self._changed.clear()
            await self._changed.wait()

    async def _stop(self, tasks: list[asyncio.Task[None]]) -> None:
        """Cancel what is left of the attempt, and wait until it has ended."""
        tasks = [*tasks, *self._attempt.actions]
        left = {each for each in tasks if not each.done()}
        for each in left:
            each.cancel()
        while left:
            _, left = await asyncio.wait(left, timeout=self._options.grace)
            if left:
                logger.error("%s goes on after it was canceled", self._attempt)
        for each in tasks:
            if not each.cancelled() and (error := each.exception()) is not None:
                raise error
