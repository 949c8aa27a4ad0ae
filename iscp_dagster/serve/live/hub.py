"""Watches the ISCP log for all feeds, while any has subscribers."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from iscp_dagster.joblog.history import Bookmark
from iscp_dagster.joblog.protocol import Touched
from iscp_dagster.serve.live.feed import FIRST_PAUSE, LONGEST_PAUSE, Feed, Pause, in_thread

LOGGER = logging.getLogger(__name__)
EVERY = 0.08
"""Seconds between two looks at the log."""
WHOLE = 10.0
"""Seconds between two looks at all watermarks: those of idle tenants move without an entry."""


@dataclass(kw_only=True)
class Hub:
    """The feeds that have subscribers, by name; `touched` asks the log, and may block."""

    touched: Callable[[Bookmark | None], Touched]
    every: float = EVERY
    whole: float = WHOLE
    pause: Pause = asyncio.sleep
    clock: Callable[[], float] = time.monotonic
    looks: int = field(default=0, init=False)
    """How often it has asked the log."""
    feeds: dict[str, Feed] = field(default_factory=dict, init=False)
    _users: Counter[str] = field(default_factory=Counter, init=False)
    _tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict, init=False)

    @asynccontextmanager
    async def following(self, name: str, make: Callable[[], Feed]) -> AsyncIterator[Feed]:
        """Give the feed of that name, open; it is followed until the last user leaves."""
        if name not in self.feeds:
            self.feeds[name] = make()
        feed = self.feeds[name]
        self._users[name] += 1
        try:
            await feed.open()
            self._start(name, feed.run)
            self._start("", self._watch)
            yield feed
        finally:
            self._users[name] -= 1
            if not self._users[name]:
                await self._end(name)

    def _start(self, name: str, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        task = self._tasks.get(name)
        if task is None or task.done():
            self._tasks[name] = asyncio.create_task(run())

    async def _end(self, name: str) -> None:
        del self._users[name]
        self.feeds.pop(name).close()
        ended = [name] if self.feeds else [name, ""]
        tasks = [task for each in ended if (task := self._tasks.pop(each, None))]
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task

    async def _watch(self) -> None:
        bookmark, pause, next_whole = None, FIRST_PAUSE, self.clock()
        while True:
            try:
                touched = await in_thread(self.touched, bookmark)
            except Exception as error:  # noqa: BLE001 - subscribers must not go silent
                LOGGER.warning("%s; looking again in %.1f s", error, pause)
                await self.pause(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
                continue
            self.looks += 1
            whole = bookmark is None or not touched.whole or self.clock() >= next_whole
            if whole:
                next_whole = self.clock() + self.whole
            self._touch(touched, whole=whole)
            bookmark, pause = touched.upto, FIRST_PAUSE
            await self.pause(self.every)

    def _touch(self, touched: Touched, *, whole: bool) -> None:
        for feed in self.feeds.values():
            if whole:
                feed.touch(None)
                continue
            moved = {tenant for table_id, tenant in touched.tenants if table_id == feed.table_id}
            if moved:
                feed.touch(moved)
