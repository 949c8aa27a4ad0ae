"""Changes of a view in memory: what `ImageReader` reads, and what subscribers must get."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from iscp_dagster.events.changes import RowChange
from iscp_dagster.events.timestamps import SourceTimestamp
from iscp_dagster.joblog.sql.watermarks import IndexWatermarks
from iscp_dagster.model.declared.images import ChangeKind
from iscp_dagster.model.errors import UnavailableError
from iscp_dagster.serve.live.feed import IndexFeed
from iscp_dagster.serve.live.images import ChangePage, SnapshotPage
from iscp_dagster.serve.live.messages import ChangeFilter
from iscp_dagster.serve.live.positions import ChangePosition
from iscp_dagster.serve.live.ring import Ring
from iscp_dagster.serve.live.subscription import Subscription


@dataclass
class Tenant:
    """One tenant: every change so far, and how far its job has come."""

    registration: int = 1
    rows: dict[int, int] = field(default_factory=dict)
    changes: list = field(default_factory=list)
    """(version, ordinal, key, operation, before, after)."""
    watermark: int = -1
    begin: int | None = None
    base: list = field(default_factory=list)


class FakeIndex:
    """A source of a feed. Each commit is of one tenant; values are unique."""

    def __init__(self):
        self.tenants: dict[str, Tenant] = {}
        self.version = 0
        self.values = 0
        self.generation = 0
        self.table_id = "t"
        self.asked = 0
        self.failures = 0
        self.failure = UnavailableError("ClickHouse is away")

    def commit(self, tenant, keys):
        """Insert, update or delete each key, in one commit; a third of the known keys go."""
        its = self.tenants.setdefault(tenant, Tenant(registration=len(self.tenants) + 1))
        self.version += 1
        for ordinal, key in enumerate(sorted(keys)):
            self.values += 1
            before, after = its.rows.get(key), self.values
            operation = ChangeKind.INSERT if before is None else ChangeKind.UPDATE
            its.rows[key] = after
            if before is not None and after % 3 == 0:
                operation, after = ChangeKind.DELETE, None
                del its.rows[key]
            its.changes.append((self.version, ordinal, key, operation, before, after))

    def iterate(self, tenant, *, anew=False):
        """Synchronize the tenant up to the newest commit; `anew`, or at first, by a snapshot."""
        its = self.tenants.get(tenant)
        if its is None:
            return
        if its.watermark < 0 or anew:
            self.publish(tenant)
        its.watermark = self.version

    def synchronize(self, tenant, keys):
        """Commit those keys, and synchronize the tenant up to them."""
        self.commit(tenant, keys)
        self.iterate(tenant)

    def publish(self, tenant):
        """Replace the tenant's rows by a snapshot, before the watermark moves."""
        its = self.tenants[tenant]
        its.begin, its.base = self.version, sorted(its.rows.items())

    # What a feed reads.

    def read_watermarks(self, tenants):
        names = [name for name in self.tenants if tenants is None or name in tenants]
        return IndexWatermarks(
            table_id=self.table_id,
            versions={name: self.tenants[name].watermark for name in names},
            registrations={name: self.tenants[name].registration for name in names},
        )

    def open_history(self):
        return self.generation, self

    def read_beginnings(self, tenants):
        self._fail()
        begins = {name: self.tenants[name].begin for name in tenants if name in self.tenants}
        return {name: begin for name, begin in begins.items() if begin is not None}

    def _fail(self):
        if self.failures:
            self.failures -= 1
            raise self.failure

    def read_base(self, tenant, version, offset, most):
        its = self.tenants[tenant]
        rows = its.base[offset : offset + most] if its.begin == version else []
        changes = [
            stamp(tenant, version, 0, key, ChangeKind.BASE, None, value) for key, value in rows
        ]
        return ChangePage(stamped_changes=tuple(changes), complete=len(changes) < most)

    def read_changes(self, spans, most):
        self._fail()
        self.asked += 1
        changes = sorted(
            (change[0], span.tenant, change[1], change)
            for span in spans
            for change in self._list_kept(span.tenant)
            if span.after < ChangePosition(*change[:2]) <= span.upto
        )
        page = tuple(stamp(tenant, *change) for _, tenant, _, change in changes[:most])
        begins = self.read_beginnings([span.tenant for span in spans])
        return ChangePage(stamped_changes=page, complete=len(page) < most, beginnings=begins)

    def _list_kept(self, tenant):
        """The changes after the tenant's history began."""
        its = self.tenants[tenant]
        return [each for each in its.changes if its.begin is None or each[0] > its.begin]

    def read_snapshot(self, at, after_key, most, where):
        rows = sorted(
            ((tenant, str(key).zfill(3)), key, value)
            for tenant, position in at.items()
            for key, value in self.as_of(tenant, position).items()
        )
        page = [row for row in rows if not after_key or row[0] > after_key][:most]
        meets = ChangeFilter(where=where).__dict__["_meets"]
        stamped = [
            (place, stamp(place[0], 0, 0, key, ChangeKind.BASE, None, value))
            for place, key, value in page
        ]
        kept = tuple(each for each in stamped if meets(each[1][0].after))
        return SnapshotPage(rows=kept, upto=page[-1][0] if len(page) == most else None)

    # The truth.

    def as_of(self, tenant, position):
        """The tenant's rows after the changes up to a position, from its history alone."""
        rows = dict(self.tenants[tenant].base)
        for version, ordinal, key, _operation, _before, after in self._list_kept(tenant):
            if ChangePosition(version, ordinal) <= position:
                rows.pop(key, None)
                rows |= {} if after is None else {key: after}
        return rows

    def confirmed(self, tenant):
        """The changes after the tenant's history began that its job has confirmed."""
        watermark = self.tenants[tenant].watermark
        return [each for each in self._list_kept(tenant) if each[0] <= watermark]


def stamp(tenant, version, ordinal, key, operation, before, after):
    def row(value):
        return None if value is None else {"tenant": tenant, "id": key, "value": value}

    fields = ("value",) if operation == ChangeKind.UPDATE else ()
    change = RowChange(
        tenant=tenant,
        key=str(key),
        operation=operation,
        before=row(before),
        after=row(after),
        fields=fields,
    )
    return change, SourceTimestamp(nanos=version * 1000, version=version, ordinal=ordinal)


class Listener:
    """One subscriber that takes its messages at once."""

    def __init__(self, feed, **options):
        options.setdefault("change_filter", ChangeFilter())
        self.subscription = Subscription(feed=feed, progress_seconds=0, **options)
        self.messages = []
        self.error = None
        self.task = asyncio.create_task(self._listen())

    async def _listen(self):
        try:
            async for message in self.subscription.stream_messages():
                self.messages.append(message)
        except Exception as error:  # noqa: BLE001 - a test looks at it
            self.error = error

    async def stop(self):
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


class Pauses(list):
    """Records the seconds of each pause, and makes none."""

    async def __call__(self, seconds):
        self.append(seconds)
        await asyncio.sleep(0)


async def until(condition, seconds=10.0):
    """Wait for a condition."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        await asyncio.sleep(0)


async def settle(feed, listeners, seconds=10.0):
    """Have the feed read what there is, and every listener take it."""

    def is_settled():
        running = [each for each in listeners if not each.task.done()]
        readers = feed.ring._readers
        positions = {each.next_entry for each in readers}
        return not running or (len(readers) == len(running) and positions == {feed.ring.end})

    await feed._follow(None)
    await until(is_settled, seconds)


def new_feed(index, **options):
    options.setdefault("ring", Ring(64))
    return IndexFeed(index="shop.trades/big", source=index, page_size=3, patience=0.05, **options)
