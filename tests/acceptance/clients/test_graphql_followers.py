"""gql and graphql-ws (npm) follow a subscription while its server is ended again and again."""

import asyncio
import json
import subprocess
from collections import Counter
from contextlib import contextmanager

import pytest
from gql import Client, gql
from gql.transport.exceptions import TransportClosed, TransportConnectionFailed
from gql.transport.websockets import WebsocketsTransport

from support.clients.npm import node_command
from support.clients.trades_server import AT_ONCE, FIELD, serving_trades, told_by
from support.services.stack import wait_for
from support.workers.soak_length import rounds, soak_seconds

CHANGES = f"""subscription($after: String) {{ told: {FIELD}(after: $after) {{
  operation data {{ tenant id value }} cursor }} }}"""
AGAIN_SECONDS = 0.1
AWAY = (OSError, TransportClosed, TransportConnectionFailed)
SECONDS = 180
"""The limit on a machine busy with other tests."""
SOAK_SECONDS = soak_seconds(240)
COMMITS = 4
"""Between two ends of the server."""


@pytest.fixture
def trades(clickhouse_url, tmp_path):
    with serving_trades(clickhouse_url, tmp_path) as served:
        yield served


class GqlFollower:
    """Follows the subscription with gql, and connects again after the last message."""

    def __init__(self, trades):
        self.trades, self.messages, self.connections = trades, [], 0

    def read_messages(self):
        return self.messages

    def count_connections(self):
        return self.connections

    async def run(self):
        request, after = gql(CHANGES), None
        while True:
            request.variable_values = {"after": after}
            try:
                transport = WebsocketsTransport(url=self.trades.websocket)
                async with Client(transport=transport) as session:
                    self.connections += 1
                    async for result in session.subscribe(request):
                        self.messages.append(result["told"])
                        after = result["told"]["cursor"]
            except AWAY:
                pass
            await asyncio.sleep(AGAIN_SECONDS)


class NodeFollower:
    """Reads what graphql-ws, in a process of its own, writes to a file."""

    def __init__(self, file):
        self.file = file

    def read(self, kind):
        """Return that part of the whole lines that the client has written."""
        lines = map(json.loads, self.file.read_text().split("\n")[:-1])
        return [line[kind] for line in lines if kind in line]

    def read_messages(self):
        return self.read("message")

    def count_connections(self):
        return len(self.read("connected"))


@contextmanager
def following_by_node(packages, trades, file):
    command = node_command(packages, "follower.js", trades.websocket, FIELD)
    ends = {"stdin": subprocess.PIPE}
    with file.open("wb") as output, subprocess.Popen(command, stdout=output, **ends) as client:
        try:
            yield NodeFollower(file)
            assert client.poll() is None
        finally:
            client.kill()


def end_servers(trades, followers, most):
    """Commit, and end the server in the middle of the messages, so many times."""

    def await_messages(number):
        for follower in followers:
            wait_for(
                lambda follower=follower: len(follower.read_messages()) >= number,
                SECONDS,
                lambda follower=follower: f"{len(follower.read_messages())} of {number} messages",
                every=0.005,
            )

    await_messages(trades.total)
    for _ in rounds(most, SOAK_SECONDS):
        middle = trades.total + trades.chance.randint(1, COMMITS * AT_ONCE)
        for _ in range(COMMITS):
            trades.commit()
        await_messages(middle)
        trades.restart()
    trades.commit()
    await_messages(trades.total)


@pytest.mark.timeout(SOAK_SECONDS + 600)
@pytest.mark.parametrize("most", [2, pytest.param(None, marks=pytest.mark.soak)])
async def test_each_client_gets_each_change_once(packages, trades, tmp_path, most, record_property):
    gql_follower = GqlFollower(trades)
    following = asyncio.create_task(gql_follower.run())
    with following_by_node(packages, trades, tmp_path / "lines") as node_follower:
        followers = gql_follower, node_follower
        await asyncio.to_thread(end_servers, trades, followers, most)
    assert not following.done(), following
    following.cancel()
    await asyncio.wait([following])
    for follower in followers:
        assert told_by(follower.read_messages()) == trades.changes
        assert follower.count_connections() == trades.ends + 1
    assert node_follower.read("errors") == node_follower.read("error") == []
    record_property("closed with", dict(Counter(node_follower.read("closed"))))
    record_property("messages", len(gql_follower.messages))
    record_property("ends", trades.ends)
