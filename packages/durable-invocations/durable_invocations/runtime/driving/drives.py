"""The attempts that are under way in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from functools import partial

from durable_invocations.runtime.driving.attempts import Attempt
from durable_invocations.runtime.driving.places import Places
from durable_invocations.runtime.driving.tools import Tools
from durable_invocations.runtime.store.outcomes import Claimed, News


class Drives:
    """Runs attempts, each as a task; `freed` is called when one has ended.

    Belongs to one event loop.
    """

    def __init__(self, tools: Tools, freed: Callable[[], None]) -> None:
        self._tools, self._freed = tools, freed
        self._attempts: dict[str, Attempt] = {}
        self._tasks: dict[Attempt, asyncio.Task[None]] = {}
        self._places = Places(tools.settings.most)

    @property
    def free(self) -> int:
        """How many more may begin, whichever deployments they are of but the full ones."""
        return self._places.free

    @property
    def full(self) -> Collection[str]:
        """The deployments of which no more may begin."""
        return self._places.full

    @property
    def held(self) -> Collection[tuple[str, int]]:
        """The invocations that are driven, each with the fence of its claim."""
        return tuple((each.claimed.id, each.claimed.fence) for each in self._tasks)

    def start(self, claimed: Iterable[Claimed]) -> None:
        """Drive what was claimed; an older attempt at the same invocation is over already."""
        for each in claimed:
            attempt = Attempt(each, self._tools)
            task = asyncio.ensure_future(attempt.run())
            self._attempts[each.id] = attempt
            self._tasks[attempt] = task
            self._places.take(each.deployment.id)
            task.add_done_callback(partial(self._ended, attempt))

    def told(self, news: Iterable[News]) -> None:
        """Hand on what happened to invocations."""
        for each in news:
            attempt = self._attempts.get(each.id)
            if attempt is not None:
                attempt.told(each)

    def ask_to_suspend(self) -> None:
        """Have those that wait begin anew, with all that is stored by then."""
        for attempt in self._tasks:
            attempt.ask_to_suspend()

    def tend(self, *, crowded: bool) -> None:
        """Hold attempts to their times; where others wait for a place, have idle ones make room."""
        now = self._tools.monotonic()
        for attempt in list(self._tasks):
            attempt.tend(now)
            if crowded and attempt.idle(now) > self._tools.settings.yield_after:
                attempt.make_room()

    async def close(self) -> None:
        """Break off every attempt."""
        tasks = list(self._tasks.values())
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, attempt: Attempt, _task: asyncio.Task[None]) -> None:
        del self._tasks[attempt]
        self._places.leave(attempt.claimed.deployment.id)
        if self._attempts.get(attempt.claimed.id) is attempt:
            del self._attempts[attempt.claimed.id]
        self._freed()
