"""The npm client graphql-ws follows a subscription while the server is ended again and again."""

import json
import subprocess
from collections import Counter
from contextlib import contextmanager

import pytest

from support.clients.npm import node_command
from support.clients.trades_server import AT_ONCE, FIELD, told_by
from support.services.stack import wait_for
from support.workers.soak_length import rounds, soak_seconds

SECONDS = 180
"""The limit on a machine busy with other tests."""
SOAK_SECONDS = soak_seconds(240)
COMMITS = 4
"""Between two ends of the server."""


@contextmanager
def following(packages, trades, file):
    """Run the client, whose lines go to a file."""
    command = node_command(packages, "follower.js", trades.websocket, FIELD)
    ends = {"stdin": subprocess.PIPE}
    with file.open("wb") as output, subprocess.Popen(command, stdout=output, **ends) as client:
        try:
            yield client
        finally:
            client.kill()


def said(file):
    """Return the whole lines that the client has written."""
    return [json.loads(line) for line in file.read_text().split("\n")[:-1]]


@pytest.mark.timeout(SOAK_SECONDS + 600)
@pytest.mark.parametrize("most", [2, pytest.param(None, marks=pytest.mark.soak)])
def test_graphql_ws_is_told_each_change_once_while_the_server_is_ended(
    packages, trades, tmp_path, most, record_property
):
    file = tmp_path / "told"

    def messages():
        return [each["message"] for each in said(file) if "message" in each]

    with following(packages, trades, file) as client:
        wait_for(lambda: len(messages()) >= trades.total, SECONDS, file.read_text)
        for _ in rounds(most, SOAK_SECONDS):
            some = len(messages()) + trades.chance.randint(1, COMMITS * AT_ONCE)
            for _ in range(COMMITS):
                trades.commit()
            # In the middle of what it is being told.
            wait_for(
                lambda some=some: len(messages()) >= some, SECONDS, file.read_text, every=0.005
            )
            trades.restart()
        trades.commit()
        wait_for(lambda: len(messages()) >= trades.total, SECONDS, file.read_text)
        assert client.poll() is None
    assert told_by(messages()) == trades.changes
    kinds = Counter(next(iter(each)) for each in said(file))
    assert kinds["connected"] == trades.ends + 1
    assert kinds["errors"] == kinds["error"] == 0
    record_property("messages", kinds["message"])
    record_property("ends", trades.ends)
    closed = Counter(each["closed"] for each in said(file) if "closed" in each)
    record_property("closed with", dict(closed))
