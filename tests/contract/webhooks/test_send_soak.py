"""10,000 events through real processes while sender and receiver are killed in turn."""

import random
import subprocess
import sys
import time

import pytest

from iscp_dagster.joblog.sql.engine import open_engine
from iscp_dagster.local.stack.ports import find_free_port
from iscp_dagster.webhooks.outbox import Outbox
from support.outbox.outbox_events import event, put

SECRET = "whsec_eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHg="
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
            content = webhook.verify(body, dict(self.headers))
        except WebhookVerificationError:
            file.write(b"message REFUSED digest request\\n")
            raise
        events = [content] if "event_id" in content else content["data"]
        digest = hashlib.sha256(body).hexdigest()
        message = self.headers["webhook-id"]
        rest = f"{digest} {os.urandom(8).hex()}\\n"
        file.write("".join(f"{message} {each['event_id']} {rest}" for each in events).encode())
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
    request, tmp_path, declare_endpoint, database, batch, record_property
):
    log_url = f"sqlite:///{tmp_path}/log.db"
    if database == "postgresql":
        log_url = request.getfixturevalue("new_postgres")()
    port, received, chance = find_free_port(), tmp_path / "received", random.Random(batch)
    retries, address = [0.2] * 1_000, f"http://127.0.0.1:{port}/"
    options = declare_endpoint(address, log_url, retries=retries, concurrency=16, batch=batch)
    options["env"]["ALERTS_SECRET"] = SECRET
    commands = {
        "sender": (sys.executable, "-m", "iscp_dagster.cli.main", "send"),
        "receiver": (sys.executable, "-c", RECEIVER, str(port), str(received)),
    }

    def start(name):
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        return subprocess.Popen(commands[name], **options, **quiet)

    outbox = Outbox(open_engine(log_url))
    outbox.ensure_log_tables()
    running = {name: start(name) for name in commands}
    kills, sent, end = 0, 0, time.monotonic() + SECONDS

    def count_delivered():
        counts = outbox.count_deliveries()
        assert time.monotonic() < end, counts
        return sum(count.events for count in counts if count.state == "delivered")

    try:
        while (delivered := count_delivered()) < EVENTS:
            numbers = range(sent, min(sent + 500, EVENTS))
            put(outbox, *(event(number, key=number % KEYS) for number in numbers))
            sent = numbers.stop
            # Both have come up, and something is under way.
            goal = min(delivered + chance.randint(1, 400), sent)
            while count_delivered() < goal:
                time.sleep(0.02)
            victim = ("sender", "receiver")[kills % 2]
            running[victim].kill()
            running[victim].wait()
            running[victim], kills = start(victim), kills + 1
    finally:
        for process in running.values():
            process.kill()
            process.wait()
    lines = [line.split() for line in received.read_text().splitlines()]
    assert {id_ for _, id_, *_ in lines} == {f"alarm-{number}" for number in range(EVENTS)}
    bodies = {(message, digest) for message, _, digest, _ in lines}
    assert len(bodies) == len({message for message, *_ in lines})
    for key in range(KEYS):
        ids = dict.fromkeys(id_ for _, id_, *_ in lines if int(id_[6:]) % KEYS == key)
        assert list(ids) == [f"alarm-{number}" for number in range(key, EVENTS, KEYS)]
    record_property("events", EVENTS)
    record_property("duplicates", len(lines) - EVENTS)
    record_property("kills", kills)
    # The receiver writes down nothing that the package has not verified.
    record_property("signatures", len({number for *_, number in lines}))
