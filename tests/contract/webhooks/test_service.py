"""The sender beside a server, pings, and whose leases are inherited."""

import base64
import os
import subprocess
import sys

import pytest
from standardwebhooks.webhooks import Webhook

from iscp_dagster import Endpoint
from iscp_dagster.joblog.sql.engine import open_engine
from iscp_dagster.model.errors import ConfigError
from iscp_dagster.webhooks.outbox import Outbox
from iscp_dagster.webhooks.service import (
    SenderService,
    identify_machine,
    is_gone,
    ping,
    run_service,
)
from sql_transactions.engine import begin_transaction
from support.outbox.outbox_events import event
from support.outbox.scripted_receiver import receiving, reply, until

SECRET = "whsec_" + base64.b64encode(b"x" * 32).decode()


def endpoint(url, **options):
    return Endpoint("alerts", url=url, secrets=["S"], allow=["127.0.0.1/32"], **options)


@pytest.mark.parametrize("batch", [1, 10])
async def test_a_ping_is_signed_like_an_event_and_is_in_no_outbox(batch):
    async with receiving(lambda _: reply(503, b"later")) as receiver:
        answer = await ping(endpoint(receiver.url, batch=batch), {"S": SECRET})
        received = receiver.requests[0]
    assert (answer.status, answer.text) == (503, "later")
    said = Webhook(SECRET).verify(received.body, received.headers)
    (said,) = said["data"] if batch > 1 else [said]
    assert said["event_type"] == "PING"
    assert said["event_id"] == received.id


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/log.db"
    return request.getfixturevalue("new_postgres")()


async def test_the_sender_runs_beside_a_server_until_that_ends(url):
    outbox = Outbox(open_engine(url))
    outbox.ensure()
    loads = []

    async with receiving() as receiver:

        def load():
            loads.append(receiver.url)
            return SenderService({"S": SECRET, "ISCP_LOG_URL": url}, [endpoint(receiver.url)])

        async with run_service(load):
            with begin_transaction(outbox.engine, writes=True) as connection:
                outbox.put(connection, [event(1)])
            await until(lambda: outbox.list_deliveries()[0].ended_at)
        assert receiver.ids == ["alarm-1"]
    assert len(loads) == 1


def test_it_is_refused_at_once_without_a_log_or_a_secret():
    with pytest.raises(ConfigError, match="ISCP_LOG_URL is not set"):
        SenderService({"S": SECRET}, [])
    with pytest.raises(ConfigError, match="the environment variable S is not set"):
        SenderService({"ISCP_LOG_URL": "sqlite:///x"}, [endpoint("http://127.0.0.1/")])


def test_only_a_process_of_this_machine_that_lives_no_more_is_gone():
    here = identify_machine()
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    assert is_gone(f"{here}:{process.pid}:ab", here)
    assert not is_gone(f"{here}:{os.getpid()}:ab", here)
    assert not is_gone(f"other/{here}:{process.pid}:ab", here)
    assert not is_gone(f":{process.pid}:ab", "")
    assert not is_gone("", here)
