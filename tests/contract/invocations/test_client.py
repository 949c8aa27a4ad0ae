"""The client against a runtime with a token, whose own services are its handlers."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
from asgiservers import uvicorn_of
from runtimeserver import runtime_of
from starlette.responses import PlainTextResponse

from iscp_dagster.cli.checkup import invocations as checked
from iscp_dagster.invocations import Context, Service, TerminalError, VirtualObject, service_app
from iscp_dagster.invocations.client.client import Client, Sent
from iscp_dagster.invocations.client.errors import (
    InvocationFailedError,
    InvocationRefusedError,
    TokenRefusedError,
)
from iscp_dagster.invocations.protocol.ids import new_id, shown
from iscp_dagster.jobservices.server import OWN, SERVICES, check_host, services_path, settings_of
from iscp_dagster.model.errors import ConfigError, UnavailableError, WaitError
from iscp_dagster.model.variables import INVOCATIONS_TOKEN, INVOCATIONS_URL, LOG_URL

TOKEN = "a-token-of-this-test"
DEADLINE = 20
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
def log(tmp_path_factory):
    return f"sqlite:///{tmp_path_factory.mktemp('log')}/log.sqlite"


@pytest.fixture(scope="module")
def url(log):
    with runtime_of(log, token=TOKEN, services=service_app(desk, counter)) as url:
        yield url


@pytest.fixture
def client(url):
    with Client(url, TOKEN) as client:
        until(client.services)
        yield client


def until(found):
    """What is found, once it is."""
    ended = time.monotonic() + DEADLINE
    while not (value := found()):
        assert time.monotonic() < ended
        time.sleep(0.01)
    return value


def asked_for(client, tmp_path):
    """An invocation that waits for an awakeable, and the awakeable's id."""
    file = tmp_path / "awakeable"
    sent = client.send("Desk", "approve", str(file))
    return sent.id, until(lambda: file.exists() and file.read_text())


def test_a_handler_is_called_and_its_output_returned(client):
    client.health()
    assert client.call("Desk", "double", 21) == 42
    assert client.call("Desk", "double", b"4", idempotency_key="eight") == 8
    assert client.call("Desk", "double", b"4", idempotency_key="ächt 中") == 8
    assert client.call("Counter", "add", 2, key="a/b c") == "a/b c: 2"
    assert client.call("Counter", "add", 3, key="a/b c") == "a/b c: 5"


def test_an_invocation_is_sent_once_and_attached_to(client):
    sent = client.send("Desk", "double", 1, idempotency_key="once")
    assert sent.is_new
    assert client.send("Desk", "double", 5, idempotency_key="once") == Sent(
        id=sent.id, is_new=False
    )
    assert client.attach(sent.id, seconds=DEADLINE) == client.output(sent.id) == 2


KEYS = [".", "..", "../x", "a/..", "a/b", "a%2Fb", "%2e%2e", "a b", "A b", "a?b#c", "\u202e", "é"]


@pytest.mark.parametrize("key", KEYS)
def test_a_key_is_that_key_alone_however_it_looks_in_a_path(client, key):
    """A path's parts `.` and `..` go upwards: another service's handler would be invoked."""
    assert client.call("Counter", "add", 1, key=key, seconds=DEADLINE) == f"{key}: 1"


def test_a_delayed_invocation_begins_later(client):
    sent = client.send("Desk", "double", 1, delay=60)
    assert client.invocation(sent.id)["status"] == "scheduled"
    with pytest.raises(WaitError, match=f"{sent.id} has not ended in 0.1 s"):
        client.attach(sent.id, seconds=0.1)
    with pytest.raises(WaitError, match="has not ended yet"):
        client.output(sent.id)
    assert client.cancel(sent.id)
    with pytest.raises(InvocationFailedError) as failed:
        client.attach(sent.id, seconds=DEADLINE)
    assert failed.value.status == 409


def test_a_terminal_failure_names_the_invocation(client):
    with pytest.raises(InvocationFailedError, match="failed with 418: it is refused") as failed:
        client.call("Desk", "refuse", 418)
    found = client.invocation(failed.value.invocation)
    assert found["result"] == {"failure": {"code": 418, "message": "it is refused"}}
    assert (failed.value.status, failed.value.reason) == (418, "it is refused")
    assert failed.value.permanent
    with pytest.raises(InvocationFailedError) as again:
        client.output(failed.value.invocation)
    assert again.value.invocation == failed.value.invocation


def test_a_handlers_failure_is_told_from_a_refusal_of_the_same_status(client):
    with pytest.raises(InvocationFailedError):
        client.call("Desk", "refuse", 404)
    with pytest.raises(InvocationRefusedError, match="no handler 'dance'") as refused:
        client.call("Desk", "dance")
    assert refused.value.status == 404


def test_an_awakeable_is_resolved_or_rejected(client, tmp_path):
    id_, awakeable = asked_for(client, tmp_path)
    assert client.resolve(awakeable, "yes")
    assert not client.resolve(awakeable, "no")
    assert client.attach(id_, seconds=DEADLINE) == "yes"
    (tmp_path / "awakeable").unlink()
    id_, awakeable = asked_for(client, tmp_path)
    assert client.reject(awakeable, "zu spät")
    with pytest.raises(InvocationFailedError, match="500: zu spät"):
        client.attach(id_, seconds=DEADLINE)


def test_invocations_are_listed_paused_resumed_killed_and_purged(client, tmp_path):
    id_, _ = asked_for(client, tmp_path)
    until(lambda: client.invocation(id_)["status"] == "suspended")
    assert id_ in [each["id"] for each in client.invocations(handler="approve", status="suspended")]
    assert client.change(id_, "pause")
    (finding,) = checked({INVOCATIONS_URL: client.url, INVOCATIONS_TOKEN: TOKEN})
    assert f"paused: 1, such as {id_} of Desk/approve" in finding.problem
    assert client.resume(id_)
    assert client.kill(id_)
    (finding,) = checked({INVOCATIONS_URL: client.url, INVOCATIONS_TOKEN: TOKEN})
    assert not finding.problem
    assert client.purge(id_)
    with pytest.raises(InvocationRefusedError, match="404: There is no invocation"):
        client.invocation(id_)


def test_the_own_services_are_registered_under_one_id_and_out_of_reach_of_others(client, url):
    """Whoever has the token can learn their path; nobody else can invoke them past the runtime."""
    (own,) = client.deployments()
    assert own["id"] == OWN
    assert own["uri"] == f"{url}{services_path(TOKEN)}"
    assert [each["name"] for each in own["services"]] == ["Counter", "Desk"]
    discover = {"accept": "application/vnd.restate.endpointmanifest.v1+json"}
    for path, status in ((SERVICES, 401), (f"{SERVICES}/{'0' * 64}", 401)):
        answer = httpx.get(f"{url}{path}/discover", headers=discover, trust_env=False)
        assert answer.status_code == status
    registered = client.register(own["uri"])
    assert registered["id"] == OWN


@pytest.mark.parametrize("force", [False, True])
def test_no_other_address_takes_the_own_services_over(client, force):
    """A service of somebody else's that is called so, too, would get what is meant for them."""
    other = Service("Desk")

    @other.handler
    async def double(_ctx: Context, number: int) -> str:
        return "another's"

    told = pytest.raises(InvocationRefusedError, match="may not be called 'Desk'")
    with uvicorn_of(service_app(other)) as served, told as refused:
        client.register(served.url, force=force)
    assert refused.value.status == 422
    assert client.call("Desk", "double", 2, seconds=DEADLINE) == 4
    assert [each["id"] for each in client.deployments()] == [OWN]


def test_each_of_two_runtimes_on_a_database_answers_for_the_other(client, log, tmp_path):
    id_, awakeable = asked_for(client, tmp_path)
    with runtime_of(log, token=TOKEN) as url, Client(url, TOKEN) as other:
        assert other.call("Desk", "double", 4, seconds=DEADLINE) == 8
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(client.attach, id_, seconds=DEADLINE)
            assert other.resolve(awakeable, "by the other")
            assert waiting.result(DEADLINE) == other.output(id_) == "by the other"
        later = other.send("Desk", "double", 1, delay=60)
        assert client.cancel(later.id)
        with pytest.raises(InvocationFailedError, match="409"):
            other.attach(later.id, seconds=DEADLINE)


def test_what_the_own_services_began_goes_on_at_another_port_and_token(tmp_path):
    log, own = f"sqlite:///{tmp_path}/log.sqlite", service_app(desk)
    with runtime_of(log, services=own) as first, Client(first) as client:
        until(client.services)
        id_, awakeable = asked_for(client, tmp_path)
    with runtime_of(log, token=TOKEN, services=own) as second, Client(second, TOKEN) as client:
        uri = f"{second}{services_path(TOKEN)}"
        until(lambda: [each["uri"] for each in client.deployments()] == [uri])
        assert client.resolve(awakeable, "at last")
        assert client.attach(id_, seconds=DEADLINE) == "at last"
    assert not second.startswith(first)


def test_what_stands_for_the_token_in_the_own_services_path_is_not_told(tmp_path, caplog):
    log, own = f"sqlite:///{tmp_path}/log.sqlite", service_app(desk)

    async def failing(scope, receive, send):
        app = PlainTextResponse("busy", 503) if "/invoke/" in scope["path"] else own
        await app(scope, receive, send)

    secret = services_path(TOKEN).rpartition("/")[2]
    with runtime_of(log, token=TOKEN, services=failing) as url, Client(url, TOKEN) as client:
        until(client.services)
        sent = client.send("Desk", "double", 2)
        error = until(lambda: client.invocation(sent.id)["error"])
    assert "/services/… answers /invoke/Desk/double with status 503" in error["message"]
    assert "status 503" in caplog.text
    assert secret not in error["message"] + caplog.text


def test_what_is_not_registered_is_not_asked(client):
    with pytest.raises(InvocationRefusedError, match=r"422: The address .* has a user in it"):
        client.register("http://me:secret@127.0.0.1:1")
    with pytest.raises(UnavailableError, match="answers 502"):
        client.register("http://127.0.0.1:1")
    assert len(client.deployments()) == 1


def test_unknown_invocations_are_refused(client):
    for ask in (client.output, client.attach, client.invocation, client.cancel):
        with pytest.raises(InvocationRefusedError) as refused:
            ask(shown(new_id()))
        assert refused.value.status == 404


def test_a_token_that_was_changed_elsewhere_is_refused_for_now(url):
    """Else the jobs of all tenants would have to be repaired after each change of it."""
    with Client(url, f"{TOKEN}-of-yesterday") as stale:
        for asked in (stale.services, lambda: stale.send("Desk", "double", 1)):
            with pytest.raises(TokenRefusedError) as refused:
                asked()
            assert refused.value.status == 401
            assert not refused.value.permanent
            assert TOKEN not in str(refused.value)


def test_without_the_token_the_runtime_refuses(url):
    with Client(url, "another-token-of-it") as client:
        client.health()
        with pytest.raises(InvocationRefusedError, match=f"401.*{INVOCATIONS_TOKEN}") as refused:
            client.services()
        assert TOKEN not in str(refused.value)


def test_a_runtime_that_does_not_answer_is_unavailable():
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with Client(url) as client, pytest.raises(UnavailableError, match=f"{url} does not answer"):
            client.services()
        (finding,) = checked({INVOCATIONS_URL: url})
        assert "does not answer" in finding.problem
    assert list(checked({})) == []


@pytest.mark.parametrize(
    "url",
    [
        "",
        "127.0.0.1:4080",
        "ftp://host",
        "http://me:secret@host",
        "http://host?x=secret",
        "http://",
    ],
)
def test_an_address_that_is_none_is_a_mistake_in_the_settings(url):
    with pytest.raises(ConfigError, match=INVOCATIONS_URL) as wrong:
        Client.of({INVOCATIONS_URL: url})
    assert "secret" not in str(wrong.value)
    with pytest.raises(ConfigError, match=r'INVOCATIONS_URL is not set.*`eval "\$\(iscp env\)"`'):
        Client.of({})


@pytest.mark.parametrize(("kept", "prune"), [(0.1, 1.0), (5, 5.0), (86_400, 60.0)])
def test_what_is_kept_shortly_is_forgotten_as_soon(kept, prune):
    settings = settings_of({LOG_URL: "sqlite:///x"}, "127.0.0.1", retention=timedelta(seconds=kept))
    assert settings.runtime.prune == prune


def test_another_address_than_loopback_needs_a_token():
    for host in ("127.0.0.1", "::1", "localhost"):
        check_host(host, "")
    check_host("0.0.0.0", TOKEN)
    for host in ("0.0.0.0", "::", "10.0.0.7", "example.org"):
        with pytest.raises(ConfigError, match=f"{INVOCATIONS_TOKEN} is not set"):
            check_host(host, "")
    with pytest.raises(ConfigError, match="is no token"):
        settings_of({LOG_URL: "sqlite:///x", INVOCATIONS_TOKEN: "short"}, "127.0.0.1")
    with pytest.raises(ConfigError, match=f"{LOG_URL} is not set"):
        settings_of({}, "127.0.0.1")


def test_settings_show_no_secrets():
    environ = {LOG_URL: "postgresql://me:pass-word@host/db", INVOCATIONS_TOKEN: TOKEN}
    shown_ = repr(settings_of(environ, "127.0.0.1"))
    assert TOKEN not in shown_
    assert "pass-word" not in shown_
