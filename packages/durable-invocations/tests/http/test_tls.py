"""Service deployments behind TLS, with and without HTTP/2."""

from __future__ import annotations

import asyncio

import pytest

from durable_invocations import Context, Service, service_app
from durable_invocations.runtime.http.client import HTTP_1, HTTP_2
from durable_invocations.runtime.http.connecting import TRUSTED
from durable_invocations.runtime.http.exchange import DeploymentUnreachableError, NotHttp2Error
from runtime_support.endpoints.asgi_servers import hypercorn_of, uvicorn_of
from runtime_support.endpoints.certificates import certificate
from runtime_support.errors import raises_naming
from runtime_support.runtimes.sqlite_runtime import running

greeter = Service("Greeter")


@greeter.handler
async def greet(ctx: Context, name: str) -> str:
    first = await ctx.run("name", name.upper)
    return f"hello {first}"


@pytest.fixture(scope="module")
def identity(tmp_path_factory):
    return certificate(tmp_path_factory.mktemp("tls"))


def uvicorn_with_tls(app, certificate):
    return uvicorn_of(app, ssl_certfile=certificate[0], ssl_keyfile=certificate[1])


def hypercorn_of_http_1(app, certificate):
    return hypercorn_of(app, certificate=certificate, alpn_protocols=["http/1.1"])


SERVERS = {
    "http2": (hypercorn_of, HTTP_2),
    "http1": (uvicorn_with_tls, HTTP_1),
    "http1-by-alpn": (hypercorn_of_http_1, HTTP_1),
}


@pytest.mark.parametrize("name", SERVERS)
async def test_invocations_are_driven_over_tls(tmp_path, identity, name):
    serve, version = SERVERS[name]

    with serve(service_app(greeter), certificate=identity) as server:
        async with running(tmp_path, trusted=identity[0]) as driver:
            await driver.runtime.register(server.url.replace("http:", "https:"))
            calls = (driver.call("Greeter/greet", "you") for _ in range(5))
            deployment = driver.store.deployments()[0]
            outputs = await asyncio.gather(*calls)
    assert (deployment.http, deployment.url[:6]) == (version, "https:")
    assert outputs == ["hello YOU"] * 5


WRONG = {
    "unknown": ({}, ["self-signed"]),
    "expired": ({"days": (-9, -1)}, ["expired"]),
    "too early": ({"days": (1, 9)}, ["not yet valid"]),
    "another's": ({"address": "127.0.0.9"}, ["'127.0.0.1'"]),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("version", [HTTP_1, HTTP_2])
async def test_an_untrusted_or_unfit_certificate_is_refused(tmp_path, wrong, version):
    """An unfit one is refused though its issuer is trusted."""
    options, values = WRONG[wrong]
    identity = certificate(tmp_path, **options)
    trusted = identity[0] if options else None

    with hypercorn_of(service_app(greeter), certificate=identity) as server:
        async with running(tmp_path, trusted=trusted) as driver:
            with raises_naming(DeploymentUnreachableError, server.url, TRUSTED, *values):
                await driver.runtime.register(server.url, http=version)
            assert driver.store.deployments() == []


async def test_ssl_cert_file_names_the_trusted_certificates(tmp_path, identity, monkeypatch):
    monkeypatch.setenv(TRUSTED, identity[0])

    with hypercorn_of(service_app(greeter), certificate=identity) as server:
        async with running(tmp_path) as driver:
            await driver.runtime.register(server.url)
            assert await driver.call("Greeter/greet", "you") == "hello YOU"


async def test_a_server_without_http_2_is_not_registered_as_one_with_it(tmp_path, identity):
    with uvicorn_with_tls(service_app(greeter), certificate=identity) as server:
        async with running(tmp_path, trusted=identity[0]) as driver:
            url = server.url.replace("http:", "https:")
            with raises_naming(NotHttp2Error, url, "TLS"):
                await driver.runtime.register(url, http=HTTP_2)
