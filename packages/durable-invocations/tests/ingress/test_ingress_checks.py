"""What the ingress lets in: addresses, tokens, bodies of the handler's content type."""

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient

from asgi_guards.sending import OutputSender
from durable_invocations import runtime_app
from durable_invocations.errors import ConfigError
from durable_invocations.ingress.addresses import parse_service_address
from durable_invocations.ingress.inputs import answer, check_input, select_headers
from durable_invocations.ingress.invoking import parse_idempotency_key
from durable_invocations.ingress.refusals import RefusedError
from durable_invocations.ingress.tokens import Gate, check_token
from durable_invocations.protocol.failures import Failure
from durable_invocations.protocol.results import EMPTY, Value
from durable_invocations.runtime.store.deployments import RegisteredHandler

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
    ("uri", "why"),
    [
        ("http://me:secret@host/", "contains a user"),
        ("http://secret@host/", "contains a user"),
        ("ftp://host/", "is not http or https"),
        ("file:///etc/passwd", "is not http or https"),
        ("host:9080", "is not http or https"),
        ("", "is not http or https"),
        ("http://", "has no host"),
        ("http://host:0", "port 0"),
        ("http://host:99999", "no valid host and port"),
        ("http://[::1", "no valid host and port"),
        ("http://host/?to=x", "has a query or a fragment"),
        ("http://host/#x", "has a query or a fragment"),
        ("http://host/\r\nX: y", "contains spaces"),
        ("http://host /", "contains spaces"),
        (f"http://host/{'x' * 2048}", "longer than 2,048"),
    ],
)
def test_another_address_is_refused_without_telling_what_is_in_it(uri, why):
    with pytest.raises(RefusedError, match=why) as refused:
        parse_service_address(uri)
    assert refused.value.status == 422
    assert "secret" not in str(refused.value)


def gated():
    app = PlainTextResponse("in")
    return TestClient(Gate(app, token=TOKEN, open_at="/health", open_below="/own/secret/"))


def test_the_token_opens_the_gate():
    client = gated()
    for scheme in ("Bearer", "bearer"):
        assert client.get("/", headers={"Authorization": f"{scheme} {TOKEN}"}).text == "in"
    assert client.get("/health").text == client.get("/own/secret/x").text == "in"
    for other in ("/health/", "/own/secret", "/own/secre/t", "/own/../own/secrets/x"):
        assert client.get(other).status_code == 401


@pytest.mark.parametrize(
    "given", ["", TOKEN, "Bearer", f"Bearer {TOKEN}x", f"Basic {TOKEN}", f"Bearer {TOKEN[:-1]}"]
)
def test_without_the_token_the_answer_is_401(given):
    answered = gated().get("/", headers={"Authorization": given} if given else {})
    assert answered.status_code == 401
    assert answered.headers["www-authenticate"] == "Bearer"
    assert answered.json()["code"] == 401
    assert TOKEN not in answered.text


def test_two_tokens_are_none():
    """Whoever adds a header to another's request does not choose which of them counts."""
    headers = [("Authorization", f"Bearer {TOKEN}"), ("Authorization", "Bearer other")]
    assert gated().get("/", headers=headers).status_code == 401


def test_a_token_must_be_a_secret():
    assert check_token("") == ""
    assert check_token(TOKEN) == TOKEN
    for short in ("hunter2", f"{TOKEN} x", "ä" * 20):
        with pytest.raises(ConfigError, match="THE_TOKEN is invalid") as wrong:
            check_token(short, "THE_TOKEN")
        assert short not in str(wrong.value)


def request(**headers):
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "method": "POST", "headers": raw})


def takes(**described):
    return RegisteredHandler(name="place", described=described)


@pytest.mark.parametrize(
    ("handler", "type_", "content"),
    [
        (takes(input=JSON_IN), "application/json", b"[1]"),
        (takes(input=JSON_IN), "application/json; charset=utf-8", b"1"),
        (takes(input=JSON_IN), "", b"1"),
        (takes(input=JSON_IN), "application/json", b""),
        (takes(input={"contentType": "application/json"}), "", b""),
        (takes(input={"contentType": "text/*"}), "text/csv", b"a,b"),
        (takes(input={"contentType": "*/*"}), "image/png", b"\x00"),
        (takes(input={"contentType": "*/*"}), "application/json", b"{"),
        (takes(input={}), "", b""),
        (takes(), "image/png", b"\x00"),
        (RegisteredHandler(name="place"), "image/png", b"\x00"),
    ],
)
def test_a_body_that_the_handler_takes_is_let_in(handler, type_, content):
    check_input(handler, request(**({"content_type": type_} if type_ else {})), content)


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
    with pytest.raises(RefusedError) as refused:
        check_input(takes(input=described), request(**headers), content)
    assert refused.value.status == status


def test_secrets_and_the_connections_headers_are_not_kept():
    own = {"authorization": "Bearer x", "cookie": "a=b", "host": "h", "connection": "close"}
    kept = {"content_type": "text/plain", "x_tenant": "a", "traceparent": "00-1"}
    assert select_headers(request(**own, idempotency_key="k", **kept)) == (
        *(("content-type", "text/plain"), ("x-tenant", "a"), ("traceparent", "00-1")),
    )


def test_an_output_has_the_type_that_the_manifest_says():
    text = takes(output={"contentType": "text/plain"})
    always = takes(output={"contentType": "application/proto", "setContentTypeIfEmpty": True})
    for handler, result, type_ in (
        (takes(), Value(value=b"1"), "application/json"),
        (text, Value(value=b"1"), "text/plain"),
        (text, EMPTY, None),
        (always, EMPTY, "application/proto"),
        (takes(output={}), Value(value=b"1"), None),
        (None, Value(value=b"1"), "application/json"),
    ):
        shown = answer(handler, "inv_1x", result, OutputSender())
        assert shown.headers.get("content-type") == type_
        assert shown.status_code == 200
        assert shown.headers["x-restate-id"] == "inv_1x"


@pytest.mark.parametrize(
    ("code", "status"), [(404, 404), (409, 409), (599, 599), (200, 500), (600, 500), (0, 500)]
)
def test_a_failures_code_is_the_status_where_http_has_it(code, status):
    shown = answer(takes(), "inv_1x", Failure(code=code, message="no"), OutputSender())
    assert shown.status_code == status
    assert bytes(shown.body) == b'{"code":%d,"message":"no"}' % code


def test_an_idempotency_key_that_is_no_text_is_refused():
    def keyed(key):
        return Request({"type": "http", "headers": [(b"idempotency-key", key)]})

    assert parse_idempotency_key(keyed("é中".encode())) == "é中"
    with pytest.raises(RefusedError, match="not UTF-8") as refused:
        parse_idempotency_key(keyed(b"\xff"))
    assert refused.value.status == 400


@pytest.mark.parametrize("token", ["x", "0123456789abcdef\n"])
def test_an_application_is_not_made_with_a_token_that_is_no_secret(tmp_path, token):
    with pytest.raises(ConfigError, match="token is invalid"):
        runtime_app(f"sqlite:///{tmp_path}/invocations.sqlite", token=token)
