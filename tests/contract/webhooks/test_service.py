"""The sender beside a server, pings, and the leases of processes that have ended."""

import os
import subprocess
import sys

import pytest
from standardwebhooks.webhooks import Webhook

from iscp_dagster import Endpoint
from iscp_dagster.model.errors import ConfigError
from iscp_dagster.webhooks.service import (
    SenderService,
    identify_machine,
    is_gone,
    ping,
    run_service,
)
from support.errors import raises_naming
from support.outbox.outbox_events import event, put
from support.outbox.scripted_receiver import receiving, reply, until

SECRET = "whsec_eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHg="


def endpoint(url, **options):
    return Endpoint("alerts", url=url, secrets=["S"], allow=["127.0.0.1/32"], **options)


@pytest.mark.parametrize("batch", [1, 10])
async def test_a_ping_is_signed_like_an_event_and_is_in_no_outbox(batch):
    async with receiving(lambda _: reply(503, b"later")) as receiver:
        answer = await ping(endpoint(receiver.url, batch=batch), {"S": SECRET})
        received = receiver.requests[0]
    assert (answer.status, answer.text) == (503, "later")
    body = Webhook(SECRET).verify(received.body, received.headers)
    (event_,) = body["data"] if batch > 1 else [body]
    assert (event_["event_type"], event_["event_id"]) == ("PING", received.id)


async def test_the_sender_runs_beside_a_server_until_that_ends(outbox):
    url, loads = outbox.engine.url.render_as_string(hide_password=False), []

    async with receiving() as receiver:

        def load():
            loads.append(receiver.url)
            return SenderService({"S": SECRET, "ISCP_LOG_URL": url}, [endpoint(receiver.url)])

        async with run_service(load):
            put(outbox, event(1))
            await until(lambda: outbox.list_deliveries()[0].ended_at)
        assert receiver.ids == ["alarm-1"]
    assert len(loads) == 1


def test_a_sender_without_a_log_or_a_secret_is_refused_at_once():
    with raises_naming(ConfigError, "ISCP_LOG_URL"):
        SenderService({"S": SECRET}, [])
    with raises_naming(ConfigError, "'alerts'", "S"):
        SenderService({"ISCP_LOG_URL": "sqlite:///x"}, [endpoint("http://127.0.0.1/")])


def test_only_a_process_of_this_machine_that_has_ended_is_gone():
    machine = identify_machine()
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    assert is_gone(f"{machine}:{process.pid}:ab", machine)
    assert not is_gone(f"{machine}:{os.getpid()}:ab", machine)
    assert not is_gone(f"other/{machine}:{process.pid}:ab", machine)
    assert not is_gone(f":{process.pid}:ab", "")
    assert not is_gone("", machine)
