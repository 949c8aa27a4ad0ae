"""Discovery: paths, versions of HTTP, content types, and invalid manifests."""

import json

import pytest

from durable_invocations.addresses import mask_secrets
from durable_invocations.errors import ConfigError
from durable_invocations.runtime.http.client import HTTP_1, HTTP_2, HttpClient
from durable_invocations.runtime.http.discovery import (
    CONTENT_TYPES,
    MOST_BYTES,
    DiscoveryError,
    discover_deployment,
)
from durable_invocations.runtime.http.exchange import (
    Address,
    DeploymentUnreachableError,
    NotHttp2Error,
)
from runtime_support.endpoints.asgi_servers import hypercorn_of, run, uvicorn_of
from runtime_support.endpoints.scripted_peers import closing, raw_peer
from runtime_support.errors import raises_naming

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


def make_services(*handlers, name="a", ty="SERVICE"):
    """The part of a manifest with this service alone."""
    return {"services": [{"name": name, "ty": ty, "handlers": handlers}]}


class App:
    """Answers discovery with a manifest, at one path."""

    def __init__(self, manifest=None, *, path="/discover", status=200, kind=CONTENT_TYPES[0]):
        self.text = manifest if isinstance(manifest, bytes) else json.dumps(manifest or GOOD)
        self.path, self.status, self.kind = path, status, kind
        self.requests = []

    async def __call__(self, scope, receive, send):
        headers = dict(scope["headers"])
        self.requests.append((scope["method"], scope["path"], headers[b"accept"].decode()))
        is_here = scope["path"] == self.path
        status = self.status if is_here else 404
        headers = [(b"content-type", self.kind.encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        body = self.text if isinstance(self.text, bytes) else self.text.encode()
        await send({"type": "http.response.body", "body": body if is_here else b""})


def discover_url(url, **options):
    async def discover():
        async with closing(HttpClient()) as client:
            return await discover_deployment(client, url, **options)

    return run(discover())


def discover_app(app, serve=uvicorn_of, prefix="", **options):
    with serve(app) as server:
        return discover_url(server.url + prefix, **options)


def test_http_2_is_full_duplex():
    discovered = discover_app(App(), hypercorn_of)
    assert (discovered.http, discovered.duplex) == (HTTP_2, True)
    orders, cart = discovered.manifest.services
    assert (orders.name, cart.name, cart.handlers[0].ty) == ("Orders", "Cart", "SHARED")


@pytest.mark.parametrize(
    ("mode", "serve", "http"),
    [
        ("BIDI_STREAM", uvicorn_of, HTTP_1),
        ("REQUEST_RESPONSE", uvicorn_of, HTTP_1),
        ("REQUEST_RESPONSE", hypercorn_of, HTTP_2),
    ],
)
def test_http_1_or_the_manifest_may_demand_request_then_response(mode, serve, http):
    discovered = discover_app(App(GOOD | {"protocolMode": mode}), serve)
    assert (discovered.http, discovered.duplex) == (http, False)


def test_the_version_of_http_may_be_named():
    assert discover_app(App(), hypercorn_of, http=HTTP_1).http == HTTP_1
    with pytest.raises(NotHttp2Error):
        discover_app(App(), http=HTTP_2)


def test_the_request_is_a_get_that_accepts_both_versions_of_the_manifest():
    app = App()
    discover_app(app)
    assert app.requests == [("GET", "/discover", ", ".join(CONTENT_TYPES))]
    assert CONTENT_TYPES == (
        "application/vnd.restate.endpointmanifest.v2+json",
        "application/vnd.restate.endpointmanifest.v1+json",
    )


@pytest.mark.parametrize("prefix", ["", "/some/prefix", "/some/prefix/"])
def test_the_second_path_is_tried_below_the_prefix(prefix):
    below = prefix.rstrip("/")
    app = App(path=f"{below}/discovery", kind=CONTENT_TYPES[1])
    assert discover_app(app, prefix=prefix).address.prefix == below
    paths = [path for _, path, _ in app.requests]
    assert paths == [f"{below}/discover", f"{below}/discovery"]


def make_handler(**fields):
    return make_services({"name": "h", **fields})


MANY = {"services": [make_services(name=f"s{n}")["services"][0] for n in range(1_001)]}
H = "services.0.handlers.0"
V9 = "application/vnd.restate.endpointmanifest.v9+json"


@pytest.mark.parametrize(
    ("app", "values"),
    [
        (App(path="/other"), ["/discover", "/discovery", 404]),
        (App(status=500), ["/discover", 500]),
        (App(kind="text/html"), ["'text/html'", *CONTENT_TYPES]),
        (App(kind=V9), [f"'{V9}'", *CONTENT_TYPES]),
        (App(b"{"), ["manifest", "JSON"]),
        (App(GOOD | make_services(name="a b")), ["services.0.name"]),
        (App(GOOD | make_services(ty="ACTOR")), ["services.0.ty", "SERVICE"]),
        (App(GOOD | {"more": 1}), ["more"]),
        (App(GOOD | {"maxProtocolVersion": 0}), ["maxProtocolVersion"]),
        (App(GOOD | {"minProtocolVersion": 4}), ["4 to 5", "1 to 3"]),
        (App(GOOD | {"services": GOOD["services"][:1] * 2}), ["service 'Orders'"]),
        (App(GOOD | make_services({"name": "b"}, {"name": "b"})), ["handler of a 'b'"]),
        (App(b" " * (MOST_BYTES + 1)), [f"{MOST_BYTES} bytes"]),
        # No database or header takes these.
        (
            App(GOOD | make_handler(output={"contentType": "text/plain\r\nX-Evil: 1"})),
            [f"{H}.output"],
        ),
        (App(GOOD | make_handler(output={"contentType": "text/\u4e2d"})), [f"{H}.output"]),
        (App(GOOD | make_handler(input={"contentType": "a\0"})), [f"{H}.input"]),
        (App(GOOD | make_handler(name="h" * 257)), [f"{H}.name", 256]),
        (App(GOOD | MANY), ["services", 1000]),
    ],
)
def test_an_invalid_manifest_is_refused(app, values):
    with raises_naming(DiscoveryError, *values) as caught:
        discover_app(app, http=HTTP_1)
    assert caught.value.code >= 10_000


async def test_discovery_does_not_wait_for_a_peer_that_never_answers():
    async def talk(reader, writer):
        await reader.read()
        del writer

    async with raw_peer(talk) as url, closing(HttpClient()) as client:
        with raises_naming(DeploymentUnreachableError, url, "0.1 s"):
            await discover_deployment(client, url, seconds=0.1)


@pytest.mark.parametrize(
    "url",
    [
        "", "localhost:1", "ftp://a", "http://", "http://a:b", "http://u:secret@a/", "http://a/?secret",
        "http://a/#secret", "http://a/b c", "http://a/b\r\nx: y", "http://a:99999", "http://[::1",
    ],
)  # fmt: skip
def test_an_invalid_address_is_refused_without_its_secrets(url):
    with raises_naming(ConfigError, repr(mask_secrets(url)), "http://host:port") as caught:
        Address.parse(url)
    assert "secret" not in str(caught.value)


def test_a_digest_in_a_path_is_kept_and_not_shown():
    """In the paths of the runtime's own services, it serves as the token."""
    url = f"http://a:1/services/{'0f' * 32}/more"
    address = Address.parse(url)
    assert (address.url, str(address)) == (url, "http://a:1/services/…/more")


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


@pytest.mark.parametrize("host", ["a..b", f"{'a' * 64}.example"])
def test_an_invalid_host_name_is_unreachable(host):
    with raises_naming(DeploymentUnreachableError, f"http://{host}:1"):
        discover_url(f"http://{host}:1")
