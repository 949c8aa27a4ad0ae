"""10,000 events through real processes while sender and receiver are killed in turn."""

import base64
import os
import random
import subprocess
import sys
import time
from collections import Counter

import pytest

from iscp_dagster.joblog.sql.engine import open_engine
from iscp_dagster.local.stack.ports import find_free_port
from iscp_dagster.webhooks.outbox import Outbox
from support.outbox.outbox_events import event, put

SECRET = "whsec_" + base64.b64encode(b"x" * 32).decode()
DECLARED = """
from iscp_dagster import Endpoint

alerts = Endpoint(
    "alerts", url="http://127.0.0.1:{port}/", secrets=["ALERTS_SECRET"], allow=["127.0.0.1/32"],
    retries=[0.2] * 1000, concurrency=16, batch={batch},
)
"""
RECEIVER = """
import hashlib, json, os, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

webhook, file = Webhook(os.environ["ALERTS_SECRET"]), open(sys.argv[2], "ab", buffering=0)

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        length = int(self.headers["content-length"])
        body = self.rfile.read(length)
        if len(body) < length:
            # The sender was killed in the middle of its request.
            self.close_connection = True
            return
        try:
            said = webhook.verify(body, dict(self.headers))
        except WebhookVerificationError:
            file.write(b"message REFUSED digest request\\n")
            raise
        events = said.get("data", [said]) if "event_id" not in said else [said]
        digest = hashlib.sha256(body).hexdigest()
        of = self.headers["webhook-id"]
        rest = f"{digest} {os.urandom(8).hex()}\\n"
        file.write("".join(f"{of} {each['event_id']} {rest}" for each in events).encode())
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_):
        pass

ThreadingHTTPServer.request_queue_size = 128
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
EVENTS, KEYS = 10_000, 500
SECONDS = 3_600
"""The limit on a machine busy with other tests, where each start takes half a minute."""


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 60)
@pytest.mark.parametrize("batch", [1, 20])
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_every_event_arrives_while_sender_and_receiver_are_killed(
    request, tmp_path, database, batch, record_property
):
    url = f"sqlite:///{tmp_path}/log.db"
    if database == "postgresql":
        url = request.getfixturevalue("new_postgres")()
    port, told, chance = find_free_port(), tmp_path / "received", random.Random(batch)
    (tmp_path / "declared_endpoints.py").write_text(DECLARED.format(port=port, batch=batch))
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ISCP_")}
    own = {"ISCP_ASSETS": "declared_endpoints", "ISCP_LOG_URL": url, "ALERTS_SECRET": SECRET}
    commands = {
        "sender": (sys.executable, "-m", "iscp_dagster.cli.main", "send"),
        "receiver": (sys.executable, "-c", RECEIVER, str(port), str(told)),
    }

    def start(name):
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        return subprocess.Popen(commands[name], cwd=tmp_path, env=kept | own, **quiet)

    outbox = Outbox(open_engine(url))
    outbox.ensure()
    running = {name: start(name) for name in commands}
    kills, sent, end = 0, 0, time.monotonic() + SECONDS

    def delivered():
        assert time.monotonic() < end, outbox.count_deliveries()
        return sum(each.events for each in outbox.count_deliveries() if each.state == "delivered")

    try:
        while delivered() < EVENTS:
            some = range(sent, min(sent + 500, EVENTS))
            put(outbox, *(event(n, key=n % KEYS) for n in some))
            sent = some.stop
            # Both have come up, and something is under way.
            goal = min(delivered() + chance.randint(1, 400), sent)
            while delivered() < goal:
                time.sleep(0.02)
            victim = ("sender", "receiver")[kills % 2]
            running[victim].kill()
            running[victim].wait()
            running[victim], kills = start(victim), kills + 1
    finally:
        for each in running.values():
            each.kill()
            each.wait()
    lines = [line.split() for line in told.read_text().splitlines()]
    accepted = Counter(id_ for _, id_, *_ in lines)
    assert set(accepted) == {f"alarm-{number}" for number in range(EVENTS)}
    assert len({(message, digest) for message, _, digest, _ in lines}) == len(
        {m for m, *_ in lines}
    )
    for key in range(KEYS):
        of_key = [id_ for _, id_, *_ in lines if int(id_[6:]) % KEYS == key]
        first = list(dict.fromkeys(of_key))
        assert first == [f"alarm-{number}" for number in range(key, EVENTS, KEYS)]
    record_property("events", EVENTS)
    record_property("duplicates", len(lines) - EVENTS)
    record_property("kills", kills)
    # The receiver writes down nothing that the package has not verified.
    record_property("signatures", len({request for *_, request in lines}))
