"""The runtime: claims invocations that are due, drives them, and tells who waits."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, Self, TypeVar

import anyio

from durable_invocations.errors import UnavailableError
from durable_invocations.protocol.results import Result
from durable_invocations.runtime.claims import Claims
from durable_invocations.runtime.driving.course import take_error
from durable_invocations.runtime.driving.drives import Drives
from durable_invocations.runtime.driving.tools import Tools
from durable_invocations.runtime.http.client import HttpClient
from durable_invocations.runtime.http.discovery import discovered
from durable_invocations.runtime.owners import Watch
from durable_invocations.runtime.registering import registered
from durable_invocations.runtime.settings import AFTER_ERROR_SECONDS, Settings
from durable_invocations.runtime.sql.store import SqlStore
from durable_invocations.runtime.store import operations as op
from durable_invocations.runtime.store.deployments import Deployment, Service
from durable_invocations.runtime.store.outcomes import Changes, Refused, Registered
from durable_invocations.runtime.timers import Clock, Due, SteadyClock
from durable_invocations.runtime.waiting import Waiting
from durable_invocations.runtime.writer import Writer

T = TypeVar("T")

TEND_SECONDS = 0.05

logger = logging.getLogger(__name__)


class Runtime:
    """Drives the invocations of a store, beside other runtimes on the same one.

    `async with` runs it in the current event loop. Raises UnavailableError where its database does
    not answer at the start; later it goes on when the database does.
    """

    def __init__(
        self,
        store: SqlStore,
        settings: Settings | None = None,
        *,
        clock: Clock | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.store = store
        self._settings = settings or Settings()
        self._clock: Clock = clock or SteadyClock(monotonic=monotonic)
        self._monotonic = monotonic

    async def __aenter__(self) -> Self:
        self._earlier = asyncio.Event()
        self._due, self._waiting = Due(), Waiting()
        self.store.owner = self._settings.owner
        self._watch = Watch(owner=self._settings.owner, silent=self._settings.silent)
        self._client = HttpClient(trusted=self._settings.trusted)
        self._writer = Writer(self.store, self._changed, patience=self._settings.patience)
        self._claims = Claims(self._settings.owner, self._put)
        self._drives = Drives(self._tools(), self._claims.freed)
        self._tasks: list[asyncio.Future[None]] = []
        await self._writer.__aenter__()
        try:
            await self.do(op.Beat(owner=self._settings.owner))
        except BaseException:
            await self._writer.__aexit__()
            raise
        self._claims.drive(self._drives)
        loops = (self._fires, self._polls, self._beats, self._tends, self._prunes)
        self._tasks = [asyncio.ensure_future(_for_ever(each)) for each in loops]
        return self

    async def __aexit__(self, *_: object) -> None:
        """Break off what is driven, and leave it to others."""
        self._claims.stop()
        for each in self._tasks:
            each.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._drives.close()
        await self._client.close()
        released = self._put(op.Release(owner=self._settings.owner))
        # It waits for no database that is away: what is asked for is tried once more.
        await self._writer.__aexit__()
        try:
            await released
        except UnavailableError as missing:
            logger.warning("others take this runtime's invocations over later: %s", missing)

    # What others ask.

    async def do(self, operation: op.Operation[T]) -> T:
        """An operation's outcome, once it is durable. Raises UnavailableError."""
        return await self._put(operation)

    async def read(self, question: Callable[..., T], *arguments: Any) -> T:
        """What the store answers, without blocking the loop. Raises UnavailableError."""
        return await self._writer.read(question, *arguments)

    async def ended(self, id_: str) -> Result | None:
        """Wait for an invocation's end, whichever runtime brings it; None if it is unknown.

        Also if it ended, and was forgotten before this runtime looked for it.
        """
        with self._waiting.future(id_) as future:
            if not future.done():
                found = await self.read(self.store.results, [id_])
                if id_ not in found:
                    return None
                self._waiting.ended({each: one for each, one in found.items() if one is not None})
            return await future

    async def discover(
        self, url: str, *, http: int | None = None
    ) -> tuple[Deployment, tuple[Service, ...]]:
        """What is served at an address, for a Register.

        Raises ConfigError, DiscoveryError, DeploymentUnreachableError.
        """
        return registered(await discovered(self._client, url, http=http))

    async def register(
        self, url: str, *, force: bool = False, http: int | None = None
    ) -> Registered | Refused:
        """Discover what is served at an address, and have it served from there."""
        deployment, services = await self.discover(url, http=http)
        return await self.do(op.Register(deployment=deployment, services=services, force=force))

    # What the store tells.

    def _changed(self, changes: Changes) -> None:
        """After each transaction, in their order."""
        if changes.ready:
            self._claims.wanted()
        if self._due.heard(changes.next_at):
            self._earlier.set()
        self._waiting.ended(changes.ended)
        self._drives.told(changes.news)
        if changes.uncertain:
            self._release()
            self._drives.ask_to_suspend()

    def _release(self) -> None:
        owner = self._settings.owner
        self._put(op.Release(owner=owner, held=self._drives.held)).add_done_callback(take_error)

    # What goes on for ever.

    async def _fires(self) -> None:
        wait = self._due.wait(self._clock())
        if wait != 0:
            self._earlier.clear()
            await _within(self._earlier.wait(), wait)
            return
        self._due.taken()
        fired = await self.do(op.Fire(now=self._clock()))
        self._due.heard(fired.next_at)

    async def _polls(self) -> None:
        await asyncio.sleep(self._settings.poll)
        look = await self.read(self.store.look, self._settings.owner, self._waiting.watched())
        self._changed(Changes(ready=look.ready, next_at=look.next_at, ended=look.ended))
        self._waiting.gone(look.gone)
        if look.news:
            self._drives.told(await self.do(op.TakeNews(owner=self._settings.owner)))

    async def _beats(self) -> None:
        await self.do(op.Beat(owner=self._settings.owner))
        beats = await self.read(self.store.beats)
        dead = self._watch.dead(beats, self._monotonic())
        if dead:
            count = await self.do(op.Recover(beats=dead))
            if count:
                plural = "s" * (count != 1)
                logger.warning("took over %s invocation%s of dead runtimes", count, plural)
        await asyncio.sleep(self._settings.beat)

    async def _tends(self) -> None:
        await asyncio.sleep(TEND_SECONDS)
        self._drives.tend(crowded=self._claims.crowded)

    async def _prunes(self) -> None:
        while await self.do(op.Prune(now=self._clock())) == op.Prune.most:
            pass
        await asyncio.sleep(self._settings.prune)

    def _put(self, operation: op.Operation[T]) -> asyncio.Future[T]:
        """Queue an operation; whatever fails, the future tells."""
        try:
            future = self._writer.do(operation)
        except UnavailableError as error:
            future = asyncio.get_running_loop().create_future()
            future.set_exception(error)
        else:
            self._claims.behind(operation)
        return future

    def _tools(self) -> Tools:
        return Tools(
            client=self._client,
            put=self._put,
            settings=self._settings,
            clock=self._clock,
            monotonic=self._monotonic,
        )


async def _for_ever(step: Callable[[], Awaitable[None]]) -> None:
    while True:
        try:
            await step()
        except UnavailableError as error:
            logger.warning("the runtime waits for its database: %s", error)
            await asyncio.sleep(AFTER_ERROR_SECONDS)
        except Exception:
            logger.exception("the runtime met an error, and goes on")
            await asyncio.sleep(AFTER_ERROR_SECONDS)


async def _within(waited: Awaitable[Any], seconds: float | None) -> None:
    with anyio.move_on_after(seconds):
        await waited
