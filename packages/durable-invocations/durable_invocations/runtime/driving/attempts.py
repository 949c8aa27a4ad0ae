"""One attempt at an invocation: its stream, from the request to the end of the response."""

from __future__ import annotations

import asyncio
import logging

from durable_invocations.journal import runtime_events as events
from durable_invocations.protocol import versions
from durable_invocations.protocol.decoding import Decoder
from durable_invocations.protocol.failures import ErrorReport, ProtocolError
from durable_invocations.protocol.frames import Frame
from durable_invocations.protocol.services import Mode
from durable_invocations.runtime.driving.course import Course
from durable_invocations.runtime.driving.opening import opening
from durable_invocations.runtime.driving.outgoing import PIECE, Outgoing
from durable_invocations.runtime.driving.tools import Tools
from durable_invocations.runtime.http.exchange import (
    Address,
    DeploymentUnreachableError,
    Exchange,
    Head,
    Request,
    StaleError,
)
from durable_invocations.runtime.store.outcomes import Claimed, News

STALE_TRIES = 3
"""Exchanges that are begun for one attempt where connections end before they are looked at."""
LINGER_SECONDS = 1.0
"""The longest that a stream may stay open after its last message, as some SDKs leave it."""
_OK, _NOT_FOUND = 200, 404
_GONE = " Serve the handler there again, or kill the invocation."
_EXCERPT = 200

logger = logging.getLogger(__name__)


class UnfitAnswerError(DeploymentUnreachableError):
    """A service deployment answers otherwise than a service endpoint does for this handler."""

    code = 1_123


class Attempt:
    """Drives a claimed invocation until it ends, suspends, fails or is taken away.

    Belongs to one event loop.
    """

    def __init__(self, claimed: Claimed, tools: Tools) -> None:
        self.claimed, self._tools = claimed, tools
        self._version = min(versions.NEWEST, claimed.deployment.versions[1])
        self._duplex = claimed.deployment.mode is Mode.FULL_DUPLEX
        self._course = Course(
            claimed,
            tools,
            version=self._version,
            duplex=self._duplex,
            notify=self._notify,
            abort=self._abort,
        )
        self._outgoing = Outgoing(self._replayed)
        self._exchange: Exchange | None = None
        self._heard = tools.monotonic()
        self._pieces = 0
        """Bytes of a message that is not whole, since something was heard."""

    async def run(self) -> None:
        """Return once the store knows how the attempt ended, or another one drives it."""
        try:
            await self._streamed()
        except ProtocolError as error:
            self._course.broken(ErrorReport.of(error, self._course.length))
        except DeploymentUnreachableError as error:
            self._course.broken(ErrorReport(message=str(error)))
        except asyncio.CancelledError:
            self._course.drop("the runtime stops")
            raise
        except Exception as error:
            # Else the invocation would count as driven for as long as this runtime lives.
            logger.exception("%s: its attempt broke", self.claimed.id)
            self._course.broken(ErrorReport(message=f"{type(error).__name__}: {error}"))
        await self._course.over()

    def told(self, news: News) -> None:
        """An entry was completed, or somebody else ended or paused the invocation."""
        if news.fence != self.claimed.fence:
            return
        if news.index is None or news.result is None:
            self._course.drop("somebody else ended or paused the invocation")
        else:
            self._course.step(events.CompletionReady(index=news.index, result=news.result))

    def idle(self, now: float) -> float:
        """Seconds since the last message of either side; 0 while entries are being stored."""
        return 0.0 if self._course.storing else now - self._heard

    def ask_to_suspend(self) -> None:
        """Close the request: a handler that waits suspends then. Idempotent."""
        self._outgoing.end()

    def make_room(self) -> None:
        """Suspend if the handler can, so that others may begin; break off what is over."""
        if self._course.ending:
            self._abort("it stayed open after its last message")
        else:
            self.ask_to_suspend()

    def tend(self, now: float) -> None:
        """Hold the attempt to its times."""
        idle, settings = self.idle(now), self._tools.settings
        if self._course.ending:
            if idle > LINGER_SECONDS:
                self._abort("it stayed open after its last message")
        elif idle > settings.inactivity + settings.abort:
            told = (
                f"{Address.parsed(self.claimed.deployment.url)} sent no message for {idle:.0f} s."
            )
            self._course.broken(ErrorReport(message=told))
            self._abort(told)
        elif idle > settings.inactivity:
            self.ask_to_suspend()

    async def _streamed(self) -> None:
        for rest in reversed(range(STALE_TRIES)):
            try:
                await self._exchanged()
            except StaleError:
                if not rest:
                    raise
            else:
                return

    async def _exchanged(self) -> None:
        claimed, tools = self.claimed, self._tools
        self._outgoing.begin(opening(claimed, version=self._version, now=tools.clock()))
        address = Address.parsed(claimed.deployment.url)
        exchange = await tools.client.open(address, self._request(), claimed.deployment.http)
        self._exchange = exchange
        try:
            if self._course.ending:
                return
            if self._duplex:
                await self._both_ways(exchange)
            else:
                await self._outgoing.run_whole(exchange)
                await self._received(exchange)
        finally:
            await exchange.close()

    def _request(self) -> Request:
        kind = versions.content_type(self._version)
        return Request(
            method="POST",
            path=f"/invoke/{self.claimed.service}/{self.claimed.handler}",
            headers=[("content-type", kind), ("accept", kind)],
        )

    async def _both_ways(self, exchange: Exchange) -> None:
        sending = asyncio.ensure_future(self._outgoing.run(exchange))
        try:
            await self._received(exchange)
        finally:
            sending.cancel()
            # Whatever became of it, what was received says how the attempt ended.
            await asyncio.gather(sending, return_exceptions=True)

    async def _received(self, exchange: Exchange) -> None:
        head = await exchange.head()
        self._outgoing.answered()
        self._heard = self._tools.monotonic()
        await self._check(head, exchange)
        decoder = self._decoder()
        while data := await exchange.receive():
            frames = decoder.feed(data)
            self._hear(len(data), whole=bool(frames))
            for each in frames:
                self._course.step(events.Received(frame=each))
            if self._course.ending:
                # Handlers wait for the end of the request before they end the response.
                self._outgoing.end()
            await self._course.room()
        decoder.end()
        self._course.step(events.StreamClosed())

    def _hear(self, size: int, *, whole: bool) -> None:
        """Take bytes for a sign of life: a message, or a good piece of a long one."""
        self._pieces += size
        if (whole or self._pieces >= PIECE) and not self._course.ending:
            # What comes after the last message keeps the stream no longer.
            self._heard, self._pieces = self._tools.monotonic(), 0

    async def _check(self, head: Head, exchange: Exchange) -> None:
        deployment = self.claimed.deployment
        where = f"{Address.parsed(deployment.url)} answers {self._request().path}"
        if head.status != _OK:
            said = (await exchange.receive())[:_EXCERPT].decode(errors="replace").strip()
            then = _GONE if head.status == _NOT_FOUND else ""
            raise UnfitAnswerError(f"{where} with status {head.status}: {said!r}.{then}")
        kind = head.headers.get("content-type")
        if versions.version_of(kind) != self._version:
            wanted = versions.content_type(self._version)
            raise UnfitAnswerError(f"{where} with the content type {kind!r}, and not {wanted}.")

    def _decoder(self) -> Decoder:
        journal = self.claimed.journal
        size = sum(len(each.body) for each in journal)
        return Decoder(self._tools.settings.limits, entries=len(journal), entry_bytes=size)

    def _replayed(self) -> None:
        self._course.step(events.Replayed())

    def _notify(self, frame: Frame) -> None:
        self._heard = self._tools.monotonic()
        self._outgoing.put(frame)

    def _abort(self, why: str) -> None:
        if self._exchange is not None:
            why = why.rstrip(".")
            self._exchange.abort(DeploymentUnreachableError(f"The stream was broken off: {why}."))
