"""Discovery: paths, versions of HTTP, content types, and manifests that are refused."""

import json

import pytest

from durable_invocations.errors import ConfigError
from durable_invocations.runtime.http.client import HTTP_1, HTTP_2, HttpClient
from durable_invocations.runtime.http.discovery import (
    CONTENT_TYPES,
    MOST_BYTES,
    DiscoveryError,
    discover_deployment,
)
from durable_invocations.runtime.http.exchange import Address, DeploymentUnreachableError
from runtime_support.endpoints.asgi_servers import hypercorn_of, run, uvicorn_of
from runtime_support.endpoints.scripted_peers import asking, raw_peer

GOOD = {
    "protocolMode": "BIDI_STREAM",
    "minProtocolVersion": 1,
    "maxProtocolVersion": 5,
    "services": [
        {
            "name": "Orders",
            "ty": "SERVICE",
            "handlers": [{"name": "on_changes", "input": {"required": True, "jsonSchema": {}}}],
        },
        {"name": "Cart", "ty": "VIRTUAL_OBJECT", "handlers": [{"name": "see", "ty": "SHARED"}]},
    ],
}


def declared(*handlers, name="a", ty="SERVICE"):
    """The part of a manifest that has this service alone."""
    return {"services": [{"name": name, "ty": ty, "handlers": handlers}]}


class App:
    """Answers discovery with a manifest, at one path."""

    def __init__(self, manifest=None, *, path="/discover", status=200, kind=CONTENT_TYPES[0]):
        self.text = manifest if isinstance(manifest, bytes) else json.dumps(manifest or GOOD)
        self.path, self.status, self.kind = path, status, kind
        self.asked = []

    async def __call__(self, scope, receive, send):
        headers = dict(scope["headers"])
        self.asked.append((scope["method"], scope["path"], headers[b"accept"].decode()))
        found = scope["path"] == self.path
        status = self.status if found else 404
        said = [(b"content-type", self.kind.encode())]
        await send({"type": "http.response.start", "status": status, "headers": said})
        body = self.text if isinstance(self.text, bytes) else self.text.encode()
        await send({"type": "http.response.body", "body": body if found else b""})


def found_at(url, **options):
    async def inside():
        async with asking(HttpClient()) as client:
            return await discover_deployment(client, url, **options)

    return run(inside())


def found_of(app, server=uvicorn_of, under="", **options):
    with server(app) as served:
        return found_at(served.url + under, **options)


def test_http_2_is_full_duplex():
    found = found_of(App(), hypercorn_of)
    assert (found.http, found.duplex) == (HTTP_2, True)
    assert [each.name for each in found.manifest.services] == ["Orders", "Cart"]
    assert found.manifest.services[1].handlers[0].ty == "SHARED"


def test_http_1_is_request_then_response_whatever_the_manifest_says():
    found = found_of(App())
    assert (found.http, found.duplex) == (HTTP_1, False)


def test_a_deployment_may_want_request_then_response_over_http_2():
    found = found_of(App(GOOD | {"protocolMode": "REQUEST_RESPONSE"}), hypercorn_of)
    assert (found.http, found.duplex) == (HTTP_2, False)


def test_the_version_of_http_may_be_named():
    assert found_of(App(), hypercorn_of, http=HTTP_1).http == HTTP_1
    with pytest.raises(DeploymentUnreachableError):
        found_of(App(), http=HTTP_2)


def test_the_request_is_a_get_that_accepts_both_versions_of_the_manifest():
    app = App()
    found_of(app)
    assert app.asked == [("GET", "/discover", ", ".join(CONTENT_TYPES))]
    assert CONTENT_TYPES == (
        "application/vnd.restate.endpointmanifest.v2+json",
        "application/vnd.restate.endpointmanifest.v1+json",
    )


@pytest.mark.parametrize("under", ["", "/some/prefix", "/some/prefix/"])
def test_the_second_path_is_tried_and_stands_behind_the_prefix(under):
    app = App(path=f"{under.rstrip('/')}/discovery", kind=CONTENT_TYPES[1])
    assert found_of(app, under=under).address.prefix == under.rstrip("/")
    assert [each[1].rsplit("/", 1)[1] for each in app.asked] == ["discover", "discovery"]


@pytest.mark.parametrize(
    ("app", "told"),
    [
        (App(path="/other"), "with status 404; give the address"),
        (App(status=500), "with status 500"),
        (App(kind="text/html"), r"content type 'text/html', .*; give the address of a service"),
        (App(kind="application/vnd.restate.endpointmanifest.v9+json"), r"v9\+json"),
        (App(b"{"), "breaks its schema: the text"),
        (App(GOOD | declared(name="a b")), "services.0"),
        (App(GOOD | declared(ty="ACTOR")), "services.0.ty"),
        (App(GOOD | {"more": 1}), "more: Extra"),
        (App(GOOD | {"maxProtocolVersion": 0}), "maxProtocolVersion"),
        (App(GOOD | {"minProtocolVersion": 4}), "versions 4 to 5, this runtime 1 to 3"),
        (App(GOOD | {"services": GOOD["services"][:1] * 2}), "names the service 'Orders' twice"),
        (App(GOOD | declared({"name": "b"}, {"name": "b"})), "names the handler of a 'b' twice"),
        (App(b" " * (MOST_BYTES + 1)), "exceeds"),
    ],
)
def test_what_is_no_manifest_is_refused_with_the_reason(app, told):
    with pytest.raises(DiscoveryError, match=told) as caught:
        found_of(app)
    assert caught.value.code >= 10_000


async def test_a_peer_that_never_answers_is_given_up():
    async def talk(reader, writer):
        await reader.read()
        del writer

    async with raw_peer(talk) as url, asking(HttpClient()) as client:
        with pytest.raises(
            DeploymentUnreachableError, match=r"did not send its manifest within 0\.1 s"
        ):
            await discover_deployment(client, url, seconds=0.1)


@pytest.mark.parametrize(
    "url",
    [
        "", "localhost:1", "ftp://a", "http://", "http://a:b", "http://u:secret@a/", "http://a/?secret",
        "http://a/#secret", "http://a/b c", "http://a/b\r\nx: y", "http://a:99999", "http://[::1",
    ],
)  # fmt: skip
def test_an_address_that_is_none_is_refused(url):
    with pytest.raises(ConfigError, match="is not the address of a service deployment") as caught:
        Address.parse(url)
    assert "secret" not in str(caught.value)


def test_a_digest_in_a_path_is_kept_and_not_told():
    """It stands for the token where the runtime's own services are."""
    url = f"http://a:1/services/{'0f' * 32}/more"
    found = Address.parse(url)
    assert (found.url, str(found)) == (url, "http://a:1/services/…/more")


@pytest.mark.parametrize(
    ("url", "authority", "shown"),
    [
        ("http://a", "a", "http://a"),
        ("https://a:443/x/", "a", "https://a/x"),
        ("http://a:443", "a:443", "http://a:443"),
        ("http://[::1]:9080", "[::1]:9080", "http://[::1]:9080"),
    ],
)
def test_an_address_is_origin_and_prefix(url, authority, shown):
    assert Address.parse(url).origin.authority == authority
    assert str(Address.parse(url)) == shown


def served(**handler):
    return declared({"name": "h", **handler})


MANY = {"services": [declared(name=f"s{n}")["services"][0] for n in range(1_001)]}


@pytest.mark.parametrize(
    ("broken", "where"),
    [
        (served(output={"contentType": "text/plain\r\nX-Evil: 1"}), "0.output.contentType"),
        (served(output={"contentType": "text/\u4e2d"}), "0.output.contentType"),
        (served(input={"contentType": "a\0"}), "0.input.contentType"),
        (served(name="h" * 257), "handlers.0.name: .* at most 256 characters"),
        (MANY, "services: List should have at most 1000 items"),
    ],
    ids=["newline", "other letters", "nul", "long name", "too many"],
)
def test_a_manifest_that_no_database_or_header_takes_is_refused(broken, where):
    with uvicorn_of(App({**GOOD, **broken})) as there, pytest.raises(DiscoveryError, match=where):
        found_at(there.url, http=HTTP_1)


@pytest.mark.parametrize("host", ["a..b", f"{'a' * 64}.example"])
def test_a_host_that_is_no_name_is_one_that_takes_no_connections(host):
    with pytest.raises(DeploymentUnreachableError, match="accepts no connections"):
        found_at(f"http://{host}:1")
