"""The deployment's runtime: its settings, its own services, and a client that they are told to."""

from __future__ import annotations

import socket
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
from starlette.responses import PlainTextResponse

from durable_invocations import Context, Service, VirtualObject, service_app
from durable_invocations.client.client import Client
from durable_invocations.client.errors import InvocationRefusedError
from iscp_dagster.api.invocations import open_invocations_client
from iscp_dagster.cli.checkup import inspect_invocations as checked
from iscp_dagster.cli.checkup import run_inspection
from iscp_dagster.jobservices.server import (
    OWN,
    SERVICES,
    build_settings,
    check_host,
    derive_services_path,
)
from iscp_dagster.model.errors import ConfigError, UnavailableError
from iscp_dagster.model.variables import INVOCATIONS_TOKEN, INVOCATIONS_URL, LOG_URL
from iscp_dagster.serviceconsumers.runtime import open_runtime
from runtime_support.endpoints.asgi_servers import uvicorn_of
from runtime_support.endpoints.lying_runtimes import http, lying
from runtime_support.runtimes.live_runtime import DEADLINE, asked_for, until
from support.invocations.runtime_server import runtime_of

TOKEN = "a-token-of-this-test"
desk = Service("Desk")
counter = VirtualObject("Counter")


@desk.handler
async def double(_ctx: Context, number: int) -> int:
    return 2 * number


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
def url(tmp_path_factory):
    log = f"sqlite:///{tmp_path_factory.mktemp('log')}/log.sqlite"
    with runtime_of(log, token=TOKEN, services=service_app(desk, counter)) as url:
        yield url


@pytest.fixture
def client(url):
    with Client(url, TOKEN) as client:
        until(client.services)
        yield client


def test_the_checkup_tells_of_what_is_paused(client, tmp_path):
    environ = {INVOCATIONS_URL: client.url, INVOCATIONS_TOKEN: TOKEN}
    id_, _ = asked_for(client, tmp_path)
    until(lambda: client.invocation(id_)["status"] == "suspended")
    assert client.change_invocation(id_, "pause")
    (finding,) = checked(environ)
    assert f"paused: 1, such as {id_} of Desk/approve" in finding.problem
    assert client.resume(id_)
    assert client.kill(id_)
    (finding,) = checked(environ)
    assert not finding.problem


def test_the_checkup_tells_of_a_runtime_that_does_not_answer():
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        (finding,) = checked({INVOCATIONS_URL: f"http://127.0.0.1:{silent.getsockname()[1]}"})
    assert "does not answer" in finding.problem
    assert list(checked({})) == []


def test_the_checkup_goes_on_after_what_is_no_answer_of_a_runtime():
    with lying(http(b'{"invocations":[{}]}')) as url:
        findings = list(run_inspection("invocations", lambda: checked({INVOCATIONS_URL: url})))
    assert [each.code for each in findings] == [UnavailableError.code]


@pytest.mark.parametrize("url", ["127.0.0.1:4080", "http://me:secret@host"])
def test_a_job_is_told_which_setting_names_the_runtime(url):
    with pytest.raises(ConfigError, match=INVOCATIONS_URL):
        open_runtime(url)


@pytest.mark.parametrize("url", ["", "127.0.0.1:4080", "http://me:secret@host"])
def test_an_address_that_is_none_is_a_mistake_in_the_environment(url):
    with pytest.raises(ConfigError, match=INVOCATIONS_URL) as wrong:
        open_invocations_client({INVOCATIONS_URL: url})
    assert "secret" not in str(wrong.value)
    with pytest.raises(ConfigError, match=r'INVOCATIONS_URL is not set.*`eval "\$\(iscp env\)"`'):
        open_invocations_client({})


def test_the_own_services_are_registered_under_one_id_and_out_of_reach_of_others(client, url):
    """Whoever has the token can learn their path; nobody else can invoke them past the runtime."""
    (own,) = client.deployments()
    assert own["id"] == OWN
    assert own["uri"] == f"{url}{derive_services_path(TOKEN)}"
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


def test_what_the_own_services_began_goes_on_at_another_port_and_token(tmp_path):
    log, own = f"sqlite:///{tmp_path}/log.sqlite", service_app(desk)
    with runtime_of(log, services=own) as first, Client(first) as client:
        until(client.services)
        id_, awakeable = asked_for(client, tmp_path)
    with runtime_of(log, token=TOKEN, services=own) as second, Client(second, TOKEN) as client:
        uri = f"{second}{derive_services_path(TOKEN)}"
        until(lambda: [each["uri"] for each in client.deployments()] == [uri])
        assert client.resolve(awakeable, "at last")
        assert client.attach(id_, seconds=DEADLINE) == "at last"
    assert not second.startswith(first)


def test_what_stands_for_the_token_in_the_own_services_path_is_not_told(tmp_path, caplog):
    log, own = f"sqlite:///{tmp_path}/log.sqlite", service_app(desk)

    async def failing(scope, receive, send):
        app = PlainTextResponse("busy", 503) if "/invoke/" in scope["path"] else own
        await app(scope, receive, send)

    secret = derive_services_path(TOKEN).rpartition("/")[2]
    with runtime_of(log, token=TOKEN, services=failing) as url, Client(url, TOKEN) as client:
        until(client.services)
        sent = client.send("Desk", "double", 2)
        error = until(lambda: client.invocation(sent.id)["error"])
    assert "/services/… answers /invoke/Desk/double with status 503" in error["message"]
    assert "status 503" in caplog.text
    assert secret not in error["message"] + caplog.text


@pytest.mark.parametrize(("kept", "prune"), [(0.1, 1.0), (5, 5.0), (86_400, 60.0)])
def test_what_is_kept_shortly_is_forgotten_as_soon(kept, prune):
    settings = build_settings(
        {LOG_URL: "sqlite:///x"}, "127.0.0.1", retention=timedelta(seconds=kept)
    )
    assert settings.runtime.prune == prune


def test_another_address_than_loopback_needs_a_token():
    for host in ("127.0.0.1", "::1", "localhost"):
        check_host(host, "")
    check_host("0.0.0.0", TOKEN)
    for host in ("0.0.0.0", "::", "10.0.0.7", "example.org"):
        with pytest.raises(ConfigError, match=f"{INVOCATIONS_TOKEN} is not set"):
            check_host(host, "")
    with pytest.raises(ConfigError, match=f"{INVOCATIONS_TOKEN} is invalid"):
        build_settings({LOG_URL: "sqlite:///x", INVOCATIONS_TOKEN: "short"}, "127.0.0.1")
    with pytest.raises(ConfigError, match=f"{LOG_URL} is not set"):
        build_settings({}, "127.0.0.1")


def test_settings_show_no_secrets():
    environ = {LOG_URL: "postgresql://me:pass-word@host/db", INVOCATIONS_TOKEN: TOKEN}
    shown_ = repr(build_settings(environ, "127.0.0.1"))
    assert TOKEN not in shown_
    assert "pass-word" not in shown_
