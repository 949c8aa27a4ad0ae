"""Subscriptions against a model: none missing and none twice, whatever comes in between."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iscp_dagster.clickhouse.types.type_parser import parse_type
from iscp_dagster.model.errors import ConfigError
from iscp_dagster.serve.columns import build_column
from iscp_dagster.serve.live.errors import (
    PositionExpiredError,
    PositionInvalidError,
    SubscriberTooSlowError,
)
from iscp_dagster.serve.live.messages import DELETE, INSERT, PROGRESS, UPDATE, ChangeFilter
from iscp_dagster.serve.live.positions import ChangePosition
from iscp_dagster.serve.live.ring import Ring, RingEntry
from iscp_dagster.serve.where import parse_where
from support.live.view_history import FakeIndex, Listener, Pauses, new_feed, settle, until

COLUMNS = {name: build_column(name, parse_type("Int32")) for name in ("id", "value")}


def make_filter(where, tenants=None):
    return ChangeFilter(where=parse_where(COLUMNS, where), tenants=tenants)


async def open_feed(index, **options):
    feed = new_feed(index, **options)
    await feed.open()
    return feed


async def synchronize(keys=frozenset({1}), **options):
    """Return an index whose one tenant has those keys, and its opened feed."""
    index = FakeIndex()
    index.synchronize("acme", keys)
    return index, await open_feed(index, **options)


async def get_error(feed, **options):
    """Return the error that a subscription ends with."""
    listener = Listener(feed, **options)
    await asyncio.wait_for(listener.task, 5)
    return listener.error


class Model:
    """What a subscriber knows after the messages; refuses one that does not fit what it knows."""

    def __init__(self, index, change_filter):
        self.index, self.change_filter = index, change_filter
        self.rows = {}
        self.seen = 0

    def start(self, positions):
        """Begin with the rows as of these positions, without messages about them."""
        self.rows = {(tenant, key): value for tenant, key, value in self.list_rows(positions)}

    def take(self, messages):
        for message in messages[self.seen :]:
            self._take(message)
        self.seen = len(messages)

    def _take(self, message):
        if message.operation == PROGRESS:
            return
        place, value = (message.data["tenant"], message.data["id"]), message.data["value"]
        known = self.rows.get(place)
        if message.operation == INSERT:
            assert known is None, f"{place} twice"
        elif message.operation == UPDATE:
            assert known == self._find_before(place, value), f"{place} lost a change"
            assert message.fields == ("value",)
        else:
            assert known == value, f"{place} lost a change"
        self.rows[place] = value
        if message.operation == DELETE:
            del self.rows[place]

    def _find_before(self, place, value):
        tenant, key = place
        changes = self.index.tenants[tenant].changes
        (before,) = [each[4] for each in changes if (each[2], each[5]) == (key, value)]
        return before

    def list_rows(self, positions):
        meets = self.change_filter.__dict__["_meets"]
        for tenant, position in positions.items():
            if self.change_filter.can_see(tenant):
                for key, value in self.index.as_of(tenant, position).items():
                    if meets({"tenant": tenant, "id": key, "value": value}):
                        yield tenant, key, value

    def check(self, feed):
        rows = self.list_rows(feed.positions)
        assert self.rows == {(tenant, key): value for tenant, key, value in rows}


tenants = st.sampled_from(["acme", "globex", "late"])
wheres = st.sampled_from([None, {"value": {"_gt": 6}}, {"value": {"_lt": 9}}, {"id": {"_in": [1]}}])
sights = st.sampled_from([None, frozenset({"acme"}), frozenset({"acme", "late", "other"})])
steps = st.one_of(
    st.tuples(st.just("commit"), tenants, st.sets(st.integers(0, 4), min_size=1, max_size=5)),
    st.tuples(st.just("iterate"), tenants),
    st.tuples(st.just("read")),
    st.tuples(st.just("listen"), wheres, sights, st.booleans()),
    st.tuples(st.just("resume"), st.integers(0, 5), st.integers(0, 6), st.booleans()),
)


@settings(max_examples=60)
@given(st.lists(steps, min_size=4, max_size=25))
def test_every_subscriber_gets_each_change_once(script):
    async def run_scenario():
        scenario = Scenario(*await synchronize({1, 2, 3, 4}))
        for name, *arguments in script:
            await getattr(scenario, name)(*arguments)
        await scenario.read()
        for listener, model in scenario.subscribers:
            assert listener.error is None
            model.take(listener.messages)
            model.check(scenario.feed)

    asyncio.run(run_scenario())


class Scenario:
    """An index, and subscribers of it with their models; each step is a method."""

    def __init__(self, index, feed):
        self.index, self.feed, self.subscribers = index, feed, []

    async def commit(self, tenant, keys):
        self.index.commit(tenant, keys)

    async def iterate(self, tenant):
        self.index.iterate(tenant)

    async def read(self):
        await settle(self.feed, [listener for listener, _ in self.subscribers])

    async def listen(self, where, sight, snapshot):
        model = Model(self.index, make_filter(where, sight))
        if not snapshot:
            model.start(self.feed.get_visible_positions(sight))
        await self._subscribe(model, snapshot=snapshot)

    async def _subscribe(self, model, **options):
        listener = Listener(self.feed, change_filter=model.change_filter, progress=True, **options)
        await until(lambda: listener.subscription.position or listener.task.done())
        self.subscribers.append((listener, model))

    async def resume(self, which, back, anew):
        """Resume after an earlier message than the last, perhaps at a server that starts anew."""
        if not self.subscribers:
            return
        listener, model = self.subscribers.pop(which % len(self.subscribers))
        await listener.stop()
        subscription = listener.subscription
        received = listener.messages[: max(len(listener.messages) - back, model.seen)]
        if not received:
            if subscription.after is None and not subscription.snapshot:
                model.start(self.feed.get_visible_positions(model.change_filter.tenants))
            await self._subscribe(model, snapshot=subscription.snapshot, after=subscription.after)
            return
        model.take(received)
        model.seen = 0
        if anew and not self.subscribers:
            self.feed.close()
            await self.feed.open()
        await self._subscribe(model, after=received[-1].cursor)


async def test_a_row_that_enters_the_filter_is_inserted_and_one_that_leaves_deleted():
    index, feed = await synchronize()
    listener = Listener(feed, change_filter=make_filter({"value": {"_gte": 2, "_lt": 5}}))
    await settle(feed, [listener])
    for _ in range(5):
        index.synchronize("acme", {1})
    await settle(feed, [listener])
    # Values 2 to 6; those that divide by 3 delete.
    changes = [(m.operation, m.data["value"]) for m in listener.messages]
    assert changes == [(INSERT, 2), (DELETE, 2), (INSERT, 4), (DELETE, 4)]
    versions = [m.timestamp.version for m in listener.messages]
    assert versions == [2, 3, 4, 5]
    assert [m.ts_timestamp for m in listener.messages] == [f"{v}000" for v in versions]


async def test_many_subscribers_are_one_reading_and_idle_ones_none():
    index, feed = await synchronize()
    listeners = [Listener(feed) for _ in range(50)]
    await settle(feed, listeners)
    assert index.asked == 0
    index.synchronize("acme", {1})
    await settle(feed, listeners)
    assert index.asked == 1
    assert {len(each.messages) for each in listeners} == {1}


async def test_a_reading_larger_than_the_ring_reaches_whoever_takes_its_messages():
    index, feed = await synchronize(ring=Ring(8))
    listeners = [Listener(feed) for _ in range(3)]
    await settle(feed, listeners)
    index.synchronize("acme", set(range(2, 90)))
    await settle(feed, listeners)
    assert [len(each.messages) for each in listeners] == [88] * 3


async def test_a_subscriber_that_takes_nothing_loses_its_place_and_the_others_continue():
    (index, feed), lost = await synchronize(ring=Ring(8)), []
    quick = Listener(feed)
    slow = Listener(feed, on_lost=lost.append)
    await settle(feed, [quick, slow])
    await slow.stop()
    messages = slow.subscription.stream_messages()
    index.synchronize("acme", {2})
    next_message = asyncio.ensure_future(anext(messages))
    await until(lambda: len(feed.ring._readers) == 2)
    await feed._follow(None)
    first = await next_message
    index.synchronize("acme", set(range(10, 40)))
    await feed._follow(None)
    (position,) = lost
    with pytest.raises(SubscriberTooSlowError):
        await anext(messages)
    # It may not have received the first: the position is where it surely is.
    again = Listener(feed, after=position)
    await settle(feed, [quick, again])
    assert again.messages[0].data == first.data
    assert len(quick.messages) == len(again.messages) == 31


async def test_a_failure_of_clickhouse_is_waited_out():
    pauses = Pauses()
    index, feed = await synchronize(pause=pauses)
    listener = Listener(feed)
    await settle(feed, [listener])
    index.failures = 3
    index.synchronize("acme", {1})
    following = asyncio.create_task(feed.run())
    feed.touch({"acme"})
    await until(lambda: listener.messages)
    assert pauses == [0.1, 0.2, 0.4]
    index.failures = 2
    late = Listener(feed, snapshot=True)
    await until(lambda: late.messages)
    assert late.messages[0].operation == INSERT
    assert not following.done()


async def test_a_failure_that_stays_ends_the_subscriptions_rather_than_silence_them():
    index, feed = await synchronize(pause=Pauses())
    listener = Listener(feed)
    await settle(feed, [listener])
    index.failures, index.failure = 1, ConfigError("The table has other columns.")
    index.synchronize("acme", {1})
    following = asyncio.create_task(feed.run())
    feed.touch({"acme"})
    await asyncio.wait_for(listener.task, 5)
    assert isinstance(listener.error, PositionExpiredError)
    following.cancel()


@pytest.mark.parametrize("steps", range(12))
async def test_whoever_waits_for_room_or_news_can_be_canceled_at_any_moment(steps):
    ring = Ring(1)
    reader = ring.join(None, lambda: None)

    async def wait_and_read():
        while True:
            await ring.make_room(1)
            ring.append(RingEntry())
            await ring.wait_for_entries(reader, 60)
            assert list(ring.take_entries(reader))
            await asyncio.sleep(0)

    task = asyncio.create_task(wait_and_read())
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task], timeout=0.2)
    assert task.cancelled()


def make_gap(index):
    """Lose the feed: the next iteration reads a snapshot, and the history begins anew."""
    index.commit("acme", {1, 2})
    index.iterate("acme", anew=True)


async def test_a_gap_expires_whoever_sees_the_tenant_and_nobody_else():
    index = FakeIndex()
    for tenant in ("acme", "globex"):
        index.synchronize(tenant, {1})
    feed = await open_feed(index)
    seeing = Listener(feed)
    other = Listener(feed, change_filter=make_filter(None, frozenset({"globex"})))
    await settle(feed, [seeing, other])
    make_gap(index)
    await settle(feed, [seeing, other])
    assert isinstance(seeing.error, PositionExpiredError)
    index.synchronize("globex", {1})
    await settle(feed, [other])
    assert len(other.messages) == 1
    # A subscription can begin at the oldest position.
    again = Listener(feed, after=seeing.error.extensions["oldest"])
    await settle(feed, [other, again])
    assert again.error is None
    assert [each.data["tenant"] for each in again.messages] == ["globex"]


async def test_an_expired_cursor_is_refused_with_the_oldest_position():
    index, feed = await synchronize()
    old = feed.format_cursor(feed.positions)
    make_gap(index)
    await feed._follow(None)
    error = await get_error(feed, after=old)
    assert isinstance(error, PositionExpiredError)
    oldest = {"acme": ChangePosition.from_commit(2)}
    assert error.extensions["oldest"] == feed.format_cursor(oldest)
    assert isinstance(await get_error(feed, after="x"), PositionInvalidError)


async def test_a_snapshot_published_but_not_confirmed_is_a_gap_for_older_positions():
    index, feed = await synchronize()
    old = feed.format_cursor(feed.positions)
    index.commit("acme", {1})
    index.commit("acme", {2})
    index.publish("acme")
    index.tenants["acme"].watermark = 2
    assert isinstance(await get_error(feed, after=old), PositionExpiredError)


@pytest.mark.parametrize("change", [{"generation": 1}, {"table_id": "another"}])
async def test_another_generation_or_table_expires_every_subscriber_and_cursor(change):
    index, feed = await synchronize()
    old, listener = feed.format_cursor(feed.positions), Listener(feed)
    await settle(feed, [listener])
    vars(index).update(change)
    index.synchronize("acme", {1})
    await settle(feed, [listener])
    error = await get_error(feed, after=old)
    assert isinstance(listener.error, PositionExpiredError)
    assert isinstance(error, PositionExpiredError)
    # Both get the position from which all changes of the index are kept.
    oldest = feed.format_cursor({"acme": ChangePosition.from_commit(1)})
    assert listener.error.extensions["oldest"] == error.extensions["oldest"] == oldest
    again = Listener(feed, after=oldest)
    await settle(feed, [again])
    assert again.error is None
    assert [each.timestamp.version for each in again.messages] == [2]


async def test_an_error_has_no_oldest_position_if_that_cannot_be_read():
    index, feed = await synchronize()
    old = feed.format_cursor(feed.positions)
    index.generation = 1
    index.synchronize("acme", {1})
    await feed._follow(None)
    index.failures, index.failure = 1, ConfigError("The table has other columns.")
    error = await get_error(feed, after=old)
    assert isinstance(error, PositionExpiredError)
    assert "oldest" not in error.extensions


async def test_progress_moves_the_cursor_of_a_quiet_filter():
    index, feed = await synchronize()
    quiet = make_filter({"id": {"_eq": 99}})
    loud = Listener(feed, change_filter=quiet, progress=True)
    silent = Listener(feed, change_filter=quiet)
    await settle(feed, [loud, silent])
    for _ in range(2):
        index.synchronize("acme", {1})
        await settle(feed, [loud, silent])
    assert silent.messages == []
    assert {each.operation for each in loud.messages} == {PROGRESS}
    last = loud.messages[-1]
    assert (last.data, last.fields, last.ts_timestamp) == (None, (), None)
    assert last.cursor == feed.format_cursor({"acme": ChangePosition.from_commit(3)})


async def test_progress_without_a_snapshot_gives_the_first_position_at_once():
    """A client that is disconnected before a commit continues from there, and misses nothing."""
    index, feed = await synchronize()
    listener = Listener(feed, progress=True)
    await settle(feed, [listener])
    (progress,) = listener.messages
    assert (progress.operation, progress.data) == (PROGRESS, None)
    await listener.stop()
    index.synchronize("acme", {2})
    again = Listener(feed, after=progress.cursor, progress=True)
    await settle(feed, [again])
    assert again.messages[0].operation == INSERT


async def test_a_snapshot_with_progress_ends_with_a_message():
    _, feed = await synchronize(set(range(7)))
    listener = Listener(feed, snapshot=True, progress=True)
    await settle(feed, [listener])
    assert [each.operation for each in listener.messages] == [INSERT] * 7 + [PROGRESS]
