"""One subscriber's messages: a snapshot or what it missed, then changes as they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from functools import partial

from iscp_dagster.events.changes import StampedChange
from iscp_dagster.model.errors import IscpError
from iscp_dagster.serve.live.cursor import (
    CursorOrigin,
    SubscriptionCursor,
    build_cursor,
    decode_cursor,
    encode_cursor,
)
from iscp_dagster.serve.live.errors import PositionExpiredError, SubscriberTooSlowError
from iscp_dagster.serve.live.feed import IndexFeed
from iscp_dagster.serve.live.messages import INSERT, PROGRESS, ChangeFilter, ChangeMessage
from iscp_dagster.serve.live.positions import START, ChangePosition, Positions, is_kept
from iscp_dagster.serve.live.reading import ChangeHistory, read_next_page
from iscp_dagster.serve.live.ring import RingEntry, RingReader

OLDEST = "oldest"
PROGRESS_SECONDS = 1.0
"""The least time between two messages that only move the cursor."""


@dataclass(kw_only=True)
class Subscription:
    """One subscriber of an open `feed`. `on_lost` is called when it has become too slow."""

    feed: IndexFeed
    change_filter: ChangeFilter
    after: str | None = None
    snapshot: bool = False
    progress: bool = False
    on_lost: Callable[[str], None] = lambda _: None
    progress_seconds: float = PROGRESS_SECONDS
    positions: dict[str, ChangePosition] = field(default_factory=dict, init=False)
    """How far it has come, until it follows the feed's ring."""
    position: str = field(default="", init=False)
    """The cursor after what it has received; a message counts when the next is requested."""
    _origin: CursorOrigin = field(init=False)
    _row: tuple[str, ...] | None = field(default=None, init=False)
    """The last row sent of an unfinished snapshot."""

    def __post_init__(self) -> None:
        self._origin = self.feed.origin or CursorOrigin(index=self.feed.index, table_id="")

    async def stream_messages(self) -> AsyncGenerator[ChangeMessage, None]:
        """Yield until the caller stops. Raises SubscriptionError, ClickHouseError."""
        try:
            async with aclosing(self._stream_messages()) as messages:
                async for message in messages:
                    yield message
        except PositionExpiredError as error:
            raise await self._add_oldest(error) from None

    async def _add_oldest(self, error: PositionExpiredError) -> PositionExpiredError:
        """Add the first position of the current index, unless the error has one."""
        history, origin = self.feed.history, self.feed.origin
        if error.extensions.get(OLDEST) or history is None or origin is None:
            return error
        visible = tuple(self.feed.get_visible_positions(self.change_filter.tenants))
        with suppress(IscpError):
            begins = await self.feed.read_with_retries(partial(history.read_beginnings, visible))
            at = {
                tenant: ChangePosition.from_commit(begins[tenant]) if tenant in begins else START
                for tenant in visible
            }
            newest = max(self.feed.registrations.values(), default=0)
            return PositionExpiredError(
                str(error), oldest=encode_cursor(build_cursor(at, newest), origin)
            )
        return error

    async def _stream_messages(self) -> AsyncGenerator[ChangeMessage, None]:
        await self._begin()
        async with aclosing(self._stream_snapshot()) as inserts:
            async for message in inserts:
                yield message
        if self.progress and (self.snapshot or self.after is None):
            yield ChangeMessage(operation=PROGRESS, cursor=self.position)
        async with aclosing(self._stream_missed()) as missed:
            async for message in missed:
                yield message
        # No await between the last look at the feed's positions and this.
        self._check_origin()
        reader = self._join_ring()
        try:
            async with aclosing(self._stream_live(reader)) as live:
                async for message in live:
                    yield message
        finally:
            self.feed.ring.leave(reader)

    async def _begin(self) -> None:
        visible = self.feed.get_visible_positions(self.change_filter.tenants)
        if self.after is None:
            self.positions = dict(visible)
            self._row = () if self.snapshot else None
        else:
            cursor = decode_cursor(self.after, self._origin)
            registrations = self.feed.registrations
            self.positions = {
                tenant: cursor.get_position(tenant, registrations.get(tenant, 0))
                for tenant in visible
            }
            self._row, self.snapshot = cursor.row, cursor.row is not None
            await self._check_kept()
        self.position = self._format_cursor()

    async def _check_kept(self) -> None:
        """Refuse positions whose changes are gone. Raises PositionExpiredError."""
        history, at = self._check_origin(), self.positions
        begins = (
            await self.feed.read_with_retries(partial(history.read_beginnings, tuple(at)))
            if at
            else {}
        )
        gaps = {
            tenant: begins[tenant] for tenant in begins if not is_kept(at[tenant], begins[tenant])
        }
        if gaps:
            raise self._make_gap_error(gaps)

    def _check_origin(self) -> ChangeHistory:
        """Return the rows to read. Raises PositionExpiredError if the index was rebuilt."""
        if self.feed.history is None or self.feed.origin != self._origin:
            raise self._make_expired_error("", "")
        return self.feed.history

    def _make_gap_error(self, begins: Mapping[str, int]) -> PositionExpiredError:
        oldest = {tenant: ChangePosition.from_commit(begin) for tenant, begin in begins.items()}
        return self._make_expired_error(
            min(begins), self._encode_cursor(build_cursor(self.positions | oldest))
        )

    def _make_expired_error(self, tenant: str, oldest: str) -> PositionExpiredError:
        """The error; without `oldest`, `stream_messages` adds it."""
        subject = f"the changes of tenant {tenant!r}" if tenant else "the changes"
        return PositionExpiredError(
            f"{self._origin.index}: {subject} after this position are not kept, as their history "
            "begins later; subscribe with snapshot: true, without after:.",
            **({OLDEST: oldest} if oldest else {}),
        )

    async def _stream_snapshot(self) -> AsyncGenerator[ChangeMessage, None]:
        """The rows as of the positions, by key."""
        at = {
            tenant: position
            for tenant, position in self.positions.items()
            if position.base_sent is None
        }
        while self._row is not None and at:
            history, row = self._check_origin(), self._row
            page = await self.feed.read_with_retries(
                partial(
                    history.read_snapshot, at, row, self.feed.page_size, self.change_filter.where
                )
            )
            await self._check_kept()
            for key, stamped in page.rows:
                self._row = key
                message = self._build_insert(stamped)
                yield message
                self.position = message.cursor
            self._row = page.upto
            self.position = self._format_cursor()
        self._row = None
        self.position = self._format_cursor()

    def _build_insert(self, timed_change: StampedChange) -> ChangeMessage:
        change, timestamp = timed_change
        return ChangeMessage(
            operation=INSERT, data=change.row, timestamp=timestamp, cursor=self._format_cursor()
        )

    async def _stream_missed(self) -> AsyncGenerator[ChangeMessage, None]:
        """The changes from its positions up to the feed's, which it reads from ClickHouse."""
        while self._is_behind():
            upto = dict(self.feed.get_visible_positions(self.change_filter.tenants))
            page = await self.feed.read_with_retries(
                partial(
                    read_next_page,
                    self._check_origin(),
                    dict(self.positions),
                    upto,
                    self.feed.page_size,
                )
            )
            if page.gaps:
                raise self._make_gap_error(page.gaps)
            for step in page.steps:
                self.positions[step.tenant] = step.position
                cursor = self._format_cursor()
                message = step.stamped_change and self.change_filter.build_message(
                    step.stamped_change, cursor
                )
                if message:
                    yield message
                self.position = cursor

    def _is_behind(self) -> bool:
        visible = self.feed.get_visible_positions(self.change_filter.tenants)
        return any(
            self.positions.get(tenant, START) < position for tenant, position in visible.items()
        )

    def _join_ring(self) -> RingReader:
        return self.feed.ring.join(self.change_filter.tenants, self._report_lost)

    def _report_lost(self) -> None:
        self.on_lost(self.position)

    async def _stream_live(self, reader: RingReader) -> AsyncGenerator[ChangeMessage, None]:
        visible = self.feed.get_visible_positions(self.change_filter.tenants)
        ahead = {
            tenant: position
            for tenant, position in self.positions.items()
            if position > visible.get(tenant, START)
        }
        self.positions = {}
        loop, quiet_since, moved = asyncio.get_running_loop(), 0.0, False
        while True:
            for entry in self.feed.ring.take_entries(reader):
                cursor = self._find_cursor(entry, ahead)
                if cursor is None:
                    continue
                message, moved = self._build_message(entry, ahead, cursor), True
                if message:
                    yield message
                    quiet_since, moved = loop.time(), False
                self.position = cursor
            if reader.lost:
                raise self._make_slow_error()
            due = quiet_since + self.progress_seconds - loop.time()
            if self.progress and moved and due <= 0:
                yield ChangeMessage(operation=PROGRESS, cursor=self.position)
                quiet_since, moved = loop.time(), False
                continue
            await self.feed.ring.wait_for_entries(reader, due if self.progress and moved else None)

    def _find_cursor(self, entry: RingEntry, ahead: Positions) -> str | None:
        """The cursor after an entry; None if its tenants are not visible."""
        cursor = entry.cursors.get(self.change_filter.tenants)
        if cursor is not None and entry.gap:
            raise self._make_expired_error(entry.tenant, cursor)
        return self._advance_cursor(cursor, ahead) if cursor and ahead else cursor

    def _build_message(
        self, entry: RingEntry, ahead: Positions, cursor: str
    ) -> ChangeMessage | None:
        if entry.stamped_change is None or (ahead and self._is_already_sent(entry, ahead)):
            return None
        return self.change_filter.build_message(entry.stamped_change, cursor)

    def _is_already_sent(self, entry: RingEntry, ahead: Positions) -> bool:
        """Whether the subscriber has it already, from a reader that was further ahead."""
        if entry.stamped_change is None or entry.tenant not in ahead:
            return False
        change, timestamp = entry.stamped_change
        begin = timestamp.version if change.before is None and change.operation == 0 else None
        if not is_kept(ahead[entry.tenant], begin):
            raise self._make_expired_error(entry.tenant, self.position)
        return ChangePosition(timestamp.version, timestamp.ordinal) <= ahead[entry.tenant]

    def _advance_cursor(self, cursor: str, ahead: Positions) -> str:
        decoded = decode_cursor(cursor, self._origin)
        latest_positions = {
            tenant: max(
                position, decoded.get_position(tenant, self.feed.registrations.get(tenant, 0))
            )
            for tenant, position in ahead.items()
        }
        return self._encode_cursor(decoded.move_positions(latest_positions))

    def _make_slow_error(self) -> SubscriberTooSlowError:
        return SubscriberTooSlowError(
            f"{self._origin.index}: changes come faster than this client takes them; subscribe "
            "again with after: set to this position.",
            position=self.position,
        )

    def _format_cursor(self) -> str:
        cursor = build_cursor(self.positions, max(self.feed.registrations.values(), default=0))
        return self._encode_cursor(cursor if self._row is None else cursor.move_to_row(self._row))

    def _encode_cursor(self, cursor: SubscriptionCursor) -> str:
        return encode_cursor(cursor, self._origin)
