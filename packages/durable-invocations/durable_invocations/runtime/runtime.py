"""The runtime: claims due invocations, drives them, and notifies those who wait."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, Self, TypeVar

import anyio

from durable_invocations.errors import UnavailableError
from durable_invocations.protocol.results import Result
from durable_invocations.runtime.claims import Claimer
from durable_invocations.runtime.driving.attempt_effects import take_error
from durable_invocations.runtime.driving.drives import AttemptPool
from durable_invocations.runtime.driving.shared_services import AttemptContext
from durable_invocations.runtime.http.client import HttpClient
from durable_invocations.runtime.http.discovery import discover_deployment
from durable_invocations.runtime.owners import LivenessWatch
from durable_invocations.runtime.registering import convert_discovered
from durable_invocations.runtime.settings import AFTER_ERROR_SECONDS, RuntimeSettings
from durable_invocations.runtime.sql.store import SqlStore
from durable_invocations.runtime.store import operations as op
from durable_invocations.runtime.store.deployments import Deployment, RegisteredService
from durable_invocations.runtime.store.outcomes import Changes, OperationRefusal, Registered
from durable_invocations.runtime.timers import Clock, Due, SteadyClock
from durable_invocations.runtime.waiting import ResultFutures
from durable_invocations.runtime.writer import Writer

T = TypeVar("T")

TEND_SECONDS = 0.05

logger = logging.getLogger(__name__)


class Runtime:
    """Drives the invocations of a store, beside other runtimes on the same one.

    `async with` runs it in the current event loop. Raises UnavailableError if its database does
    not answer at the start; later it waits for the database.
    """

    def __init__(
        self,
        store: SqlStore,
        settings: RuntimeSettings | None = None,
        *,
        clock: Clock | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.store = store
        self._settings = settings or RuntimeSettings()
        self._clock: Clock = clock or SteadyClock(monotonic=monotonic)
        self._monotonic = monotonic

    async def __aenter__(self) -> Self:
        self._earlier = asyncio.Event()
        self._due, self._waiting = Due(), ResultFutures()
        self.store.owner = self._settings.owner
        self._watch = LivenessWatch(owner=self._settings.owner, silent=self._settings.silent)
        self._client = HttpClient(trusted=self._settings.trusted)
        self._writer = Writer(self.store, self._handle_changes, patience=self._settings.patience)
        self._claims = Claimer(self._settings.owner, self._put_operation)
        self._attempts = AttemptPool(self._build_attempt_context(), self._claims.note_freed)
        self._tasks: list[asyncio.Future[None]] = []
        await self._writer.__aenter__()
        try:
            await self.do(op.Beat(owner=self._settings.owner))
        except BaseException:
            await self._writer.__aexit__()
            raise
        self._claims.drive(self._attempts)
        loops = (
            self._trigger_timers,
            self._poll_store,
            self._watch_runtimes,
            self._enforce_timeouts,
            self._prune_invocations,
        )
        self._tasks = [asyncio.ensure_future(_repeat_forever(loop)) for loop in loops]
        return self

    async def __aexit__(self, *_: object) -> None:
        """Abort running attempts, and release their invocations."""
        self._claims.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._attempts.close()
        await self._client.close()
        released = self._put_operation(op.Release(owner=self._settings.owner))
        # It does not wait for the database: pending operations are tried once more.
        await self._writer.__aexit__()
        try:
            await released
        except UnavailableError as missing:
            logger.warning("others take this runtime's invocations over later: %s", missing)

    # For callers.

    async def do(self, operation: op.StoreOperation[T]) -> T:
        """An operation's outcome, once it is durable. Raises UnavailableError."""
        return await self._put_operation(operation)

    async def read(self, question: Callable[..., T], *arguments: Any) -> T:
        """The store's answer, without blocking the loop. Raises UnavailableError."""
        return await self._writer.read(question, *arguments)

    async def wait_for_result(self, id_: str) -> Result | None:
        """Wait for an invocation to end, on whichever runtime; None if it is unknown.

        Also None if it was deleted after its end before this runtime saw it.
        """
        with self._waiting.open_future(id_) as future:
            if not future.done():
                results = await self.read(self.store.read_results, [id_])
                if id_ not in results:
                    return None
                self._waiting.set_results(
                    {
                        invocation_id: result
                        for invocation_id, result in results.items()
                        if result is not None
                    }
                )
            return await future

    async def discover(
        self, url: str, *, http: int | None = None
    ) -> tuple[Deployment, tuple[RegisteredService, ...]]:
        """What an address serves, for a Register.

        Raises ConfigError, DiscoveryError, DeploymentUnreachableError.
        """
        return convert_discovered(await discover_deployment(self._client, url, http=http))

    async def register(
        self, url: str, *, force: bool = False, http: int | None = None
    ) -> Registered | OperationRefusal:
        """Discover what an address serves, and register it."""
        deployment, services = await self.discover(url, http=http)
        return await self.do(op.Register(deployment=deployment, services=services, force=force))

    # Called after changes in the store.

    def _handle_changes(self, changes: Changes) -> None:
        """Called after each transaction, in order."""
        if changes.ready:
            self._claims.request_claim()
        if self._due.note_due(changes.next_at):
            self._earlier.set()
        self._waiting.set_results(changes.ended)
        self._attempts.handle_news(changes.news)
        if changes.uncertain:
            self._release_lost()
            self._attempts.ask_to_suspend()

    def _release_lost(self) -> None:
        owner = self._settings.owner
        self._put_operation(
            op.Release(owner=owner, driven=self._attempts.driven)
        ).add_done_callback(take_error)

    # Loops.

    async def _trigger_timers(self) -> None:
        wait = self._due.compute_wait(self._clock())
        if wait != 0:
            self._earlier.clear()
            await _wait_within(self._earlier.wait(), wait)
            return
        self._due.reset()
        fired = await self.do(op.Fire(now=self._clock()))
        self._due.note_due(fired.next_at)

    async def _poll_store(self) -> None:
        await asyncio.sleep(self._settings.poll)
        look = await self.read(self.store.look, self._settings.owner, self._waiting.list_watched())
        self._handle_changes(Changes(ready=look.ready, next_at=look.next_at, ended=look.ended))
        self._waiting.set_gone(look.gone)
        if look.news:
            self._attempts.handle_news(await self.do(op.TakeNews(owner=self._settings.owner)))

    async def _watch_runtimes(self) -> None:
        await self.do(op.Beat(owner=self._settings.owner))
        beats = await self.read(self.store.read_beats)
        dead = self._watch.find_dead(beats, self._monotonic())
        if dead:
            count = await self.do(op.Recover(beats=dead))
            if count:
                plural = "s" * (count != 1)
                logger.warning("took over %s invocation%s of dead runtimes", count, plural)
        await asyncio.sleep(self._settings.beat)

    async def _enforce_timeouts(self) -> None:
        await asyncio.sleep(TEND_SECONDS)
        self._attempts.enforce_timeouts(crowded=self._claims.crowded)

    async def _prune_invocations(self) -> None:
        while await self.do(op.Prune(now=self._clock())) == op.Prune.most:
            pass
        await asyncio.sleep(self._settings.prune)

    def _put_operation(self, operation: op.StoreOperation[T]) -> asyncio.Future[T]:
        """Queue an operation; the future has any error."""
        try:
            future = self._writer.do(operation)
        except UnavailableError as error:
            future = asyncio.get_running_loop().create_future()
            future.set_exception(error)
        else:
            self._claims.claim_behind(operation)
        return future

    def _build_attempt_context(self) -> AttemptContext:
        return AttemptContext(
            client=self._client,
            put=self._put_operation,
            settings=self._settings,
            clock=self._clock,
            monotonic=self._monotonic,
        )


async def _repeat_forever(step: Callable[[], Awaitable[None]]) -> None:
    while True:
        try:
            await step()
        except UnavailableError as error:
            logger.warning("the runtime waits for its database: %s", error)
            await asyncio.sleep(AFTER_ERROR_SECONDS)
        except Exception:
            logger.exception("the runtime had an error, and continues")
            await asyncio.sleep(AFTER_ERROR_SECONDS)


async def _wait_within(awaitable: Awaitable[Any], seconds: float | None) -> None:
    with anyio.move_on_after(seconds):
        await awaitable
