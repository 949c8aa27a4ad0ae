"""The npm client graphql-ws follows a subscription while the server is ended again and again."""

import json
import subprocess
from collections import Counter

from support.clients.npm import node_command
from support.clients.trades_server import FIELD


def test_graphql_ws_gets_each_change_once(
    packages, trades, tmp_path, check_restarts, record_property
):
    file = tmp_path / "lines"

    def read(kind):
        """Return that part of the whole lines that the client has written."""
        lines = map(json.loads, file.read_text().split("\n")[:-1])
        return [line[kind] for line in lines if kind in line]

    command = node_command(packages, "follower.js", trades.websocket, FIELD)
    ends = {"stdin": subprocess.PIPE}
    with file.open("wb") as output, subprocess.Popen(command, stdout=output, **ends) as client:
        try:
            check_restarts(lambda: read("message"))
            assert client.poll() is None
        finally:
            client.kill()
    assert len(read("connected")) == trades.ends + 1
    assert read("errors") == read("error") == []
    record_property("closed with", dict(Counter(read("closed"))))
