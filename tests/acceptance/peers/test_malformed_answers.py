"""Answers that break the protocol: each is refused and tried again, and nothing is left behind."""

import asyncio
import gc
import logging
from random import Random

import h2.events
import psutil
import pytest

from durable_invocations.runtime.driving.attempts import AttemptDriver
from durable_invocations.runtime.sql.database import open_database
from support.invocations.project_runtime import running
from support.invocations.scenarios import until
from support.peers.endpoint_lies import DONE, LIES, Answer, packed
from support.peers.lying_endpoint import Liar, lying
from support.peers.wire import ACK, packet

EACH = 50
ONCE = 64
WINDOW = 65_535
"""Bytes that HTTP/2 lets through until the peer has taken some."""


def _left(tasks, files):
    """The tasks that were begun and still go on, and the files more that are open."""
    begun = asyncio.all_tasks() - tasks - {asyncio.current_task()}
    return begun, max(0, psutil.Process().num_fds() - files)


@pytest.mark.parametrize("http", [1, 2], ids=["exchange", "duplex"])
def test_runtime_outlives_malformed_answers(tmp_path, caplog, record_property, http):
    chance = Random(http)
    liar = Liar([lie(chance) for _ in range(EACH) for lie in LIES])
    engine = open_database(f"sqlite:///{tmp_path}/log.db", keep_open=True)

    async def drive(url):
        async with running(engine, url, http=http) as caller:
            turns = asyncio.Semaphore(ONCE)

            async def one(number):
                async with turns:
                    return await caller.call("Liar", "go", number, key=f"k{number}")

            got = await asyncio.gather(*(one(number) for number in range(len(liar.lies))))
            assert got == ["done"] * len(liar.lies)

    async def scene():
        async with lying(liar, http=http) as url:
            before = asyncio.all_tasks(), psutil.Process().num_fds()
            await drive(url)
            engine.dispose()

            async def settled():
                return _left(*before) == (set(), 0)

            await until(settled)
            gc.collect()
            assert not [each for each in gc.get_objects() if isinstance(each, AttemptDriver)]

    with caplog.at_level(logging.WARNING):
        asyncio.run(scene())
    told = [liar.attempts[number] for number in range(len(liar.lies))]
    believed = [liar.lies[number] for number, times in enumerate(told) if times < 2]
    assert not believed, believed[:3]
    assert not [each for each in caplog.records if each.exc_info or each.levelno >= logging.ERROR]
    record_property("malformed_answers", len(liar.lies))
    record_property("attempts", sum(told))


class Hasty(Liar):
    """Answers its second attempt before it has let the replay come whole."""

    begun = held = 0

    def heard(self):
        usual = super().heard()

        def hear(connection, event):
            if isinstance(event, h2.events.RequestReceived):
                self.begun += dict(event.headers)[":method"] == "POST"
            hastily = self.begun == 2 and not isinstance(event, h2.events.RequestReceived)
            if hastily and isinstance(event, h2.events.DataReceived):
                if not self.held:
                    lie = packet("SetState", key=b"k", value=b"hasty")
                    self._respond(connection, event.stream_id, Answer(body=packed(lie, *DONE)))
                self.held += event.flow_controlled_length
            elif hastily and isinstance(event, (h2.events.StreamEnded, h2.events.StreamReset)):
                connection.acknowledge_received_data(self.held, event.stream_id)
            elif not hastily:
                usual(connection, event)

        return hear


async def test_entries_that_come_during_the_replay_are_not_stored(tmp_path):
    liar = Hasty([Answer(body=packed(packet("Run", ACK, name="r", value=b"1")), broken=True)])
    # More than a window holds, so that the replay is still under way when the answer comes.
    argument = b"0" + b" " * WINDOW
    engine = open_database(f"sqlite:///{tmp_path}/log.db", keep_open=True)

    async with lying(liar, http=2) as url, running(engine, url, http=2) as caller:
        told = {"content-type": "application/json"}
        ended = await caller.http.post("/Liar/k/go", content=argument, headers=told)
        shown = await caller.shown(ended.headers["x-restate-id"])
    engine.dispose()
    assert ended.json() == "done"
    assert [each["type"] for each in shown["journal"]] == ["Input", "Run", "Output"]
    assert liar.begun == 3
    assert 0 < liar.held <= WINDOW
