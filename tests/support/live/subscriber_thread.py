"""A subscriber in a thread, for tests that do other things meanwhile."""

import asyncio
import threading
import time
from contextlib import contextmanager

from iscp_dagster.serve.access import ALL_TENANTS_VIEWER
from iscp_dagster.serve.catalog import read_catalog
from iscp_dagster.serve.live.service import SubscriberContext, SubscriptionService


class Follower:
    """The subscriber's messages so far."""

    def __init__(self):
        self.messages = []
        self.error = None

    def await_messages(self, number):
        """Wait until it has that many."""
        deadline = time.monotonic() + 60
        while len(self.messages) < number:
            assert self.error is None, self.error
            assert time.monotonic() < deadline, f"{len(self.messages)} of {number} messages"
            time.sleep(0.02)


@contextmanager
def following(deployment, source, name, **arguments):
    """Subscribe to a built changes index of the table until the block ends."""
    catalog = read_catalog([source], [deployment.endpoint], lambda *_: ())
    (served,) = [each for each in catalog.changes.values() if each.index.name == name]
    follower, loop = Follower(), asyncio.new_event_loop()

    async def follow():
        service = SubscriptionService(log=deployment.log)
        context = SubscriberContext(viewer=ALL_TENANTS_VIEWER, on_lost=lambda _: None)
        async for message in service.subscribe(served, arguments, context):
            follower.messages.append(message)

    task = loop.create_task(follow())

    def run():
        ended = asyncio.gather(task, return_exceptions=True)
        (follower.error,) = loop.run_until_complete(ended)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield follower
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join(30)
        loop.close()
        assert isinstance(follower.error, asyncio.CancelledError), follower.error
