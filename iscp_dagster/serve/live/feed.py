"""Reads a changes index once for all its subscribers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from iscp_dagster.joblog.sql.watermarks import IndexWatermarks
from iscp_dagster.model.errors import IscpError
from iscp_dagster.serve.live.cursor import CursorOrigin, build_cursor, encode_cursor
from iscp_dagster.serve.live.positions import START, ChangePosition, Positions
from iscp_dagster.serve.live.reading import ChangeHistory, FeedPage, FeedStep, read_next_page
from iscp_dagster.serve.live.ring import PATIENCE_SECONDS, Ring, RingEntry, TenantScope

LOGGER = logging.getLogger(__name__)
PAGE = 1_000
"""Changes in one query's answer."""
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
"""Seconds between attempts while a service fails."""

Result = TypeVar("Result")
Pause = Callable[[float], Awaitable[None]]


_THREADS = ThreadPoolExecutor(max_workers=8, thread_name_prefix="iscp-feed")
"""Only for feeds: a thousand subscribers that begin at once must not delay them."""


async def run_in_thread(read: Callable[..., Result], *arguments: Any) -> Result:
    """Return the result of a feed's blocking read."""
    return await asyncio.get_running_loop().run_in_executor(_THREADS, read, *arguments)


class FeedSource(Protocol):
    """Reads an index's state from the ISCP log and ClickHouse. Blocks; raises IscpError."""

    def read_watermarks(self, tenants: Collection[str] | None) -> IndexWatermarks:
        """The watermarks of all tenants' jobs, or of some."""

    def open_history(self) -> tuple[int, ChangeHistory]:
        """The newest generation, and its rows."""


@dataclass(kw_only=True)
class IndexFeed:
    """Follows the index named `index`; all but its reads run in one event loop.

    `positions` has each tenant's position after the ring's newest entry.
    """

    index: str
    source: FeedSource
    ring: Ring = field(default_factory=Ring)
    page_size: int = PAGE
    patience: float = PATIENCE_SECONDS
    pause: Pause = asyncio.sleep
    positions: dict[str, ChangePosition] = field(default_factory=dict, init=False)
    registrations: dict[str, int] = field(default_factory=dict, init=False)
    origin: CursorOrigin | None = field(default=None, init=False)
    history: ChangeHistory | None = field(default=None, init=False)
    read_count: int = field(default=0, init=False)
    """How often it has queried ClickHouse."""
    _dirty: set[str] | None = field(default_factory=set, init=False)
    """The tenants to look at; None: all."""
    _woken: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _upto: dict[str, ChangePosition] = field(default_factory=dict, init=False)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    """Held while the positions are moved."""

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
        """Read the index's state, unless it is known. Raises IscpError, if permanent."""
        async with self._turn:
            if self.origin is None:
                self._begin(*await self.read_with_retries(self._read_state))
        # It may have missed changes since then.
        self.touch(None)

    def close(self) -> None:
        """Forget the index's state; nobody reads it."""
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
                LOGGER.warning("%s: %s; reading again in %.1f s", self.index, error, pause)
                self.touch(dirty)
                if isinstance(error, IscpError) and error.permanent:
                    # Those who subscribe again get the error.
                    await self._end_readers()
                await self.pause(pause)
                pause = min(2 * pause, LONGEST_PAUSE)

    async def read_with_retries(self, read: Callable[[], Result]) -> Result:
        """Return a blocking read's result; retries temporary failures."""
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

    def get_visible_positions(self, scope: TenantScope) -> Positions:
        """The positions of the visible tenants."""
        if scope is None:
            return self.positions
        return {tenant: self.positions[tenant] for tenant in scope if tenant in self.positions}

    def format_cursor(self, positions: Positions) -> str:
        """The text of a cursor at these positions."""
        if self.origin is None:
            return ""
        return encode_cursor(build_cursor(positions, self._get_newest_registration()), self.origin)

    def _get_newest_registration(self) -> int:
        return max(self.registrations.values(), default=0)

    def _read_state(self) -> tuple[IndexWatermarks, int, ChangeHistory]:
        watermarks = self.source.read_watermarks(None)
        return (watermarks, *self.source.open_history())

    def _begin(self, watermarks: IndexWatermarks, generation: int, history: ChangeHistory) -> None:
        self.origin = CursorOrigin(
            index=self.index, table_id=watermarks.table_id, generation=generation
        )
        self.history = history
        self.registrations = dict(watermarks.registrations)
        self.positions = _to_positions(watermarks.versions)
        self._upto = dict(self.positions)

    async def _follow(self, dirty: Collection[str] | None) -> None:
        if self.origin is None or (dirty is not None and not dirty):
            return
        watermarks = await run_in_thread(self.source.read_watermarks, dirty)
        new_ends = {
            tenant: end
            for tenant, end in _to_positions(watermarks.versions).items()
            if end > self._upto.get(tenant, START) or tenant not in self.registrations
        }
        if watermarks.table_id and watermarks.table_id != self.table_id:
            new_ends = _to_positions(watermarks.versions)
        self.registrations |= watermarks.registrations
        self._upto |= new_ends
        if new_ends or any(
            self.positions.get(tenant, START) < end for tenant, end in self._upto.items()
        ):
            await self._read_pages(watermarks)

    async def _read_pages(self, watermarks: IndexWatermarks) -> None:
        while True:
            self.read_count += 1
            # Both at once; a page of a generation that is not the newest is dropped.
            (generation, history), page = await asyncio.gather(
                run_in_thread(self.source.open_history), run_in_thread(self._read_next_page)
            )
            if self._is_replaced(generation, watermarks.table_id):
                await self._restart_feed()
                return
            self.history = history
            if not page.steps and not page.gaps:
                return
            await self._append_page(page)
            if all(self.positions.get(tenant, START) >= end for tenant, end in self._upto.items()):
                return

    def _read_next_page(self) -> FeedPage:
        if self.history is None:
            return FeedPage()
        return read_next_page(self.history, dict(self.positions), dict(self._upto), self.page_size)

    def _is_replaced(self, generation: int, table_id: str) -> bool:
        origin = self.origin
        if origin is None or origin.generation != generation:
            return True
        return table_id not in {"", origin.table_id}

    async def _restart_feed(self) -> None:
        """Start again with another table or generation; readers must do so too."""
        watermarks, generation, history = await run_in_thread(self._read_state)
        await self._end_readers()
        self._begin(watermarks, generation, history)

    async def _end_readers(self) -> None:
        await self.ring.make_room(1, self.patience)
        self.ring.append(RingEntry(gap=True, cursors=dict.fromkeys(self.ring.list_scopes(), "")))
        self.ring.wake()

    async def _append_page(self, page: FeedPage) -> None:
        await self.ring.make_room(len(page.steps) + len(page.gaps), self.patience)
        scopes = self.ring.list_scopes()
        moved_tenants: set[str] = set()
        for step in page.steps:
            self.positions[step.tenant] = step.position
            if step.stamped_change is None:
                moved_tenants.add(step.tenant)
            else:
                self._append_change(step, scopes)
        self._append_progress(moved_tenants, scopes)
        for tenant, begin in page.gaps.items():
            self.positions[tenant] = ChangePosition.from_commit(begin)
            visible_to = [scope for scope in scopes if _can_see(scope, tenant)]
            oldest = {
                sight: self.format_cursor(self.get_visible_positions(sight)) for sight in visible_to
            }
            self.ring.append(RingEntry(tenant=tenant, gap=True, cursors=oldest))
        self.ring.wake()

    def _append_change(self, step: FeedStep, scopes: Collection[TenantScope]) -> None:
        visible_to = [scope for scope in scopes if _can_see(scope, step.tenant)]
        cursors = {
            sight: self.format_cursor(self.get_visible_positions(sight)) for sight in visible_to
        }
        self.ring.append(
            RingEntry(tenant=step.tenant, stamped_change=step.stamped_change, cursors=cursors)
        )

    def _append_progress(
        self, moved_tenants: Collection[str], scopes: Collection[TenantScope]
    ) -> None:
        """Report moved positions, once for all tenants."""
        cursors = {
            scope: self.format_cursor(self.get_visible_positions(scope))
            for scope in scopes
            if any(_can_see(scope, tenant) for tenant in moved_tenants)
        }
        if cursors:
            self.ring.append(RingEntry(cursors=cursors))


def _to_positions(versions: Mapping[str, int]) -> dict[str, ChangePosition]:
    return {
        tenant: START if version < 0 else ChangePosition.from_commit(version)
        for tenant, version in versions.items()
    }


def _can_see(scope: TenantScope, tenant: str) -> bool:
    return scope is None or tenant in scope
