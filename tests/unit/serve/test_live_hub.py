"""The hub looks at the log for all feeds, waits while it is away, and rests without subscribers."""

import asyncio

from iscp_dagster.joblog.history import Bookmark
from iscp_dagster.joblog.results import ChangedTenants
from iscp_dagster.model.errors import UnavailableError
from iscp_dagster.serve.live.hub import FeedHub
from iscp_dagster.serve.live.positions import ChangePosition
from support.live.view_history import FakeIndex, Pauses, new_feed, until


class Log:
    """Answers with the tenants in `changed`, once; fails `failures` times first."""

    def __init__(self):
        self.changed, self.failures, self.asked = frozenset(), 0, []

    def read_changed_tenants(self, since):
        self.asked.append(since)
        if self.failures:
            self.failures -= 1
            raise UnavailableError("the log is away")
        tenants, self.changed = self.changed, frozenset()
        upto = Bookmark(len(self.asked), 0, "")
        return ChangedTenants(upto=upto, tenants=tenants, complete=since is not None)


def make_hub(log, **options):
    pauses = Pauses()
    return FeedHub(find_touched=log.read_changed_tenants, pause=pauses, **options), pauses


async def test_changes_are_read_and_nothing_is_without_subscribers():
    index, log = FakeIndex(), Log()
    index.synchronize("acme", {1})
    hub, pauses = make_hub(log, refresh_seconds=10**6)
    async with hub.follow_feed("big", lambda: new_feed(index)) as feed:
        assert feed.positions == {"acme": ChangePosition.from_commit(1)}
        await until(lambda: hub.poll_count > 3)
        index.synchronize("acme", {1})
        log.changed = frozenset({("other", "acme")})
        polls = hub.poll_count
        await until(lambda: hub.poll_count > polls + 2)
        assert feed.positions == {"acme": ChangePosition.from_commit(1)}
        log.changed = frozenset({("t", "acme")})
        await until(lambda: feed.positions == {"acme": ChangePosition.from_commit(2)})
        log.failures = 3
        await until(lambda: not log.failures)
        polls = hub.poll_count
        await until(lambda: hub.poll_count > polls)
        assert pauses.count(0.4) == 1
    readings = len(log.asked)
    for _ in range(50):
        await asyncio.sleep(0)
    assert (len(log.asked), hub.feeds) == (readings, {})


async def test_all_watermarks_are_looked_at_from_time_to_time():
    index, log = FakeIndex(), Log()
    index.synchronize("acme", {1})
    hub, _ = make_hub(log, refresh_seconds=0.0)
    async with hub.follow_feed("big", lambda: new_feed(index)) as feed:
        index.synchronize("acme", {1})
        await until(lambda: feed.positions == {"acme": ChangePosition.from_commit(2)})
        # A second user has the same feed, and the first may leave before it.
        async with hub.follow_feed("big", lambda: new_feed(index)) as other:
            assert other is feed
