"""The one reading of a changes index, whatever the number of its subscribers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from iscp_dagster.joblog.sql.reached import Reached
from iscp_dagster.model.errors import IscpError
from iscp_dagster.serve.live.cursor import Origin, cursor_of, written
from iscp_dagster.serve.live.positions import START, Position, Positions
from iscp_dagster.serve.live.reading import History, Page, Step, next_page
from iscp_dagster.serve.live.ring import PATIENCE, Entry, Ring, Sight

LOGGER = logging.getLogger(__name__)
PAGE = 1_000
"""Changes in one query's answer."""
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
"""Seconds between attempts while a service fails."""

Result = TypeVar("Result")
Pause = Callable[[float], Awaitable[None]]


_THREADS = ThreadPoolExecutor(max_workers=8, thread_name_prefix="iscp-feed")
"""Those of feeds alone: a thousand subscribers that begin at once must not hold them up."""


async def in_thread(read: Callable[..., Result], *arguments: Any) -> Result:
    """Return what a blocking reading of a feed returns."""
    return await asyncio.get_running_loop().run_in_executor(_THREADS, read, *arguments)


class Source(Protocol):
    """The log's and ClickHouse's side of an index. Blocks; raises IscpError."""

    def reached(self, tenants: Collection[str] | None) -> Reached:
        """The watermarks of all tenants' jobs, or of some."""

    def opened(self) -> tuple[int, History]:
        """The newest generation, and its rows."""


@dataclass(kw_only=True)
class Feed:
    """Follows the index named `index`; everything but the reading runs in one event loop.

    `at` is how far the ring's newest entry leads, by tenant.
    """

    index: str
    source: Source
    ring: Ring = field(default_factory=Ring)
    page: int = PAGE
    patience: float = PATIENCE
    pause: Pause = asyncio.sleep
    at: dict[str, Position] = field(default_factory=dict, init=False)
    registrations: dict[str, int] = field(default_factory=dict, init=False)
    origin: Origin | None = field(default=None, init=False)
    history: History | None = field(default=None, init=False)
    readings: int = field(default=0, init=False)
    """How often it has asked ClickHouse."""
    _dirty: set[str] | None = field(default_factory=set, init=False)
    """The tenants to look at; None: all."""
    _woken: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _upto: dict[str, Position] = field(default_factory=dict, init=False)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    """Held by whoever moves the positions."""

    @property
    def table_id(self) -> str:
        return self.origin.table_id if self.origin else ""

    def touch(self, tenants: Collection[str] | None) -> None:
        """Note that these tenants' jobs, or any, may have moved."""
        if tenants is None or self._dirty is None:
            self._dirty = None
        else:
            self._dirty |= set(tenants)
        self._woken.set()

    async def open(self) -> None:
        """Learn where the index stands, unless that is known. Raises IscpError, if permanent."""
        async with self._turn:
            if self.origin is None:
                self._begin(*await self.patiently(self._look))
        # What happened since may not have been told to it.
        self.touch(None)

    def close(self) -> None:
        """Forget where the index stands; nobody reads it."""
        self.origin = self.history = None
        self.ring.clear()

    async def run(self) -> None:
        """Follow the index until canceled."""
        pause = FIRST_PAUSE
        while True:
            await self._woken.wait()
            self._woken.clear()
            dirty, self._dirty = self._dirty, set()
            try:
                async with self._turn:
                    await self._follow(dirty)
                pause = FIRST_PAUSE
            except Exception as error:  # noqa: BLE001 - subscribers must not go silent
                LOGGER.warning("%s: %s; reading on in %.1f s", self.index, error, pause)
                self.touch(dirty)
                if isinstance(error, IscpError) and error.permanent:
                    # Whoever subscribes again is told what is wrong.
                    await self._end_all()
                await self.pause(pause)
                pause = min(2 * pause, LONGEST_PAUSE)

    async def patiently(self, read: Callable[[], Result]) -> Result:
        """Return what a blocking reading returns; wait out failures of services."""
        pause = FIRST_PAUSE
        while True:
            try:
                return await asyncio.to_thread(read)
            except IscpError as error:
                if error.permanent:
                    raise
                LOGGER.warning("%s: %s; trying again in %.1f s", self.index, error, pause)
            await self.pause(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def visible(self, sight: Sight) -> Positions:
        """The positions of the tenants that one may see."""
        if sight is None:
            return self.at
        return {tenant: self.at[tenant] for tenant in sight if tenant in self.at}

    def cursor(self, positions: Positions) -> str:
        """The text of a cursor at these positions."""
        if self.origin is None:
            return ""
        return written(cursor_of(positions, self._newest_registration()), self.origin)

    def _newest_registration(self) -> int:
        return max(self.registrations.values(), default=0)

    def _look(self) -> tuple[Reached, int, History]:
        found = self.source.reached(None)
        return (found, *self.source.opened())

    def _begin(self, found: Reached, generation: int, history: History) -> None:
        self.origin = Origin(index=self.index, table_id=found.table_id, generation=generation)
        self.history = history
        self.registrations = dict(found.registrations)
        self.at = _ends(found.versions)
        self._upto = dict(self.at)

    async def _follow(self, dirty: Collection[str] | None) -> None:
        if self.origin is None or (dirty is not None and not dirty):
            return
        found = await in_thread(self.source.reached, dirty)
        moved = {
            tenant: end
            for tenant, end in _ends(found.versions).items()
            if end > self._upto.get(tenant, START) or tenant not in self.registrations
        }
        if found.table_id and found.table_id != self.table_id:
            moved = _ends(found.versions)
        self.registrations |= found.registrations
        self._upto |= moved
        if moved or any(self.at.get(tenant, START) < end for tenant, end in self._upto.items()):
            await self._read(found)

    async def _read(self, found: Reached) -> None:
        while True:
            self.readings += 1
            # Both at once; a page of a generation that is not the newest is dropped.
            (generation, history), page = await asyncio.gather(
                in_thread(self.source.opened), in_thread(self._next)
            )
            if self._is_other(generation, found.table_id):
                await self._turn_over()
                return
            self.history = history
            if not page.steps and not page.gaps:
                return
            await self._append(page)
            if all(self.at.get(each, START) >= end for each, end in self._upto.items()):
                return

    def _next(self) -> Page:
        if self.history is None:
            return Page()
        return next_page(self.history, dict(self.at), dict(self._upto), self.page)

    def _is_other(self, generation: int, table_id: str) -> bool:
        origin = self.origin
        if origin is None or origin.generation != generation:
            return True
        return table_id not in {"", origin.table_id}

    async def _turn_over(self) -> None:
        """Begin anew with another table or generation; whoever reads must do so too."""
        found, generation, history = await in_thread(self._look)
        await self._end_all()
        self._begin(found, generation, history)

    async def _end_all(self) -> None:
        await self.ring.room(1, self.patience)
        self.ring.append(Entry(gap=True, cursors=dict.fromkeys(self.ring.sights(), "")))
        self.ring.wake()

    async def _append(self, page: Page) -> None:
        await self.ring.room(len(page.steps) + len(page.gaps), self.patience)
        sights = self.ring.sights()
        moved: set[str] = set()
        for step in page.steps:
            self.at[step.tenant] = step.at
            if step.stamped is None:
                moved.add(step.tenant)
            else:
                self._tell(step, sights)
        self._move(moved, sights)
        for tenant, begin in page.gaps.items():
            self.at[tenant] = Position.after(begin)
            seeing = [sight for sight in sights if _sees(sight, tenant)]
            oldest = {sight: self.cursor(self.visible(sight)) for sight in seeing}
            self.ring.append(Entry(tenant=tenant, gap=True, cursors=oldest))
        self.ring.wake()

    def _tell(self, step: Step, sights: Collection[Sight]) -> None:
        seeing = [sight for sight in sights if _sees(sight, step.tenant)]
        cursors = {sight: self.cursor(self.visible(sight)) for sight in seeing}
        self.ring.append(Entry(tenant=step.tenant, stamped=step.stamped, cursors=cursors))

    def _move(self, moved: Collection[str], sights: Collection[Sight]) -> None:
        """Tell that positions moved, once for all tenants."""
        cursors = {
            sight: self.cursor(self.visible(sight))
            for sight in sights
            if any(_sees(sight, tenant) for tenant in moved)
        }
        if cursors:
            self.ring.append(Entry(cursors=cursors))


def _ends(versions: Mapping[str, int]) -> dict[str, Position]:
    return {
        tenant: START if version < 0 else Position.after(version)
        for tenant, version in versions.items()
    }


def _sees(sight: Sight, tenant: str) -> bool:
    return sight is None or tenant in sight
