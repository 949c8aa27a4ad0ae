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
from runtime_support.runtimes.sqlite_runtime import AT_ONCE, running

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


@pytest.mark.parametrize("server", SERVERS)
async def test_invocations_are_driven_over_tls(tmp_path, identity, server):
    serve, version = SERVERS[server]

    with serve(service_app(greeter), certificate=identity) as served:
        async with running(tmp_path, trusted=identity[0]) as driven:
            await driven.runtime.register(served.url.replace("http:", "https:"))
            every = (driven.call("Greeter/greet", "you") for _ in range(5))
            deployment = driven.store.deployments()[0]
            found = await asyncio.gather(*every)
    assert (deployment.http, deployment.url[:6]) == (version, "https:")
    assert found == ["hello YOU"] * 5


async def test_a_certificate_that_nobody_vouches_for_is_refused(tmp_path, identity):
    with hypercorn_of(service_app(greeter), certificate=identity) as served:
        async with running(tmp_path, policy=AT_ONCE) as driven:
            with pytest.raises(DeploymentUnreachableError, match="not trusted: self-signed cert"):
                await driven.runtime.register(served.url)
            assert driven.store.deployments() == []


WRONG = {
    "expired": ({"days": (-9, -1)}, r"not trusted: certificate has expired\. Correct it, or set"),
    "too early": ({"days": (1, 9)}, r"certificate is not yet valid"),
    "another's": ({"address": "127.0.0.9"}, r"not valid for '127\.0\.0\.1'\. Correct it"),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("version", [HTTP_1, HTTP_2])
async def test_a_certificate_of_another_time_or_place_is_refused(tmp_path, wrong, version):
    """Though somebody who is trusted vouches for it."""
    options, told = WRONG[wrong]
    made = certificate(tmp_path, **options)

    with hypercorn_of(service_app(greeter), certificate=made) as served:
        async with running(tmp_path, trusted=made[0]) as driven:
            with pytest.raises(DeploymentUnreachableError, match=told):
                await driven.runtime.register(served.url, http=version)
            assert driven.store.deployments() == []


async def test_ssl_cert_file_names_who_is_trusted(tmp_path, identity, monkeypatch):
    monkeypatch.setenv(TRUSTED, identity[0])

    with hypercorn_of(service_app(greeter), certificate=identity) as served:
        async with running(tmp_path) as driven:
            await driven.runtime.register(served.url)
            assert await driven.call("Greeter/greet", "you") == "hello YOU"


async def test_http_2_that_was_asked_for_is_not_taken_from_who_lacks_it(tmp_path, identity):
    with uvicorn_with_tls(service_app(greeter), certificate=identity) as served:
        async with running(tmp_path, trusted=identity[0]) as driven:
            with pytest.raises(NotHttp2Error, match="does not offer HTTP/2"):
                await driven.runtime.register(served.url.replace("http:", "https:"), http=HTTP_2)
