"""`iscp send` as a process that is killed: what was not recorded is sent again, with its id."""

from __future__ import annotations

import asyncio
import base64
import os
import signal
import sys
from collections import Counter
from contextlib import asynccontextmanager

from standardwebhooks.webhooks import Webhook

from iscp_dagster.joblog.sql.engine import open_engine
from iscp_dagster.model.clock import get_utc_now
from iscp_dagster.webhooks.history import OutboxSelection
from iscp_dagster.webhooks.outbox import Outbox
from support.outbox.outbox_events import event, put
from support.outbox.scripted_receiver import receiving, reply, until

SECRET = "whsec_" + base64.b64encode(b"x" * 32).decode()
DECLARED = """
from iscp_dagster import Endpoint

alerts = Endpoint(
    "alerts", url={url!r}, secrets=["ALERTS_SECRET"], allow=["127.0.0.1/32"], concurrency=4
)
"""
EVENTS, KEYS = 60, 7


@asynccontextmanager
async def sending(folder, url, **environ):
    (folder / "declared_endpoints.py").write_text(DECLARED.format(url=url))
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ISCP_")}
    log = f"sqlite:///{folder}/log.db"
    own = {"ISCP_ASSETS": "declared_endpoints", "ISCP_LOG_URL": log, "ALERTS_SECRET": SECRET}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "iscp_dagster.cli.main", "send"),
        cwd=folder,
        env=kept | own | environ,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await process.wait()
        process._transport.close()


async def test_a_killed_sender_sends_only_what_was_not_recorded_again(tmp_path, record_property):
    outbox = Outbox(open_engine(f"sqlite:///{tmp_path}/log.db"), clock=get_utc_now)
    outbox.ensure()
    put(outbox, *(event(number, key=number % KEYS) for number in range(EVENTS)))
    recorded: set[str] = set()

    async def slow(_):
        await asyncio.sleep(0.01)
        return reply()

    async with receiving(slow) as receiver:
        async with sending(tmp_path, receiver.url) as process:
            await until(lambda: len(delivered(outbox)) >= EVENTS // 3)
            process.kill()
            await process.wait()
        recorded.update(delivered(outbox))
        async with sending(tmp_path, receiver.url) as process:
            assert await process.stdout.readline() == b"Delivering to alerts.\n"
            await until(lambda: len(delivered(outbox)) == EVENTS)
        assert process.returncode == 0
    counts = Counter(receiver.ids)
    assert set(counts) == {f"alarm-{number}" for number in range(EVENTS)}
    assert len(recorded) < EVENTS
    assert {counts[each] for each in recorded} == {1}
    for each in receiver.requests:
        assert Webhook(SECRET).verify(each.body, each.headers)["event_id"] == each.id
    for key in range(KEYS):
        first = list(dict.fromkeys(id_ for id_ in receiver.ids if int(id_[6:]) % KEYS == key))
        assert first == [f"alarm-{number}" for number in range(key, EVENTS, KEYS)]
    record_property("events", EVENTS)
    record_property("duplicates", len(receiver.ids) - EVENTS)


def delivered(outbox):
    return [each.event_id for each in outbox.list_deliveries(OutboxSelection(state="delivered"))]


async def test_a_missing_secret_is_told_at_once(tmp_path):
    async with sending(tmp_path, "https://example.com/", ALERTS_SECRET="") as process:
        _, said = await process.communicate()
    assert process.returncode == 1
    assert said.startswith(
        b"iscp: Endpoint 'alerts': the environment variable ALERTS_SECRET is not"
    )
