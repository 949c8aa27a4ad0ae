"""The running attempts of this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from functools import partial

from durable_invocations.runtime.driving.attempts import AttemptDriver
from durable_invocations.runtime.driving.places import Places
from durable_invocations.runtime.driving.shared_services import AttemptContext
from durable_invocations.runtime.store.outcomes import Claimed, News


class AttemptPool:
    """Runs attempts, each as a task; `freed` is called when one has ended.

    Belongs to one event loop.
    """

    def __init__(self, context: AttemptContext, freed: Callable[[], None]) -> None:
        self._context, self._freed = context, freed
        self._attempts: dict[str, AttemptDriver] = {}
        self._tasks: dict[AttemptDriver, asyncio.Task[None]] = {}
        self._places = Places(context.settings.most)

    @property
    def free(self) -> int:
        """How many more may begin, on any deployments except the full ones."""
        return self._places.free

    @property
    def full(self) -> Collection[str]:
        """The deployments that may begin no more attempts."""
        return self._places.full

    @property
    def driven(self) -> Collection[tuple[str, int]]:
        """The driven invocations, each with the fence of its claim."""
        return tuple((attempt.claimed.id, attempt.claimed.fence) for attempt in self._tasks)

    def start(self, claimed: Iterable[Claimed]) -> None:
        """Drive claimed invocations; older attempts of them are over already."""
        for invocation in claimed:
            attempt = AttemptDriver(invocation, self._context)
            task = asyncio.ensure_future(attempt.run())
            self._attempts[invocation.id] = attempt
            self._tasks[attempt] = task
            self._places.take(invocation.deployment.id)
            task.add_done_callback(partial(self._handle_ended, attempt))

    def handle_news(self, news: Iterable[News]) -> None:
        """Pass on what happened to invocations."""
        for change in news:
            attempt = self._attempts.get(change.id)
            if attempt is not None:
                attempt.handle_news(change)

    def ask_to_suspend(self) -> None:
        """Ask waiting attempts to suspend, so that they restart with all that is stored."""
        for attempt in self._tasks:
            attempt.ask_to_suspend()

    def enforce_timeouts(self, *, crowded: bool) -> None:
        """Enforce timeouts; if invocations wait for a place, make idle attempts leave."""
        now = self._context.monotonic()
        for attempt in list(self._tasks):
            attempt.enforce_timeouts(now)
            if crowded and attempt.get_idle_seconds(now) > self._context.settings.yield_after:
                attempt.make_room()

    async def close(self) -> None:
        """Cancel every attempt."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _handle_ended(self, attempt: AttemptDriver, _task: asyncio.Task[None]) -> None:
        del self._tasks[attempt]
        self._places.leave(attempt.claimed.deployment.id)
        if self._attempts.get(attempt.claimed.id) is attempt:
            del self._attempts[attempt.claimed.id]
        self._freed()
