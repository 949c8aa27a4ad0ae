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
from iscp_dagster.serve.live.positions import ChangePosition
from iscp_dagster.serve.live.ring import Ring
from iscp_dagster.serve.live.row_changes import ChangeFilter
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
        self.asked = 0
        self.failures = 0
        self.failure = UnavailableError("ClickHouse is away")

    def commit(self, tenant, keys):
        """Insert, update or delete each key, in one commit; a third of the known keys go."""
        its = self.tenants.setdefault(tenant, Tenant(registration=len(self.tenants) + 1))
        self.version += 1
        for ordinal, key in enumerate(sorted(keys)):
            before, after = its.rows.get(key), self._value()
            if before is not None and after % 3 == 0:
                after = None
                del its.rows[key]
            else:
                its.rows[key] = after
            operation = (
                ChangeKind.DELETE if after is None
                else ChangeKind.INSERT if before is None
                else ChangeKind.UPDATE
            )  # fmt: skip
            its.changes.append((self.version, ordinal, key, operation, before, after))

    def _value(self):
        self.values += 1
        return self.values

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

    # What a feed asks.

    def read_watermarks(self, tenants):
        found = {
            name: its for name, its in self.tenants.items() if tenants is None or name in tenants
        }
        return IndexWatermarks(
            table_id="t",
            versions={name: its.watermark for name, its in found.items()},
            registrations={name: its.registration for name, its in found.items()},
        )

    def open_history(self):
        return self.generation, self

    def read_beginnings(self, tenants):
        self._answer()
        return {
            each: self.tenants[each].begin
            for each in tenants
            if each in self.tenants and self.tenants[each].begin is not None
        }

    def _answer(self):
        if self.failures:
            self.failures -= 1
            raise self.failure

    def read_base(self, tenant, version, offset, most):
        its = self.tenants[tenant]
        rows = its.base if its.begin == version else []
        found = [
            stamped(tenant, version, 0, key, ChangeKind.BASE, None, value)
            for key, value in rows[offset : offset + most]
        ]
        return ChangePage(timed_changes=tuple(found), complete=len(found) < most)

    def read_changes(self, spans, most):
        self._answer()
        self.asked += 1
        found = []
        for span in spans:
            its = self.tenants[span.tenant]
            for change in its.changes:
                version, ordinal = change[:2]
                late = its.begin is None or version > its.begin
                if late and span.after < ChangePosition(version, ordinal) <= span.upto:
                    found.append((version, span.tenant, ordinal, change))
        told = [stamped(tenant, *change) for _, tenant, _, change in sorted(found)[:most]]
        begins = self.read_beginnings([span.tenant for span in spans])
        return ChangePage(timed_changes=tuple(told), complete=len(told) < most, beginnings=begins)

    def read_snapshot(self, at, after_key, most, where):
        found = []
        for tenant, position in at.items():
            for key, value in self.as_of(tenant, position).items():
                if not after_key or (tenant, str(key).zfill(3)) > after_key:
                    told = stamped(tenant, 0, 0, key, ChangeKind.BASE, None, value)
                    found.append(((tenant, str(key).zfill(3)), told))
        page = sorted(found, key=lambda each: each[0])[:most]
        meets = ChangeFilter(where=where).__dict__["_meets"]
        kept = tuple(each for each in page if meets(each[1][0].after))
        return SnapshotPage(rows=kept, upto=page[-1][0] if len(page) == most else None)

    # The truth.

    def as_of(self, tenant, position):
        """The tenant's rows after the changes up to a position, from its history alone."""
        its = self.tenants[tenant]
        rows = dict(its.base)
        for version, ordinal, key, _operation, _before, after in its.changes:
            late = its.begin is None or version > its.begin
            if late and ChangePosition(version, ordinal) <= position:
                rows.pop(key, None)
                rows |= {} if after is None else {key: after}
        return rows

    def confirmed(self, tenant):
        """The changes after the tenant's history began that its job has confirmed."""
        its = self.tenants[tenant]
        begin = -1 if its.begin is None else its.begin
        return [each for each in its.changes if begin < each[0] <= its.watermark]


def stamped(tenant, version, ordinal, key, operation, before, after):
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
    """One subscriber that takes what it is told, at once."""

    def __init__(self, feed, **asked):
        asked.setdefault("change_filter", ChangeFilter())
        self.subscription = Subscription(feed=feed, progress_seconds=0, **asked)
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


async def until(condition, seconds=10.0):
    """Wait for a condition."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came to be"
        await asyncio.sleep(0)


async def settled(feed, listeners, seconds=10.0):
    """Have the feed read what there is, and every listener take it."""
    await feed._follow(None)
    deadline = time.monotonic() + seconds
    while not all(each.task.done() for each in listeners):
        going = [each for each in listeners if not each.task.done()]
        readers = feed.ring._readers
        if len(readers) == len(going) and all(each.next_entry == feed.ring.end for each in readers):
            return
        assert time.monotonic() < deadline, "listeners do not settle"
        await asyncio.sleep(0)


def new_feed(index, **options):
    options.setdefault("ring", Ring(64))
    return IndexFeed(index="shop.trades/big", source=index, page_size=3, patience=0.05, **options)
