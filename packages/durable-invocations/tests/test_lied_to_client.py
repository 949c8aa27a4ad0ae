"""The client at servers that are no runtime, and with arguments that no request can carry."""

import gzip
import itertools
import json

import pytest

from durable_invocations.client.client import Client
from durable_invocations.client.errors import InvocationRefusedError
from durable_invocations.errors import ConfigError, UnavailableError
from runtime_support.endpoints.lying_runtimes import LIES, http, lied_to
from runtime_support.errors import raises_naming

NOWHERE = "http://127.0.0.1:1"
REQUESTS = {
    "services": Client.services,
    "deployments": Client.deployments,
    "invocations": Client.invocations,
    "invocation": lambda client: client.invocation("inv_1x")["status"],
    "send": lambda client: client.send("Greeter", "greet", 1),
    "change": lambda client: client.cancel("inv_1x"),
    "output": lambda client: client.output("inv_1x"),
    "attach": lambda client: client.attach("inv_1x", seconds=5),
    "resolve": lambda client: client.resolve("prom_1x"),
    "register": lambda client: client.register("http://127.0.0.1:1")["id"],
}
DEPLOYMENT = {"id": "a", "uri": "b", "registered": "c"}


def assert_no_runtime(client, *requests):
    """Each request finds that the server is no runtime."""
    for request in requests:
        with raises_naming(UnavailableError, client.url, "proxy"):
            request(client)


@pytest.mark.parametrize("lie", LIES)
def test_a_server_with_other_answers_is_no_runtime(lie):
    with lied_to(http(LIES[lie])) as client:
        assert_no_runtime(client, *REQUESTS.values())


@pytest.mark.parametrize(
    "services",
    [5, [5], [{"name": "A"}], [{"name": "A", "ty": 7, "handlers": []}],
     [{"name": "A", "ty": "SERVICE", "handlers": [{"name": None}]}]],
)  # fmt: skip
def test_a_server_with_other_values_in_its_answers_is_no_runtime(services):
    deployment = {**DEPLOYMENT, "services": services}
    body = json.dumps({**deployment, "deployments": [deployment], "services": services}).encode()
    with lied_to(http(body)) as client:
        assert_no_runtime(client, *(REQUESTS[n] for n in ("services", "deployments", "register")))


def test_a_compressed_answer_is_not_unpacked():
    bomb = http(gzip.compress(b"0" * 100_000), head="content-encoding: gzip\r\n")
    with lied_to(bomb) as client:
        assert_no_runtime(client, REQUESTS["output"])


@pytest.mark.parametrize(
    "body",
    [
        b'{"code":Infinity,"message":"x"}',
        b'{"code":' + b"9" * 5_000 + b',"message":"x"}',
        b"[" * 200_000,
        b"\xff\xfe\xfd",
        b'{"code":null}',
    ],
)
def test_a_refusal_in_another_form_has_the_status_of_its_answer(body):
    with lied_to(http(body, "500 Oops")) as client, pytest.raises(InvocationRefusedError) as error:
        client.services()
    assert error.value.status == 500


def test_a_redirect_is_not_followed():
    answer = http(b"", "302 Found", f"location: {NOWHERE}/\r\n")
    with lied_to(answer) as client, pytest.raises(InvocationRefusedError) as error:
        client.services()
    assert error.value.status == 302


def test_a_long_reason_is_truncated_in_the_message_alone():
    reason = "m" * 100_000
    answer = http(b'{"code":500,"message":"%s"}' % reason.encode(), "500 Oops")
    with lied_to(answer) as client, pytest.raises(InvocationRefusedError) as error:
        client.services()
    assert (len(str(error.value)) < 3_000, error.value.reason) == (True, reason)


def test_the_client_does_not_read_an_answer_that_is_too_large(monkeypatch):
    monkeypatch.setattr("durable_invocations.client.answers.MOST_BYTES", 1_000)
    large = lied_to(http(b"1" * 2_000))
    with large as client, raises_naming(UnavailableError, client.url, "1,000 bytes"):
        client.output("inv_1x")


def test_the_client_does_not_wait_for_the_end_of_a_slow_answer():
    """Each piece comes in time, and the clock advances by a minute each time it is read."""
    minutes = itertools.count()
    endless = lied_to(b"HTTP/1.1 200 OK\r\n\r\n", b"1", clock=lambda: 60.0 * next(minutes))
    with endless as client, raises_naming(UnavailableError, client.url, "60 s"):
        client.attach("inv_1x", seconds=600)


@pytest.mark.parametrize(
    "token", ["a-secret-of-somebody\n", "ein-Schlüssel-davon", "a b of secrets"]
)
def test_an_invalid_token_is_refused_and_not_shown(token):
    with raises_naming(ConfigError, "token", "ASCII") as caught:
        Client(NOWHERE, token)
    assert token.strip() not in str(caught.value)


def test_a_server_with_an_invalid_host_name_does_not_answer():
    with Client("http://a..b") as client, raises_naming(UnavailableError, "http://a..b"):
        client.services()


@pytest.fixture(scope="module")
def client():
    """A client whose requests are refused before they are sent."""
    with Client(NOWHERE) as client:
        yield client


@pytest.mark.parametrize("key", ["x ", " x", "x\n", "a\nb", "a\tb", "\x7f", "", "\ud800", "\u0085"])
def test_an_idempotency_key_that_no_header_keeps_is_refused(client, key):
    """A header loses spaces at its ends: two keys would be one."""
    with raises_naming(InvocationRefusedError, "idempotency key", repr(key)) as caught:
        client.send("Greeter", "greet", 1, idempotency_key=key)
    assert caught.value.status == 400


@pytest.mark.parametrize("delay", [float("inf"), float("nan"), 1e30])
def test_an_invalid_delay_is_refused(client, delay):
    with raises_naming(InvocationRefusedError, "delay", delay):
        client.send("Greeter", "greet", 1, delay=delay)


def test_an_empty_name_is_refused(client):
    with raises_naming(InvocationRefusedError, "empty"):
        client.send("Counter", "add", 1, key="")
    for request in (client.invocation, client.cancel, client.output, client.resolve):
        with raises_naming(InvocationRefusedError, "empty"):
            request("")


def test_a_text_with_a_lone_surrogate_is_refused(client):
    for request in (
        *(client.invocation, client.cancel, client.output, client.register),
        lambda text: client.reject("prom_1x", text),
        lambda text: client.invocations(handler=text),
    ):
        with raises_naming(InvocationRefusedError, r"'\udcff'", "surrogate"):
            request("\udcff")


def test_a_value_that_is_no_json_is_refused(client):
    with raises_naming(InvocationRefusedError, "object", "JSON"):
        client.send("Greeter", "greet", object())
