"""Which requests the ingress accepts: addresses, tokens, bodies of the handler's content type."""

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient

from asgi_guards.sending import SharedOutputs
from durable_invocations import runtime_app
from durable_invocations.errors import ConfigError
from durable_invocations.ingress.addresses import parse_service_address
from durable_invocations.ingress.inputs import build_output_response, check_input, select_headers
from durable_invocations.ingress.invoking import parse_idempotency_key
from durable_invocations.ingress.refusals import RefusedError
from durable_invocations.ingress.tokens import Gate, check_token
from durable_invocations.protocol.failures import Failure
from durable_invocations.protocol.results import EMPTY, Value
from durable_invocations.runtime.store.deployments import RegisteredHandler
from runtime_support.errors import raises_naming

TOKEN = "a-token-of-sixteen"
JSON_IN = {"required": True, "contentType": "application/json"}


@pytest.mark.parametrize(
    ("uri", "address"),
    [
        ("http://127.0.0.1:9080", "http://127.0.0.1:9080"),
        ("http://127.0.0.1:9080/", "http://127.0.0.1:9080"),
        ("https://shop.example/restate/", "https://shop.example/restate"),
        ("http://[::1]:9080/a", "http://[::1]:9080/a"),
    ],
)
def test_an_address_is_kept_without_its_final_slash(uri, address):
    assert parse_service_address(uri) == address


@pytest.mark.parametrize(
    ("uri", "part"),
    [
        ("http://me:secret@host/", "user"),
        ("http://secret@host/", "user"),
        ("ftp://host/", "http or https"),
        ("file:///etc/passwd", "http or https"),
        ("host:9080", "http or https"),
        ("", "http or https"),
        ("http://", "port 0"),
        ("http://host:0", "port 0"),
        ("http://host:99999", "host and port"),
        ("http://[::1", "host and port"),
        ("http://host/?to=x", "query"),
        ("http://host/#x", "query"),
        ("http://host/\r\nX: y", "spaces"),
        ("http://host /", "spaces"),
        (f"http://host/{'x' * 2048}", "2,048"),
    ],
)
def test_an_invalid_address_is_refused_and_not_shown(uri, part):
    with raises_naming(RefusedError, part) as caught:
        parse_service_address(uri)
    assert caught.value.status == 422
    assert "secret" not in str(caught.value)


@pytest.fixture
def client():
    """A client of an app behind the gate."""
    app = PlainTextResponse("in")
    return TestClient(Gate(app, token=TOKEN, open_at="/health", open_below="/own/secret/"))


def test_the_token_opens_the_gate(client):
    for scheme in ("Bearer", "bearer"):
        assert client.get("/", headers={"Authorization": f"{scheme} {TOKEN}"}).text == "in"
    assert client.get("/health").text == client.get("/own/secret/x").text == "in"
    for other in ("/health/", "/own/secret", "/own/secre/t", "/own/../own/secrets/x"):
        assert client.get(other).status_code == 401


@pytest.mark.parametrize(
    "headers",
    [
        *([], [""], [TOKEN], ["Bearer"], [f"Bearer {TOKEN}x"], [f"Basic {TOKEN}"]),
        [f"Bearer {TOKEN[:-1]}"],
        # Whoever adds a header to another's request does not choose which of the two counts.
        [f"Bearer {TOKEN}", "Bearer other"],
    ],
)
def test_without_the_token_the_answer_is_401(client, headers):
    answer = client.get("/", headers=[("Authorization", value) for value in headers])
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.json()["code"] == 401
    assert TOKEN not in answer.text


def test_a_token_must_be_long_and_of_visible_characters():
    assert check_token("") == ""
    assert check_token(TOKEN) == TOKEN
    for token in ("hunter2", f"{TOKEN} x", f"{TOKEN}\n", "ä" * 20):
        with raises_naming(ConfigError, "THE_TOKEN", 16) as caught:
            check_token(token, "THE_TOKEN")
        assert token not in str(caught.value)


def test_an_application_is_not_created_with_an_invalid_token(tmp_path):
    with raises_naming(ConfigError, "token", 16):
        runtime_app(f"sqlite:///{tmp_path}/invocations.sqlite", token="x")


def make_request(**headers):
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "method": "POST", "headers": raw})


def make_handler(**described):
    return RegisteredHandler(name="place", described=described)


@pytest.mark.parametrize(
    ("handler", "type_", "content"),
    [
        (make_handler(input=JSON_IN), "application/json", b"[1]"),
        (make_handler(input=JSON_IN), "application/json; charset=utf-8", b"1"),
        (make_handler(input=JSON_IN), "", b"1"),
        (make_handler(input=JSON_IN), "application/json", b""),
        (make_handler(input={"contentType": "application/json"}), "", b""),
        (make_handler(input={"contentType": "text/*"}), "text/csv", b"a,b"),
        (make_handler(input={"contentType": "*/*"}), "image/png", b"\x00"),
        (make_handler(input={"contentType": "*/*"}), "application/json", b"{"),
        (make_handler(input={}), "", b""),
        (make_handler(), "image/png", b"\x00"),
        (RegisteredHandler(name="place"), "image/png", b"\x00"),
    ],
)
def test_a_body_of_the_handlers_type_is_accepted(handler, type_, content):
    check_input(handler, make_request(**({"content_type": type_} if type_ else {})), content)


@pytest.mark.parametrize(
    ("described", "type_", "content", "status"),
    [
        (JSON_IN, "text/plain", b"1", 415),
        (JSON_IN, "application/x-www-form-urlencoded", b"{}", 415),
        ({"contentType": "text/*"}, "textual/csv", b"1", 415),
        (JSON_IN, "", b"", 400),
        (JSON_IN, "application/json", b"{", 400),
        (JSON_IN, "application/json", b"[" * 100_000, 400),
        (JSON_IN, "application/json", b"[NaN]", 400),
        (JSON_IN, "application/json", b"-Infinity", 400),
        (JSON_IN, "application/json", '"x"'.encode("utf-16"), 400),
        (JSON_IN, "application/json", b'"\xff"', 400),
        ({}, "application/json", b"1", 400),
    ],
)
def test_another_body_is_refused(described, type_, content, status):
    headers = {"content_type": type_} if type_ else {}
    with pytest.raises(RefusedError) as caught:
        check_input(make_handler(input=described), make_request(**headers), content)
    assert caught.value.status == status


def test_secrets_and_the_connections_headers_are_not_kept():
    own = {"authorization": "Bearer x", "cookie": "a=b", "host": "h", "connection": "close"}
    kept = {"content_type": "text/plain", "x_tenant": "a", "traceparent": "00-1"}
    assert select_headers(make_request(**own, idempotency_key="k", **kept)) == (
        *(("content-type", "text/plain"), ("x-tenant", "a"), ("traceparent", "00-1")),
    )


TEXT = make_handler(output={"contentType": "text/plain"})
PROTO = make_handler(output={"contentType": "application/proto", "setContentTypeIfEmpty": True})
ONE = Value(value=b"1")


@pytest.mark.parametrize(
    ("handler", "result", "type_"),
    [
        (make_handler(), ONE, "application/json"),
        (TEXT, ONE, "text/plain"),
        (TEXT, EMPTY, None),
        (PROTO, EMPTY, "application/proto"),
        (make_handler(output={}), ONE, None),
        (None, ONE, "application/json"),
    ],
)
def test_an_output_has_the_content_type_of_the_manifest(handler, result, type_):
    response = build_output_response(handler, "inv_1x", result, SharedOutputs())
    assert response.headers.get("content-type") == type_
    assert response.status_code == 200
    assert response.headers["x-restate-id"] == "inv_1x"


@pytest.mark.parametrize(
    ("code", "status"), [(404, 404), (409, 409), (599, 599), (200, 500), (600, 500), (0, 500)]
)
def test_a_failures_code_is_the_status_where_http_has_it(code, status):
    response = build_output_response(
        make_handler(), "inv_1x", Failure(code=code, message="no"), SharedOutputs()
    )
    assert response.status_code == status
    assert bytes(response.body) == b'{"code":%d,"message":"no"}' % code


def test_an_idempotency_key_must_be_utf_8():
    def parse(key):
        headers = [(b"idempotency-key", key)]
        return parse_idempotency_key(Request({"type": "http", "headers": headers}))

    assert parse("é中".encode()) == "é中"
    with raises_naming(RefusedError, "idempotency-key", "UTF-8") as caught:
        parse(b"\xff")
    assert caught.value.status == 400
