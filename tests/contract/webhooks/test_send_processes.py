"""`iscp send` as a process that is killed: what was not recorded is sent again, with its id."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections import Counter
from contextlib import asynccontextmanager

from standardwebhooks.webhooks import Webhook

from iscp_dagster.joblog.sql.engine import open_engine
from iscp_dagster.model.clock import get_utc_now
from iscp_dagster.webhooks.history import OutboxSelection
from iscp_dagster.webhooks.outbox import Outbox
from support.errors import assert_names
from support.outbox.outbox_events import event, put
from support.outbox.scripted_receiver import receiving, reply, until

SECRET = "whsec_eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHg="
EVENTS, KEYS = 60, 7


@asynccontextmanager
async def run_send(options):
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "iscp_dagster.cli.main", "send"),
        cwd=options["cwd"],
        env=options["env"] | {"ALERTS_SECRET": SECRET},
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


def list_delivered(outbox):
    return [each.event_id for each in outbox.list_deliveries(OutboxSelection(state="delivered"))]


async def test_a_killed_sender_sends_again_only_what_was_not_recorded(
    tmp_path, declare_endpoint, record_property
):
    log_url = f"sqlite:///{tmp_path}/log.db"
    outbox = Outbox(open_engine(log_url), clock=get_utc_now)
    outbox.ensure_log_tables()
    put(outbox, *(event(number, key=number % KEYS) for number in range(EVENTS)))

    async def answer_slowly(_):
        await asyncio.sleep(0.01)
        return reply()

    async with receiving(answer_slowly) as receiver:
        options = declare_endpoint(receiver.url, log_url, concurrency=4)
        async with run_send(options) as process:
            await until(lambda: len(list_delivered(outbox)) >= EVENTS // 3)
            process.kill()
            await process.wait()
        recorded = set(list_delivered(outbox))
        async with run_send(options) as process:
            assert_names((await process.stdout.readline()).decode(), "alerts")
            await until(lambda: len(list_delivered(outbox)) == EVENTS)
        assert process.returncode == 0
    counts = Counter(receiver.ids)
    assert set(counts) == {f"alarm-{number}" for number in range(EVENTS)}
    assert len(recorded) < EVENTS
    assert {counts[id_] for id_ in recorded} == {1}
    for request in receiver.requests:
        assert Webhook(SECRET).verify(request.body, request.headers)["event_id"] == request.id
    for key in range(KEYS):
        ids = dict.fromkeys(id_ for id_ in receiver.ids if int(id_[6:]) % KEYS == key)
        assert list(ids) == [f"alarm-{number}" for number in range(key, EVENTS, KEYS)]
    record_property("events", EVENTS)
    record_property("duplicates", len(receiver.ids) - EVENTS)
