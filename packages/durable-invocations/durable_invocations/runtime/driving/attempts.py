"""One attempt of an invocation: its stream, from the request to the end of the response."""

from __future__ import annotations

import asyncio
import logging

from durable_invocations.journal import runtime_events as events
from durable_invocations.protocol import versions
from durable_invocations.protocol.decoding import Decoder
from durable_invocations.protocol.failures import ErrorReport, ProtocolError
from durable_invocations.protocol.frames import Frame
from durable_invocations.protocol.services import Mode
from durable_invocations.runtime.driving.attempt_effects import AttemptProgress
from durable_invocations.runtime.driving.opening import build_opening
from durable_invocations.runtime.driving.outgoing import PIECE, Outgoing
from durable_invocations.runtime.driving.shared_services import AttemptContext
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
"""Exchanges tried for one attempt if connections close before the request is read."""
LINGER_SECONDS = 1.0
"""How long a stream may stay open after its last message, as some SDKs leave it."""
_OK, _NOT_FOUND = 200, 404
_GONE = " Serve the handler there again, or kill the invocation."
_EXCERPT = 200

logger = logging.getLogger(__name__)


class UnfitAnswerError(DeploymentUnreachableError):
    """A service deployment's answer is not a service endpoint's for this handler."""

    code = 1_123


class AttemptDriver:
    """Drives a claimed invocation until it ends, suspends, fails or is taken over.

    Belongs to one event loop.
    """

    def __init__(self, claimed: Claimed, context: AttemptContext) -> None:
        self.claimed, self._context = claimed, context
        self._version = min(versions.NEWEST, claimed.deployment.versions[1])
        self._duplex = claimed.deployment.mode is Mode.FULL_DUPLEX
        self._progress = AttemptProgress(
            claimed,
            context,
            version=self._version,
            duplex=self._duplex,
            notify=self._send_frame,
            abort=self._abort_exchange,
        )
        self._outgoing = Outgoing(self._handle_replayed)
        self._exchange: Exchange | None = None
        self._heard = context.monotonic()
        self._pieces = 0
        """Bytes of an incomplete message since the last sign of life."""

    async def run(self) -> None:
        """Return once the store knows how the attempt ended, or another runtime drives it."""
        try:
            await self._run_exchanges()
        except ProtocolError as error:
            self._progress.handle_broken(ErrorReport.of(error, self._progress.length))
        except DeploymentUnreachableError as error:
            self._progress.handle_broken(ErrorReport(message=str(error)))
        except asyncio.CancelledError:
            self._progress.drop("the runtime stops")
            raise
        except Exception as error:
            # Else the invocation would count as driven while this runtime lives.
            logger.exception("%s: its attempt failed unexpectedly", self.claimed.id)
            self._progress.handle_broken(ErrorReport(message=f"{type(error).__name__}: {error}"))
        await self._progress.wait_until_over()

    def handle_news(self, news: News) -> None:
        """Handle a completed entry, or the end or pause of the invocation by others."""
        if news.fence != self.claimed.fence:
            return
        if news.index is None or news.result is None:
            self._progress.drop("somebody else ended or paused the invocation")
        else:
            self._progress.step(events.CompletionReady(index=news.index, result=news.result))

    def get_idle_seconds(self, now: float) -> float:
        """Seconds since the last message of either side; 0 while entries are being stored."""
        return 0.0 if self._progress.storing else now - self._heard

    def ask_to_suspend(self) -> None:
        """Close the request: a waiting handler then suspends. Idempotent."""
        self._outgoing.end()

    def make_room(self) -> None:
        """Suspend if the handler can, so that others may begin; abort a stream that is over."""
        if self._progress.ending:
            self._abort_exchange("it stayed open after its last message")
        else:
            self.ask_to_suspend()

    def enforce_timeouts(self, now: float) -> None:
        """Enforce the attempt's timeouts."""
        idle, settings = self.get_idle_seconds(now), self._context.settings
        if self._progress.ending:
            if idle > LINGER_SECONDS:
                self._abort_exchange("it stayed open after its last message")
        elif idle > settings.inactivity + settings.abort:
            message = (
                f"{Address.parse(self.claimed.deployment.url)} sent no message for {idle:.0f} s."
            )
            self._progress.handle_broken(ErrorReport(message=message))
            self._abort_exchange(message)
        elif idle > settings.inactivity:
            self.ask_to_suspend()

    async def _run_exchanges(self) -> None:
        for retries_left in reversed(range(STALE_TRIES)):
            try:
                await self._run_exchange()
            except StaleError:
                if not retries_left:
                    raise
            else:
                return

    async def _run_exchange(self) -> None:
        claimed, context = self.claimed, self._context
        self._outgoing.begin(build_opening(claimed, version=self._version, now=context.clock()))
        address = Address.parse(claimed.deployment.url)
        exchange = await context.client.open(
            address, self._build_request(), claimed.deployment.http
        )
        self._exchange = exchange
        try:
            if self._progress.ending:
                return
            if self._duplex:
                await self._run_duplex(exchange)
            else:
                await self._outgoing.run_whole(exchange)
                await self._receive_frames(exchange)
        finally:
            await exchange.close()

    def _build_request(self) -> Request:
        kind = versions.format_content_type(self._version)
        return Request(
            method="POST",
            path=f"/invoke/{self.claimed.service}/{self.claimed.handler}",
            headers=[("content-type", kind), ("accept", kind)],
        )

    async def _run_duplex(self, exchange: Exchange) -> None:
        sending = asyncio.ensure_future(self._outgoing.run(exchange))
        try:
            await self._receive_frames(exchange)
        finally:
            sending.cancel()
            # What was received decides how the attempt ended.
            await asyncio.gather(sending, return_exceptions=True)

    async def _receive_frames(self, exchange: Exchange) -> None:
        head = await exchange.read_head()
        self._outgoing.mark_answered()
        self._heard = self._context.monotonic()
        await self._check_head(head, exchange)
        decoder = self._make_decoder()
        while data := await exchange.receive():
            frames = decoder.feed(data)
            self._note_received(len(data), complete=bool(frames))
            for frame in frames:
                self._progress.step(events.HandlerFrameReceived(frame=frame))
            if self._progress.ending:
                # Handlers wait for the end of the request before they end the response.
                self._outgoing.end()
            await self._progress.wait_for_room()
        decoder.end()
        self._progress.step(events.StreamClosed())

    def _note_received(self, size: int, *, complete: bool) -> None:
        """Note a sign of life: a message, or a large piece of one."""
        self._pieces += size
        if (complete or self._pieces >= PIECE) and not self._progress.ending:
            # Bytes after the last message do not keep the stream open.
            self._heard, self._pieces = self._context.monotonic(), 0

    async def _check_head(self, head: Head, exchange: Exchange) -> None:
        deployment = self.claimed.deployment
        where = f"{Address.parse(deployment.url)} answers {self._build_request().path}"
        if head.status != _OK:
            excerpt = (await exchange.receive())[:_EXCERPT].decode(errors="replace").strip()
            remedy = _GONE if head.status == _NOT_FOUND else ""
            raise UnfitAnswerError(f"{where} with status {head.status}: {excerpt!r}.{remedy}")
        kind = head.headers.get("content-type")
        if versions.parse_version(kind) != self._version:
            expected = versions.format_content_type(self._version)
            raise UnfitAnswerError(f"{where} with the content type {kind!r}, and not {expected}.")

    def _make_decoder(self) -> Decoder:
        journal = self.claimed.journal
        size = sum(len(frame.body) for frame in journal)
        return Decoder(self._context.settings.limits, entries=len(journal), entry_bytes=size)

    def _handle_replayed(self) -> None:
        self._progress.step(events.Replayed())

    def _send_frame(self, frame: Frame) -> None:
        self._heard = self._context.monotonic()
        self._outgoing.put(frame)

    def _abort_exchange(self, why: str) -> None:
        if self._exchange is not None:
            why = why.rstrip(".")
            self._exchange.abort(DeploymentUnreachableError(f"The stream was broken off: {why}."))
