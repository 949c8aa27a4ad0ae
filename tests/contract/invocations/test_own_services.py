"""The deployment's runtime: its settings, its own services, and what the checkup says of it."""

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
from iscp_dagster.cli.checkup import inspect_invocations, run_inspection
from iscp_dagster.jobservices.runtime_server import (
    OWN_DEPLOYMENT_ID,
    SERVICES_PATH,
    build_settings,
    check_host,
    derive_services_path,
)
from iscp_dagster.model.errors import ConfigError, UnavailableError
from iscp_dagster.model.variables import INVOCATIONS_TOKEN, INVOCATIONS_URL, LOG_URL
from iscp_dagster.serviceconsumers.runtime_client import open_runtime
from runtime_support.endpoints.asgi_servers import uvicorn_of
from runtime_support.endpoints.lying_runtimes import http, lying
from runtime_support.runtimes.live_runtime import DEADLINE, asked_for, until
from support.errors import assert_names, raises_naming
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


def test_the_checkup_names_a_paused_invocation(client, tmp_path):
    environ = {INVOCATIONS_URL: client.url, INVOCATIONS_TOKEN: TOKEN}
    id_, _ = asked_for(client, tmp_path)
    until(lambda: client.invocation(id_)["status"] == "suspended")
    assert client.change_invocation(id_, "pause")
    (finding,) = inspect_invocations(environ)
    assert_names(finding.problem, 1, id_, "Desk/approve")
    assert client.resume(id_)
    assert client.kill(id_)
    (finding,) = inspect_invocations(environ)
    assert not finding.problem


def test_the_checkup_names_a_runtime_that_does_not_answer():
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        (finding,) = inspect_invocations({INVOCATIONS_URL: url})
    assert_names(finding.problem, url)
    assert list(inspect_invocations({})) == []


def test_the_checkup_goes_on_after_an_answer_that_no_runtime_gives():
    with lying(http(b'{"invocations":[{}]}')) as url:
        findings = list(
            run_inspection("invocations", lambda: inspect_invocations({INVOCATIONS_URL: url}))
        )
    assert [each.code for each in findings] == [UnavailableError.code]


@pytest.mark.parametrize("url", ["127.0.0.1:4080", "http://me:secret@host"])
def test_an_invalid_address_is_a_mistake_in_a_setting(url):
    for use in (open_runtime, lambda url: open_invocations_client({INVOCATIONS_URL: url})):
        with raises_naming(ConfigError, INVOCATIONS_URL) as wrong:
            use(url)
        assert "secret" not in str(wrong.value)


def test_without_an_address_the_command_that_sets_it_is_named():
    for environ in ({}, {INVOCATIONS_URL: ""}):
        with raises_naming(ConfigError, INVOCATIONS_URL, 'eval "$(iscp env)"'):
            open_invocations_client(environ)


def test_the_own_services_have_one_id_and_only_the_token_reaches_them(client, url):
    """Only a holder of the token can learn their path, and invoke them past the runtime."""
    (own,) = client.deployments()
    assert own["id"] == OWN_DEPLOYMENT_ID
    assert own["uri"] == f"{url}{derive_services_path(TOKEN)}"
    assert [each["name"] for each in own["services"]] == ["Counter", "Desk"]
    discover = {"accept": "application/vnd.restate.endpointmanifest.v1+json"}
    for path in (SERVICES_PATH, f"{SERVICES_PATH}/{'0' * 64}"):
        answer = httpx.get(f"{url}{path}/discover", headers=discover, trust_env=False)
        assert answer.status_code == 401
    assert client.register(own["uri"])["id"] == OWN_DEPLOYMENT_ID


@pytest.mark.parametrize("force", [False, True])
def test_no_other_address_takes_over_the_own_services(client, force):
    """A foreign service of the same name would get the invocations that are meant for them."""
    other = Service("Desk")

    @other.handler
    async def double(_ctx: Context, number: int) -> str:
        return "another's"

    naming = raises_naming(InvocationRefusedError, "'Desk'")
    with uvicorn_of(service_app(other)) as served, naming as refused:
        client.register(served.url, force=force)
    assert refused.value.status == 422
    assert client.call("Desk", "double", 2, seconds=DEADLINE) == 4
    assert [each["id"] for each in client.deployments()] == [OWN_DEPLOYMENT_ID]


def test_an_invocation_of_the_own_services_goes_on_at_another_port_and_token(tmp_path):
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


def test_the_digest_of_the_token_in_the_own_services_path_is_not_shown(tmp_path, caplog):
    log, own = f"sqlite:///{tmp_path}/log.sqlite", service_app(desk)

    async def failing(scope, receive, send):
        app = PlainTextResponse("busy", 503) if "/invoke/" in scope["path"] else own
        await app(scope, receive, send)

    secret = derive_services_path(TOKEN).rpartition("/")[2]
    with runtime_of(log, token=TOKEN, services=failing) as url, Client(url, TOKEN) as client:
        until(client.services)
        sent = client.send("Desk", "double", 2)
        error = until(lambda: client.invocation(sent.id)["error"])
    assert_names(error["message"], "services/…", "invoke/Desk/double", 503)
    assert_names(caplog.text, 503)
    assert secret not in error["message"] + caplog.text


@pytest.mark.parametrize(("kept", "prune"), [(0.1, 1.0), (5, 5.0), (86_400, 60.0)])
def test_a_short_retention_is_pruned_as_often(kept, prune):
    settings = build_settings(
        {LOG_URL: "sqlite:///x"}, "127.0.0.1", retention=timedelta(seconds=kept)
    )
    assert settings.runtime.prune == prune


def test_only_loopback_needs_no_token():
    for host in ("127.0.0.1", "::1", "localhost"):
        check_host(host, "")
    for host in ("0.0.0.0", "::", "10.0.0.7", "example.org"):
        check_host(host, TOKEN)
        with raises_naming(ConfigError, f"--host {host!r}", INVOCATIONS_TOKEN):
            check_host(host, "")


def test_settings_need_a_log_and_a_long_token():
    with raises_naming(ConfigError, INVOCATIONS_TOKEN, "openssl rand -hex 32"):
        build_settings({LOG_URL: "sqlite:///x", INVOCATIONS_TOKEN: "short"}, "127.0.0.1")
    with raises_naming(ConfigError, LOG_URL, "iscp up"):
        build_settings({}, "127.0.0.1")


def test_settings_show_no_secrets():
    environ = {LOG_URL: "postgresql://me:pass-word@host/db", INVOCATIONS_TOKEN: TOKEN}
    text = repr(build_settings(environ, "127.0.0.1"))
    assert TOKEN not in text
    assert "pass-word" not in text
