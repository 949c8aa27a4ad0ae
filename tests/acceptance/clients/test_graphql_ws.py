"""The npm client graphql-ws follows a subscription while the server is ended again and again."""

from __future__ import annotations

import json
import signal
import subprocess
from collections import Counter
from contextlib import contextmanager
from itertools import cycle, islice

import pytest
from npm import node_command
from servedtrades import AT_ONCE, FIELD, told_by
from stackfixture import wait_for

SECONDS = 60
COMMITS = 4
"""Between two ends of the server."""


@contextmanager
def following(packages, trades, file):
    """Run the client, whose lines go to a file."""
    command = node_command(packages, "follower.js", trades.websocket, FIELD)
    with file.open("wb") as output, subprocess.Popen(command, stdout=output) as client:
        try:
            yield client
        finally:
            client.kill()


def said(file):
    """Return the whole lines that the client has written."""
    return [json.loads(line) for line in file.read_text().split("\n")[:-1]]


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("ends", [2, pytest.param(40, marks=pytest.mark.soak)])
def test_graphql_ws_is_told_each_change_once_while_the_server_is_ended(
    packages, trades, tmp_path, ends, record_property
):
    file = tmp_path / "told"

    def messages():
        return [each["message"] for each in said(file) if "message" in each]

    with following(packages, trades, file) as client:
        wait_for(lambda: len(messages()) >= trades.total, SECONDS, file.read_text)
        for how in islice(cycle([signal.SIGKILL, signal.SIGTERM]), ends):
            some = len(messages()) + trades.chance.randint(1, COMMITS * AT_ONCE)
            for _ in range(COMMITS):
                trades.commit()
            # In the middle of what it is being told.
            wait_for(
                lambda some=some: len(messages()) >= some, SECONDS, file.read_text, every=0.005
            )
            trades.restart(how)
        trades.commit()
        wait_for(lambda: len(messages()) >= trades.total, SECONDS, file.read_text)
        assert client.poll() is None
    assert told_by(messages()) == trades.changes
    kinds = Counter(next(iter(each)) for each in said(file))
    assert kinds["connected"] == ends + 1
    assert kinds["errors"] == kinds["error"] == 0
    record_property("messages", kinds["message"])
    record_property("ends", ends)
    closed = Counter(each["closed"] for each in said(file) if "closed" in each)
    record_property("closed with", dict(closed))
