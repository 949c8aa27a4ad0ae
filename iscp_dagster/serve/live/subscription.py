"""What one subscriber is told: a snapshot or what it missed, then changes as they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from functools import partial

from iscp_dagster.events.changes import Stamped
from iscp_dagster.model.errors import IscpError
from iscp_dagster.serve.live.cursor import Cursor, Origin, cursor_of, read, written
from iscp_dagster.serve.live.errors import PositionExpiredError, SubscriberTooSlowError
from iscp_dagster.serve.live.feed import Feed
from iscp_dagster.serve.live.positions import START, Position, Positions, is_kept
from iscp_dagster.serve.live.reading import History, next_page
from iscp_dagster.serve.live.ring import Entry, Reader
from iscp_dagster.serve.live.telling import INSERT, PROGRESS, Message, Wanted

OLDEST = "oldest"
PROGRESS_SECONDS = 1.0
"""The least time between two messages that only move the cursor."""


@dataclass(kw_only=True)
class Subscription:
    """One subscriber of an open `feed`. `on_lost` is called when it has become too slow."""

    feed: Feed
    wanted: Wanted
    after: str | None = None
    snapshot: bool = False
    progress: bool = False
    on_lost: Callable[[str], None] = lambda _: None
    every: float = PROGRESS_SECONDS
    at: dict[str, Position] = field(default_factory=dict, init=False)
    """How far it has been told, until it follows the feed's ring."""
    position: str = field(default="", init=False)
    """The cursor after what it has been told; a message counts when the next one is asked for."""
    _origin: Origin = field(init=False)
    _row: tuple[str, ...] | None = field(default=None, init=False)
    """The last row told of a snapshot that has not ended."""

    def __post_init__(self) -> None:
        self._origin = self.feed.origin or Origin(index=self.feed.index, table_id="")

    async def messages(self) -> AsyncGenerator[Message, None]:
        """Tell until the caller stops. Raises SubscriptionError, ClickHouseError."""
        try:
            async with aclosing(self._messages()) as messages:
                async for message in messages:
                    yield message
        except PositionExpiredError as error:
            raise await self._with_oldest(error) from None

    async def _with_oldest(self, error: PositionExpiredError) -> PositionExpiredError:
        """Name the position at which the index as it is now begins, if the error names none."""
        history, origin = self.feed.history, self.feed.origin
        if error.extensions.get(OLDEST) or history is None or origin is None:
            return error
        visible = tuple(self.feed.visible(self.wanted.tenants))
        with suppress(IscpError):
            begins = await self.feed.patiently(partial(history.begins, visible))
            at = {
                each: Position.after(begins[each]) if each in begins else START for each in visible
            }
            newest = max(self.feed.registrations.values(), default=0)
            return PositionExpiredError(str(error), oldest=written(cursor_of(at, newest), origin))
        return error

    async def _messages(self) -> AsyncGenerator[Message, None]:
        await self._begin()
        async with aclosing(self._standing()) as standing:
            async for message in standing:
                yield message
        if self.progress and (self.snapshot or self.after is None):
            yield Message(operation=PROGRESS, cursor=self.position)
        async with aclosing(self._missed()) as missed:
            async for message in missed:
                yield message
        # No await between the last look at the feed's positions and this.
        self._check_life()
        reader = self._join()
        try:
            async with aclosing(self._live(reader)) as live:
                async for message in live:
                    yield message
        finally:
            self.feed.ring.leave(reader)

    async def _begin(self) -> None:
        visible = self.feed.visible(self.wanted.tenants)
        if self.after is None:
            self.at = dict(visible)
            self._row = () if self.snapshot else None
        else:
            cursor = read(self.after, self._origin)
            registered = self.feed.registrations
            self.at = {each: cursor.of(each, registered.get(each, 0)) for each in visible}
            self._row, self.snapshot = cursor.row, cursor.row is not None
            await self._check_kept()
        self.position = self._cursor()

    async def _check_kept(self) -> None:
        """Refuse positions whose changes are gone. Raises PositionExpiredError."""
        history, at = self._check_life(), self.at
        begins = await self.feed.patiently(partial(history.begins, tuple(at))) if at else {}
        gone = {each: begins[each] for each in begins if not is_kept(at[each], begins[each])}
        if gone:
            raise self._gone(gone)

    def _check_life(self) -> History:
        """Return the rows to read. Raises PositionExpiredError if the index was built anew."""
        if self.feed.history is None or self.feed.origin != self._origin:
            raise self._expired("", "")
        return self.feed.history

    def _gone(self, begins: Mapping[str, int]) -> PositionExpiredError:
        first = {each: Position.after(begin) for each, begin in begins.items()}
        return self._expired(min(begins), self._written(cursor_of(self.at | first)))

    def _expired(self, tenant: str, oldest: str) -> PositionExpiredError:
        """The error; without `oldest`, `messages` asks for it."""
        whose = f"the changes of tenant {tenant!r}" if tenant else "the changes"
        return PositionExpiredError(
            f"{self._origin.index}: {whose} after this position are not kept, as their history "
            "begins later; subscribe with snapshot: true, without after:.",
            **({OLDEST: oldest} if oldest else {}),
        )

    async def _standing(self) -> AsyncGenerator[Message, None]:
        """The rows as of the positions, by key."""
        at = {each: place for each, place in self.at.items() if place.base_told is None}
        while self._row is not None and at:
            history, row = self._check_life(), self._row
            found = await self.feed.patiently(
                partial(history.standing, at, row, self.feed.page, self.wanted.where)
            )
            await self._check_kept()
            for key, stamped in found.rows:
                self._row = key
                message = self._inserted(stamped)
                yield message
                self.position = message.cursor
            self._row = found.upto
            self.position = self._cursor()
        self._row = None
        self.position = self._cursor()

    def _inserted(self, stamped: Stamped) -> Message:
        change, timestamp = stamped
        return Message(
            operation=INSERT, data=change.row, timestamp=timestamp, cursor=self._cursor()
        )

    async def _missed(self) -> AsyncGenerator[Message, None]:
        """What the feed has told since the positions."""
        while self._behind():
            upto = dict(self.feed.visible(self.wanted.tenants))
            page = await self.feed.patiently(
                partial(next_page, self._check_life(), dict(self.at), upto, self.feed.page)
            )
            if page.gaps:
                raise self._gone(page.gaps)
            for step in page.steps:
                self.at[step.tenant] = step.at
                cursor = self._cursor()
                told = step.stamped and self.wanted.told(step.stamped, cursor)
                if told:
                    yield told
                self.position = cursor

    def _behind(self) -> bool:
        visible = self.feed.visible(self.wanted.tenants)
        return any(self.at.get(tenant, START) < place for tenant, place in visible.items())

    def _join(self) -> Reader:
        return self.feed.ring.join(self.wanted.tenants, self._lost)

    def _lost(self) -> None:
        self.on_lost(self.position)

    async def _live(self, reader: Reader) -> AsyncGenerator[Message, None]:
        visible = self.feed.visible(self.wanted.tenants)
        ahead = {each: at for each, at in self.at.items() if at > visible.get(each, START)}
        self.at = {}
        loop, quiet_since, moved = asyncio.get_running_loop(), 0.0, False
        while True:
            for entry in self.feed.ring.taken(reader):
                cursor = self._cursor_after(entry, ahead)
                if cursor is None:
                    continue
                message, moved = self._told(entry, ahead, cursor), True
                if message:
                    yield message
                    quiet_since, moved = loop.time(), False
                self.position = cursor
            if reader.lost:
                raise self._too_slow()
            due = quiet_since + self.every - loop.time()
            if self.progress and moved and due <= 0:
                yield Message(operation=PROGRESS, cursor=self.position)
                quiet_since, moved = loop.time(), False
                continue
            await self.feed.ring.news(reader, due if self.progress and moved else None)

    def _cursor_after(self, entry: Entry, ahead: Positions) -> str | None:
        """The cursor after an entry; None if it is of tenants that are not seen."""
        cursor = entry.cursors.get(self.wanted.tenants)
        if cursor is not None and entry.gap:
            raise self._expired(entry.tenant, cursor)
        return self._ahead(cursor, ahead) if cursor and ahead else cursor

    def _told(self, entry: Entry, ahead: Positions, cursor: str) -> Message | None:
        if entry.stamped is None or (ahead and self._is_past(entry, ahead)):
            return None
        return self.wanted.told(entry.stamped, cursor)

    def _is_past(self, entry: Entry, ahead: Positions) -> bool:
        """Whether the subscriber, which came from a reader that was further, had it already."""
        if entry.stamped is None or entry.tenant not in ahead:
            return False
        change, timestamp = entry.stamped
        begin = timestamp.version if change.before is None and change.operation == 0 else None
        if not is_kept(ahead[entry.tenant], begin):
            raise self._expired(entry.tenant, self.position)
        return Position(timestamp.version, timestamp.ordinal) <= ahead[entry.tenant]

    def _ahead(self, cursor: str, ahead: Positions) -> str:
        held = read(cursor, self._origin)
        further = {
            each: max(at, held.of(each, self.feed.registrations.get(each, 0)))
            for each, at in ahead.items()
        }
        return self._written(held.moved(further))

    def _too_slow(self) -> SubscriberTooSlowError:
        return SubscriberTooSlowError(
            f"{self._origin.index}: changes come faster than this client takes them; subscribe "
            "again with after: set to this position.",
            position=self.position,
        )

    def _cursor(self) -> str:
        cursor = cursor_of(self.at, max(self.feed.registrations.values(), default=0))
        return self._written(cursor if self._row is None else cursor.at_row(self._row))

    def _written(self, cursor: Cursor) -> str:
        return written(cursor, self._origin)
