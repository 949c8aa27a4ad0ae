"""The client against a runtime with a token."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from durable_invocations import Context, Service, TerminalError, VirtualObject, service_app
from durable_invocations.client.client import Client, SentInvocation
from durable_invocations.client.errors import (
    InvocationFailedError,
    InvocationRefusedError,
    TokenRefusedError,
)
from durable_invocations.errors import ConfigError, UnavailableError, WaitError
from durable_invocations.protocol.ids import format_id, make_id
from runtime_support.errors import raises_naming
from runtime_support.runtimes.live_runtime import DEADLINE, asked_for, running, until

TOKEN = "a-token-of-this-test"
desk = Service("Desk")
counter = VirtualObject("Counter")


@desk.handler
async def double(_ctx: Context, number: int) -> int:
    return 2 * number


@desk.handler
async def refuse(_ctx: Context, status: int) -> None:
    raise TerminalError("it is refused", status=status)


@desk.handler
async def approve(ctx: Context, awakeable_at: str) -> str:
    id_, answer = ctx.awakeable()
    await ctx.run("tell", Path(awakeable_at).write_text, id_)
    return await answer


@counter.handler
async def add(ctx: Context, many: int) -> str:
    total = (await ctx.state.get("total") or 0) + many
    ctx.state.set("total", total)
    return f"{ctx.key}: {total}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("invocations")


@pytest.fixture(scope="module")
def url(folder):
    with running(folder, token=TOKEN) as runtime:
        runtime.client.register(runtime.serve(service_app(desk, counter)))
        yield runtime.url


@pytest.fixture
def client(url):
    with Client(url, TOKEN) as client:
        yield client


def test_a_handler_is_called_and_its_output_returned(client):
    client.check_health()
    assert client.call("Desk", "double", 21) == 42
    assert client.call("Desk", "double", b"4", idempotency_key="eight") == 8
    assert client.call("Desk", "double", b"4", idempotency_key="ächt 中") == 8
    assert client.call("Counter", "add", 2, key="a/b c") == "a/b c: 2"
    assert client.call("Counter", "add", 3, key="a/b c") == "a/b c: 5"


def test_an_idempotency_key_sends_one_invocation_that_is_attached_to(client):
    sent = client.send("Desk", "double", 1, idempotency_key="once")
    assert sent.is_new
    assert client.send("Desk", "double", 5, idempotency_key="once") == SentInvocation(
        id=sent.id, is_new=False
    )
    assert client.attach(sent.id, seconds=DEADLINE) == client.output(sent.id) == 2


KEYS = [".", "..", "../x", "a/..", "a/b", "a%2Fb", "%2e%2e", "a b", "A b", "a?b#c", "\u202e", "é"]


@pytest.mark.parametrize("key", KEYS)
def test_a_key_with_characters_of_paths_is_only_a_key(client, key):
    """A path's parts `.` and `..` go upwards: another service's handler would be invoked."""
    assert client.call("Counter", "add", 1, key=key, seconds=DEADLINE) == f"{key}: 1"


def test_a_delayed_invocation_begins_later(client):
    sent = client.send("Desk", "double", 1, delay=60)
    assert client.invocation(sent.id)["status"] == "scheduled"
    with raises_naming(WaitError, sent.id, "0.1 s"):
        client.attach(sent.id, seconds=0.1)
    with raises_naming(WaitError, sent.id):
        client.output(sent.id)
    assert client.cancel(sent.id)
    with pytest.raises(InvocationFailedError) as caught:
        client.attach(sent.id, seconds=DEADLINE)
    assert (caught.value.status, caught.value.invocation) == (409, sent.id)


def test_a_terminal_failure_names_the_invocation(client):
    with raises_naming(InvocationFailedError, 418, "it is refused") as caught:
        client.call("Desk", "refuse", 418)
    invocation = client.invocation(caught.value.invocation)
    assert invocation["result"] == {"failure": {"code": 418, "message": "it is refused"}}
    assert (caught.value.status, caught.value.reason) == (418, "it is refused")
    assert caught.value.code >= 10_000
    with raises_naming(InvocationFailedError, caught.value.invocation) as again:
        client.output(caught.value.invocation)
    assert again.value.invocation == caught.value.invocation


def test_a_handlers_failure_and_a_refusal_of_the_same_status_are_different_errors(client):
    with raises_naming(InvocationFailedError, 404):
        client.call("Desk", "refuse", 404)
    with raises_naming(InvocationRefusedError, 404, "'dance'") as caught:
        client.call("Desk", "dance")
    assert caught.value.status == 404


def test_an_awakeable_is_resolved_or_rejected(client, tmp_path):
    id_, awakeable = asked_for(client, tmp_path)
    assert client.resolve(awakeable, "yes")
    assert not client.resolve(awakeable, "no")
    assert client.attach(id_, seconds=DEADLINE) == "yes"
    (tmp_path / "awakeable").unlink()
    id_, awakeable = asked_for(client, tmp_path)
    assert client.reject(awakeable, "zu spät")
    with pytest.raises(InvocationFailedError) as caught:
        client.attach(id_, seconds=DEADLINE)
    assert (caught.value.status, caught.value.reason) == (500, "zu spät")


def test_invocations_are_listed_paused_resumed_killed_and_purged(client, tmp_path):
    id_, _ = asked_for(client, tmp_path)
    until(lambda: client.invocation(id_)["status"] == "suspended")
    invocations = client.invocations(handler="approve", status="suspended")
    assert id_ in [invocation["id"] for invocation in invocations]
    assert client.change_invocation(id_, "pause")
    assert client.resume(id_)
    assert client.kill(id_)
    assert client.purge(id_)
    with raises_naming(InvocationRefusedError, 404, id_):
        client.invocation(id_)


def test_each_of_two_runtimes_on_a_database_answers_for_the_other(client, folder, tmp_path):
    id_, awakeable = asked_for(client, tmp_path)
    with running(folder, token=TOKEN) as second:
        other = second.client
        assert other.call("Desk", "double", 4, seconds=DEADLINE) == 8
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(client.attach, id_, seconds=DEADLINE)
            assert other.resolve(awakeable, "by the other")
            assert waiting.result(DEADLINE) == other.output(id_) == "by the other"
        later = other.send("Desk", "double", 1, delay=60)
        assert client.cancel(later.id)
        with raises_naming(InvocationFailedError, 409, later.id):
            other.attach(later.id, seconds=DEADLINE)


def test_an_address_with_a_user_or_without_a_service_is_not_registered(client):
    with raises_naming(InvocationRefusedError, 422, "user"):
        client.register("http://me:secret@127.0.0.1:1")
    with raises_naming(UnavailableError, 502, "http://127.0.0.1:1"):
        client.register("http://127.0.0.1:1")
    assert len(client.deployments()) == 1


def test_unknown_invocations_are_refused(client):
    for request in (client.output, client.attach, client.invocation, client.cancel):
        id_ = format_id(make_id())
        with raises_naming(InvocationRefusedError, 404, id_) as caught:
            request(id_)
        assert caught.value.status == 404


def test_another_token_is_refused_for_now(url):
    """After a change of the token, a failure for good would stop the jobs of all tenants."""
    with Client(url, f"{TOKEN}-of-yesterday") as stale:
        stale.check_health()
        for request in (stale.services, lambda: stale.send("Desk", "double", 1)):
            with raises_naming(TokenRefusedError, 401, "token") as caught:
                request()
            assert caught.value.status == 401
            assert caught.value.code < 10_000
            assert TOKEN not in str(caught.value)


def test_a_runtime_that_does_not_answer_is_unavailable():
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with Client(url) as client, raises_naming(UnavailableError, url):
            client.services()


@pytest.mark.parametrize(
    "url",
    [
        "", "127.0.0.1:4080", "ftp://host", "http://me:secret@host", "http://host?x=secret",
        "http://", "http://h:abc", "http://[::1", "http://h:0", "http://h:99999", "http://\u0661",
        "http://h\n/",
    ],
)  # fmt: skip
def test_an_invalid_address_is_refused_and_not_shown(url):
    with raises_naming(ConfigError, "url") as caught:
        Client(url)
    assert "secret" not in str(caught.value)
