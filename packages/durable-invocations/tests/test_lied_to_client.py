"""The client against servers that are no runtime, and given names that no request can carry."""

import gzip
import itertools
import json

import pytest

from durable_invocations.client.client import Client
from durable_invocations.client.errors import InvocationRefusedError
from durable_invocations.errors import ConfigError, DurableError, UnavailableError
from runtime_support.endpoints.lying_runtimes import LIES, http, lied_to

SECONDS = 20
ASKED = {
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
DEPLOYED = {"id": "a", "uri": "b", "registered": "c"}


@pytest.mark.parametrize("lie", LIES)
def test_what_is_no_answer_of_a_runtime_is_told_so(lie):
    with lied_to(http(LIES[lie])) as client:
        for ask in ASKED.values():
            with pytest.raises(UnavailableError, match="not a runtime"):
                ask(client)


@pytest.mark.parametrize(
    "services",
    [5, [5], [{"name": "A"}], [{"name": "A", "ty": 7, "handlers": []}],
     [{"name": "A", "ty": "SERVICE", "handlers": [{"name": None}]}]],
)  # fmt: skip
def test_what_is_within_an_answer_is_looked_at_too(services):
    deployed = {**DEPLOYED, "services": services}
    body = json.dumps({**deployed, "deployments": [deployed], "services": services}).encode()
    with lied_to(http(body)) as client:
        for ask in (ASKED["services"], ASKED["deployments"], ASKED["register"]):
            with pytest.raises(UnavailableError, match="not a runtime"):
                ask(client)


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
def test_any_refusal_is_told_by_its_status(body):
    with lied_to(http(body, "500 Oops")) as client, pytest.raises(InvocationRefusedError) as error:
        client.services()
    assert error.value.status == 500


def test_a_reason_without_end_is_cut_in_the_message_alone():
    reason = "m" * 100_000
    answer = http(b'{"code":500,"message":"%s"}' % reason.encode(), "500 Oops")
    with lied_to(answer) as client, pytest.raises(InvocationRefusedError) as error:
        client.services()
    assert (len(str(error.value)) < 3_000, error.value.reason) == (True, reason)


def test_a_redirect_is_not_followed():
    answer = http(b"", "302 Found", "location: http://127.0.0.1:1/\r\n")
    with lied_to(answer) as client, pytest.raises(InvocationRefusedError, match="302"):
        client.services()


def test_an_answer_is_not_unpacked():
    bomb = http(gzip.compress(b"0" * 100_000), head="content-encoding: gzip\r\n")
    with lied_to(bomb) as client, pytest.raises(UnavailableError, match="is not a runtime"):
        client.output("inv_1x")


def test_an_answer_that_is_too_large_is_given_up(monkeypatch):
    monkeypatch.setattr("durable_invocations.client.answers.MOST_BYTES", 1_000)
    large = http(b"1" * 2_000)
    with lied_to(large) as client, pytest.raises(UnavailableError, match="larger than 1,000 bytes"):
        client.output("inv_1x")


def test_an_answer_that_does_not_end_is_given_up():
    """Each piece comes in time, and the clock goes on by a minute each time it is read."""
    minutes = itertools.count()
    endless = lied_to(b"HTTP/1.1 200 OK\r\n\r\n", b"1", clock=lambda: 60.0 * next(minutes))
    with endless as client, pytest.raises(UnavailableError, match="did not end"):
        client.attach("inv_1x", seconds=600)


@pytest.mark.parametrize(
    "token", ["a-secret-of-somebody\n", "ein-Schlüssel-davon", "a b of secrets"]
)
def test_a_token_that_is_none_is_a_mistake_in_the_settings_and_not_told(token):
    with pytest.raises(ConfigError, match="The token contains") as wrong:
        Client("http://127.0.0.1:1", token)
    assert token.strip() not in str(wrong.value)


def test_a_host_that_is_no_name_does_not_answer():
    with Client("http://a..b") as client, pytest.raises(UnavailableError, match="does not answer"):
        client.services()


@pytest.mark.parametrize("key", ["x ", " x", "x\n", "a\nb", "a\tb", "\x7f", "", "\ud800", "\u0085"])
def test_an_idempotency_key_that_no_header_keeps_is_refused(key):
    """A header loses spaces at its ends: two keys would be one."""
    with Client("http://127.0.0.1:1") as client:
        with pytest.raises(InvocationRefusedError, match="idempotency key") as refused:
            client.send("Greeter", "greet", 1, idempotency_key=key)
        assert refused.value.status == 400


@pytest.mark.parametrize("delay", [float("inf"), float("nan"), 1e30])
def test_a_delay_that_is_none_is_refused(delay):
    with Client("http://127.0.0.1:1") as client, pytest.raises(DurableError, match="delay"):
        client.send("Greeter", "greet", 1, delay=delay)


def test_a_name_that_is_empty_is_refused():
    with Client("http://127.0.0.1:1") as client:
        with pytest.raises(InvocationRefusedError, match="is empty"):
            client.send("Counter", "add", 1, key="")
        for ask in (client.invocation, client.cancel, client.output, client.resolve):
            with pytest.raises(InvocationRefusedError, match="is empty"):
                ask("")


def test_a_name_that_is_no_text_is_refused():
    with Client("http://127.0.0.1:1") as client:
        for ask in (client.invocation, client.cancel, client.output):
            with pytest.raises(InvocationRefusedError, match="not valid text"):
                ask("\udcff")
        with pytest.raises(InvocationRefusedError, match="not valid text"):
            client.reject("prom_1x", "\udcff")
        with pytest.raises(InvocationRefusedError, match="not valid text"):
            client.invocations(handler="\udcff")
        with pytest.raises(InvocationRefusedError, match="not valid text"):
            client.register("http://\udcff")
        with pytest.raises(InvocationRefusedError, match="cannot be written as JSON"):
            client.send("Greeter", "greet", object())
