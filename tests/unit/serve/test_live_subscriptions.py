"""Subscriptions against a model: none missing and none twice, whatever comes in between."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iscp_dagster.clickhouse.types.type_parser import parse_type
from iscp_dagster.model.errors import ConfigError
from iscp_dagster.serve.columns import build_column
from iscp_dagster.serve.live.errors import PositionExpiredError, PositionInvalidError
from iscp_dagster.serve.live.positions import ChangePosition
from iscp_dagster.serve.live.ring import Ring, RingEntry
from iscp_dagster.serve.live.row_changes import DELETE, INSERT, PROGRESS, UPDATE, ChangeFilter
from iscp_dagster.serve.where import parse_where
from support.live.view_history import FakeIndex, Listener, new_feed, settled, until

COLUMNS = {name: build_column(name, parse_type("Int32")) for name in ("id", "value")}


def wanting(where, tenants=None):
    return ChangeFilter(where=parse_where(COLUMNS, where), tenants=tenants)


async def opened(index, **options):
    feed = new_feed(index, **options)
    await feed.open()
    return feed


async def synchronized(keys=frozenset({1}), **options):
    """Return an index whose one tenant has those keys, and its opened feed."""
    index = FakeIndex()
    index.synchronize("acme", keys)
    return index, await opened(index, **options)


async def stop(*listeners):
    for each in listeners:
        await each.stop()


class Model:
    """What a subscriber knows after the messages; refuses one that does not fit what it knows."""

    def __init__(self, index, wanted):
        self.index, self.wanted = index, wanted
        self.rows = {}
        self.seen = 0

    def start(self, at):
        """Begin with the rows that are there, without having been told them."""
        self.rows = {(tenant, key): value for tenant, key, value in self.truth(at)}

    def take(self, messages):
        for message in messages[self.seen :]:
            self._take(message)
        self.seen = len(messages)

    def _take(self, message):
        if message.operation == PROGRESS:
            return
        place, value = (message.data["tenant"], message.data["id"]), message.data["value"]
        held = self.rows.get(place)
        if message.operation == INSERT:
            assert held is None, f"{place} twice"
        elif message.operation == UPDATE:
            assert held == self.before(place, value), f"{place} lost a change"
            assert message.fields == ("value",)
        else:
            assert held == value, f"{place} lost a change"
        self.rows[place] = value
        if message.operation == DELETE:
            del self.rows[place]

    def before(self, place, value):
        tenant, key = place
        changes = self.index.tenants[tenant].changes
        (found,) = [each[4] for each in changes if (each[2], each[5]) == (key, value)]
        return found

    def truth(self, at):
        meets = self.wanted.__dict__["_meets"]
        for tenant, position in at.items():
            if self.wanted.can_see(tenant):
                for key, value in self.index.as_of(tenant, position).items():
                    if meets({"tenant": tenant, "id": key, "value": value}):
                        yield tenant, key, value

    def check(self, feed):
        assert self.rows == {
            (tenant, key): value for tenant, key, value in self.truth(feed.positions)
        }


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
def test_every_subscriber_is_told_each_change_once(script):
    async def scenario():
        (index, feed), told = await synchronized({1, 2, 3, 4}), []
        for step in script:
            await STEPS[step[0]](index, feed, told, *step[1:])
        await settled(feed, [listener for listener, _ in told])
        for listener, model in told:
            assert listener.error is None
            model.take(listener.messages)
            model.check(feed)
        await stop(*(listener for listener, _ in told))

    asyncio.run(scenario())


async def commit(index, _feed, _told, tenant, keys):
    index.commit(tenant, keys)


async def iterate(index, _feed, _told, tenant):
    index.iterate(tenant)


async def read(_index, feed, told):
    await settled(feed, [listener for listener, _ in told])


async def listen(index, feed, told, where, sight, snapshot):
    wanted = wanting(where, sight)
    model = Model(index, wanted)
    if not snapshot:
        model.start(feed.get_visible_positions(sight))
    listener = Listener(feed, change_filter=wanted, snapshot=snapshot, progress=True)
    await begun(listener)
    told.append((listener, model))


async def begun(listener):
    await until(lambda: listener.subscription.position or listener.task.done())


async def resume(index, feed, told, which, back, anew):
    """Go on after an earlier message than the last, perhaps at a server that starts just now."""
    if not told:
        return
    listener, model = told.pop(which % len(told))
    await listener.stop()
    kept = listener.messages[: max(len(listener.messages) - back, model.seen)]
    if not kept:
        told.append((listener, model))
        again = Listener(
            feed,
            change_filter=model.wanted,
            snapshot=listener.subscription.snapshot,
            after=listener.subscription.after,
            progress=True,
        )
        if listener.subscription.after is None and not listener.subscription.snapshot:
            model.start(feed.get_visible_positions(model.wanted.tenants))
        told[-1] = (again, model)
        await begun(again)
        return
    model.take(kept)
    model.seen = 0
    if anew and not told:
        feed.close()
        await feed.open()
    again = Listener(feed, change_filter=model.wanted, after=kept[-1].cursor, progress=True)
    await begun(again)
    told.append((again, model))


STEPS = {
    "commit": commit,
    "iterate": iterate,
    "read": read,
    "listen": listen,
    "resume": resume,
}


async def test_a_row_that_enters_the_filter_is_inserted_and_one_that_leaves_deleted():
    index, feed = await synchronized()
    listener = Listener(feed, change_filter=wanting({"value": {"_gte": 2, "_lt": 5}}))
    await begun(listener)
    for _ in range(5):
        index.synchronize("acme", {1})
    await settled(feed, [listener])
    # Values 2 to 6; those that divide by 3 delete.
    assert [(m.operation, m.data["value"]) for m in listener.messages] == [
        (INSERT, 2),
        (DELETE, 2),
        (INSERT, 4),
        (DELETE, 4),
    ]
    versions = [m.timestamp.version for m in listener.messages]
    assert versions == [2, 3, 4, 5]
    assert [m.ts_timestamp for m in listener.messages] == [f"{v}000" for v in versions]
    await listener.stop()


async def test_a_change_is_told_only_when_the_watermark_has_passed_it():
    index, feed = await synchronized()
    listener = Listener(feed)
    await begun(listener)
    index.commit("acme", {1})
    await settled(feed, [listener])
    assert listener.messages == []
    index.iterate("acme")
    await settled(feed, [listener])
    assert [each.operation for each in listener.messages] == [UPDATE]
    await listener.stop()


async def test_many_subscribers_are_one_reading_and_idle_ones_none():
    index, feed = await synchronized()
    listeners = [Listener(feed) for _ in range(50)]
    await settled(feed, listeners)
    assert index.asked == 0
    index.synchronize("acme", {1})
    await settled(feed, listeners)
    assert index.asked == 1
    assert {len(each.messages) for each in listeners} == {1}
    await stop(*listeners)


async def test_a_reading_larger_than_the_ring_reaches_whoever_takes_its_messages():
    index, feed = await synchronized(ring=Ring(8))
    listeners = [Listener(feed) for _ in range(3)]
    await settled(feed, listeners)
    index.synchronize("acme", set(range(2, 90)))
    await settled(feed, listeners)
    assert [len(each.messages) for each in listeners] == [88] * 3
    await stop(*listeners)


async def test_a_subscriber_that_takes_nothing_is_told_its_position_and_the_others_go_on():
    (index, feed), lost = await synchronized(ring=Ring(8)), []
    quick = Listener(feed)
    slow = Listener(feed, on_lost=lost.append)
    await settled(feed, [quick, slow])
    slow.task.cancel()
    await asyncio.gather(slow.task, return_exceptions=True)
    stuck = slow.subscription
    told = stuck.stream_messages()
    index.synchronize("acme", {2})
    waiting = asyncio.ensure_future(anext(told))
    await until(lambda: len(feed.ring._readers) == 2)
    await feed._follow(None)
    first = await waiting
    index.synchronize("acme", set(range(10, 40)))
    await feed._follow(None)
    (position,) = lost
    with pytest.raises(Exception, match="faster than this client") as error:
        await anext(told)
    # It may not have received the first: the position is where it surely is.
    assert error.value.extensions["code"] == "SUBSCRIBER_TOO_SLOW"
    again = Listener(feed, after=position)
    await settled(feed, [quick, again])
    assert again.messages[0].data == first.data
    assert len(quick.messages) == len(again.messages) == 31
    await stop(quick, again)


async def test_a_failure_of_clickhouse_is_waited_out():
    pauses = []

    async def pause(seconds):
        pauses.append(seconds)

    index, feed = await synchronized(pause=pause)
    listener = Listener(feed)
    await settled(feed, [listener])
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
    for task in (following, late.task, listener.task):
        task.cancel()
    await asyncio.gather(following, late.task, listener.task, return_exceptions=True)


async def test_a_failure_that_stays_ends_the_subscriptions_rather_than_silence_them():
    pauses = []

    async def pause(seconds):
        pauses.append(seconds)
        await asyncio.sleep(0)

    index, feed = await synchronized(pause=pause)
    listener = Listener(feed)
    await settled(feed, [listener])
    index.failures, index.failure = 1, ConfigError("The table has other columns.")
    index.synchronize("acme", {1})
    following = asyncio.create_task(feed.run())
    feed.touch({"acme"})
    await asyncio.wait_for(listener.task, 5)
    assert isinstance(listener.error, PositionExpiredError)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


@pytest.mark.parametrize("steps", range(12))
async def test_whoever_waits_for_room_or_news_can_be_canceled_at_any_moment(steps):
    ring = Ring(1)
    reader = ring.join(None, lambda: None)

    async def goes_on():
        while True:
            await ring.make_room(1)
            ring.append(RingEntry())
            await ring.wait_for_entries(reader, 60)
            assert list(ring.take_entries(reader))
            await asyncio.sleep(0)

    task = asyncio.create_task(goes_on())
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task], timeout=0.2)
    assert task.cancelled()


def gap(index):
    """Lose the feed: the next iteration reads a snapshot, and the history begins anew."""
    index.commit("acme", {1, 2})
    index.iterate("acme", anew=True)


async def test_a_gap_expires_whoever_sees_the_tenant_and_nobody_else():
    index = FakeIndex()
    for tenant in ("acme", "globex"):
        index.synchronize(tenant, {1})
    feed = await opened(index)
    seeing = Listener(feed)
    other = Listener(feed, change_filter=wanting(None, frozenset({"globex"})))
    await settled(feed, [seeing, other])
    gap(index)
    await settled(feed, [seeing, other])
    assert isinstance(seeing.error, PositionExpiredError)
    index.synchronize("globex", {1})
    await settled(feed, [other])
    assert len(other.messages) == 1
    # The oldest position there is can be gone on from.
    again = Listener(feed, after=seeing.error.extensions["oldest"])
    await settled(feed, [other, again])
    assert again.error is None
    assert [each.data["tenant"] for each in again.messages] == ["globex"]
    await stop(other, again)


async def test_an_expired_cursor_is_refused_with_the_oldest_position():
    index, feed = await synchronized()
    old = feed.format_cursor(feed.positions)
    gap(index)
    await feed._follow(None)
    listener = Listener(feed, after=old)
    await asyncio.wait_for(listener.task, 5)
    assert isinstance(listener.error, PositionExpiredError)
    assert listener.error.extensions["code"] == "POSITION_EXPIRED"
    assert listener.error.extensions["oldest"] == feed.format_cursor(
        {"acme": ChangePosition.from_commit(2)}
    )
    wrong = Listener(feed, after="x")
    await asyncio.wait_for(wrong.task, 5)
    assert isinstance(wrong.error, PositionInvalidError)


async def test_a_snapshot_published_but_not_confirmed_is_a_gap_for_older_positions():
    index, feed = await synchronized()
    old = feed.format_cursor(feed.positions)
    index.commit("acme", {1})
    index.commit("acme", {2})
    index.publish("acme")
    index.tenants["acme"].watermark = 2
    listener = Listener(feed, after=old)
    await asyncio.wait_for(listener.task, 5)
    assert isinstance(listener.error, PositionExpiredError)


async def test_another_generation_expires_every_subscriber_and_cursor():
    index, feed = await synchronized()
    old, listener = feed.format_cursor(feed.positions), Listener(feed)
    await settled(feed, [listener])
    index.generation = 1
    index.synchronize("acme", {1})
    await settled(feed, [listener])
    late = Listener(feed, after=old)
    await asyncio.wait_for(late.task, 5)
    assert isinstance(listener.error, PositionExpiredError)
    assert isinstance(late.error, PositionExpiredError)
    # Both are told from where all changes of the index as it is now are there.
    oldest = listener.error.extensions["oldest"]
    assert (
        oldest
        == late.error.extensions["oldest"]
        == feed.format_cursor({"acme": ChangePosition.from_commit(1)})
    )
    again = Listener(feed, after=oldest)
    await settled(feed, [again])
    assert again.error is None
    assert [each.timestamp.version for each in again.messages] == [2]
    await again.stop()


async def test_a_position_that_cannot_be_asked_for_is_not_told():
    index, feed = await synchronized()
    old = feed.format_cursor(feed.positions)
    index.generation = 1
    index.synchronize("acme", {1})
    await feed._follow(None)
    index.failures, index.failure = 1, ConfigError("The table has other columns.")
    late = Listener(feed, after=old)
    await asyncio.wait_for(late.task, 5)
    assert isinstance(late.error, PositionExpiredError)
    assert "oldest" not in late.error.extensions


async def test_progress_moves_the_cursor_of_a_quiet_filter():
    index, feed = await synchronized()
    quiet = wanting({"id": {"_eq": 99}})
    loud = Listener(feed, change_filter=quiet, progress=True)
    silent = Listener(feed, change_filter=quiet)
    await settled(feed, [loud, silent])
    for _ in range(2):
        index.synchronize("acme", {1})
        await settled(feed, [loud, silent])
    assert silent.messages == []
    assert {each.operation for each in loud.messages} == {PROGRESS}
    last = loud.messages[-1]
    assert (last.data, last.fields, last.ts_timestamp) == (None, (), None)
    assert last.cursor == feed.format_cursor({"acme": ChangePosition.from_commit(3)})
    await stop(loud, silent)


async def test_progress_without_a_snapshot_tells_at_once_where_it_begins():
    """Who is disconnected before anything is committed goes on from there, and misses nothing."""
    index, feed = await synchronized()
    first = Listener(feed, progress=True)
    await settled(feed, [first])
    (told,) = first.messages
    assert (told.operation, told.data) == (PROGRESS, None)
    await first.stop()
    index.synchronize("acme", {2})
    again = Listener(feed, after=told.cursor, progress=True)
    await settled(feed, [again])
    assert again.messages[0].operation == INSERT
    await stop(first, again)


async def test_a_snapshot_with_progress_ends_with_a_message():
    _, feed = await synchronized(set(range(7)))
    listener = Listener(feed, snapshot=True, progress=True)
    await settled(feed, [listener])
    assert [each.operation for each in listener.messages] == [INSERT] * 7 + [PROGRESS]
    await listener.stop()
