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
from iscp_dagster.joblog.results import ChangedTenants
from iscp_dagster.serve.live.feed import FIRST_PAUSE, LONGEST_PAUSE, IndexFeed, Pause, run_in_thread

LOGGER = logging.getLogger(__name__)
POLL_SECONDS = 0.08
"""Seconds between two looks at the log."""
REFRESH_SECONDS = 10.0
"""Seconds between two looks at all watermarks: idle tenants' watermarks move without an entry."""


@dataclass(kw_only=True)
class FeedHub:
    """The feeds that have subscribers, by name; `find_touched` queries the log, and may block."""

    find_touched: Callable[[Bookmark | None], ChangedTenants]
    poll_seconds: float = POLL_SECONDS
    refresh_seconds: float = REFRESH_SECONDS
    pause: Pause = asyncio.sleep
    clock: Callable[[], float] = time.monotonic
    poll_count: int = field(default=0, init=False)
    """How often it has queried the log."""
    feeds: dict[str, IndexFeed] = field(default_factory=dict, init=False)
    _users: Counter[str] = field(default_factory=Counter, init=False)
    _tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict, init=False)

    @asynccontextmanager
    async def follow_feed(
        self, name: str, make: Callable[[], IndexFeed]
    ) -> AsyncIterator[IndexFeed]:
        """Yield the open feed of that name; it is followed until the last user leaves."""
        if name not in self.feeds:
            self.feeds[name] = make()
        feed = self.feeds[name]
        self._users[name] += 1
        try:
            await feed.open()
            self._start_task(name, feed.run)
            self._start_task("", self._watch_log)
            yield feed
        finally:
            self._users[name] -= 1
            if not self._users[name]:
                await self._end_feed(name)

    def _start_task(self, name: str, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        task = self._tasks.get(name)
        if task is None or task.done():
            self._tasks[name] = asyncio.create_task(run())

    async def _end_feed(self, name: str) -> None:
        del self._users[name]
        self.feeds.pop(name).close()
        task_names = [name] if self.feeds else [name, ""]
        tasks = [task for task_name in task_names if (task := self._tasks.pop(task_name, None))]
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task

    async def _watch_log(self) -> None:
        bookmark, pause, next_refresh = None, FIRST_PAUSE, self.clock()
        while True:
            try:
                touched = await run_in_thread(self.find_touched, bookmark)
            except Exception as error:  # noqa: BLE001 - subscribers must not go silent
                LOGGER.warning("%s; looking again in %.1f s", error, pause)
                await self.pause(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
                continue
            self.poll_count += 1
            refresh_all = bookmark is None or not touched.complete or self.clock() >= next_refresh
            if refresh_all:
                next_refresh = self.clock() + self.refresh_seconds
            self._touch_feeds(touched, refresh_all=refresh_all)
            bookmark, pause = touched.upto, FIRST_PAUSE
            await self.pause(self.poll_seconds)

    def _touch_feeds(self, touched: ChangedTenants, *, refresh_all: bool) -> None:
        for feed in self.feeds.values():
            if refresh_all:
                feed.touch(None)
                continue
            tenants = {tenant for table_id, tenant in touched.tenants if table_id == feed.table_id}
            if tenants:
                feed.touch(tenants)
