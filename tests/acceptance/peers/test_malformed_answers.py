"""Answers that break the protocol: each is refused and retried, and leaves nothing behind."""

import asyncio
import gc
import logging
from random import Random

import h2.events
import psutil
import pytest

from durable_invocations.runtime.driving.attempts import AttemptDriver
from support.invocations.project_runtime import running
from support.invocations.scenarios import until
from support.peers.endpoint_lies import DONE, LIES, Answer, pack
from support.peers.lying_endpoint import Liar, lying
from support.peers.wire import ACK, packet

ONCE = 64
WINDOW = 65_535
"""Bytes that HTTP/2 lets through until the peer has taken some."""


def list_remains(tasks, files):
    """Return the tasks that began since and still run, and how many more files are open."""
    running_tasks = asyncio.all_tasks() - tasks - {asyncio.current_task()}
    return running_tasks, max(0, psutil.Process().num_fds() - files)


@pytest.mark.parametrize("each", [5, pytest.param(50, marks=pytest.mark.soak)])
async def test_runtime_outlives_malformed_answers(engine, caplog, record_property, http, each):
    chance = Random(http)
    liar = Liar([lie(chance) for _ in range(each) for lie in LIES])
    turns = asyncio.Semaphore(ONCE)

    async def call(caller, number):
        async with turns:
            return await caller.call("Liar", "go", number, key=f"k{number}")

    with caplog.at_level(logging.WARNING):
        async with lying(liar, http=http) as url:
            before = asyncio.all_tasks(), psutil.Process().num_fds()
            async with running(engine, url, http=http) as caller:
                calls = [call(caller, number) for number in range(len(liar.lies))]
                assert await asyncio.gather(*calls) == ["done"] * len(liar.lies)
            engine.dispose()

            async def settled():
                return list_remains(*before) == (set(), 0)

            await until(settled)
            gc.collect()
            assert not [one for one in gc.get_objects() if isinstance(one, AttemptDriver)]
    attempts = [liar.attempts[number] for number in range(len(liar.lies))]
    believed = [lie for lie, times in zip(liar.lies, attempts, strict=True) if times < 2]
    assert not believed, believed[:3]
    assert not [
        record for record in caplog.records if record.exc_info or record.levelno >= logging.ERROR
    ]
    record_property("malformed_answers", len(liar.lies))
    record_property("attempts", sum(attempts))


class Hasty(Liar):
    """Answers its second attempt before it has let the whole replay come."""

    requests = unread = 0

    def make_listener(self):
        usual = super().make_listener()

        def hear(connection, event):
            if isinstance(event, h2.events.RequestReceived):
                self.requests += dict(event.headers)[":method"] == "POST"
            hastily = self.requests == 2 and not isinstance(event, h2.events.RequestReceived)
            if hastily and isinstance(event, h2.events.DataReceived):
                if not self.unread:
                    lie = packet("SetState", key=b"k", value=b"hasty")
                    self._respond(connection, event.stream_id, Answer(body=pack(lie, *DONE)))
                self.unread += event.flow_controlled_length
            elif hastily and isinstance(event, (h2.events.StreamEnded, h2.events.StreamReset)):
                connection.acknowledge_received_data(self.unread, event.stream_id)
            elif not hastily:
                usual(connection, event)

        return hear


async def test_entries_that_come_during_the_replay_are_not_stored(engine):
    liar = Hasty([Answer(body=pack(packet("Run", ACK, name="r", value=b"1")), broken=True)])
    # More than a window holds, so that the replay is still under way when the answer comes.
    argument, headers = b"0" + b" " * WINDOW, {"content-type": "application/json"}
    async with lying(liar, http=2) as url, running(engine, url, http=2) as caller:
        answer = await caller.http.post("/Liar/k/go", content=argument, headers=headers)
        invocation = await caller.show(answer.headers["x-restate-id"])
    assert answer.json() == "done"
    assert [entry["type"] for entry in invocation["journal"]] == ["Input", "Run", "Output"]
    assert liar.requests == 3
    assert 0 < liar.unread <= WINDOW
