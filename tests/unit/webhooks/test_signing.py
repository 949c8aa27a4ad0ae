"""Signatures as the package `standardwebhooks` verifies them, and secrets that are refused."""

import base64
from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from iscp_dagster import Endpoint
from iscp_dagster.model.errors import ConfigError
from iscp_dagster.webhooks.sending.signing import build_headers, get_secrets
from support.errors import raises_naming


def encode(secret):
    return "whsec_" + base64.b64encode(secret).decode()


NEW, OLD = (encode(bytes(range(n, n + 32))) for n in (0, 100))
ENDPOINT = Endpoint("alerts", url="https://example.com/hook", secrets=("NEW", "OLD"))
SECRETS = get_secrets(ENDPOINT, {"NEW": NEW, "OLD": OLD})


def now():
    return int(datetime.now(tz=timezone.utc).timestamp())


@given(body=st.binary().map(lambda data: b'{"a": "%s"}' % base64.b64encode(data)))
def test_each_secret_verifies_alone_while_secrets_are_rotated(body):
    sent = build_headers(SECRETS, "acf67a288f80147280c9d4b1e99378cd", now(), body)
    for secret in (NEW, OLD):
        assert Webhook(secret).verify(body, sent)
    assert [each.partition(",")[0] for each in sent["webhook-signature"].split(" ")] == ["v1"] * 2
    assert sent == build_headers(SECRETS, sent["webhook-id"], int(sent["webhook-timestamp"]), body)


def test_the_signatures_are_those_of_the_package_newest_first():
    at = datetime(2025, 6, 18, tzinfo=timezone.utc)
    sent = build_headers(SECRETS, "id", int(at.timestamp()), b"{}")
    expected = [Webhook(secret).sign("id", at, "{}") for secret in (NEW, OLD)]
    assert sent["webhook-signature"] == " ".join(expected)


@pytest.mark.parametrize("changed", [{"webhook-id": "other"}, {"webhook-timestamp": "1"}])
def test_another_id_or_time_is_not_verified(changed):
    sent = build_headers(SECRETS, "id", now(), b"{}")
    with pytest.raises(WebhookVerificationError):
        Webhook(NEW).verify(b"{}", sent | changed)
    with pytest.raises(WebhookVerificationError):
        Webhook(NEW).verify(b"{ }", sent)


@pytest.mark.parametrize("length", [24, 64])
def test_secrets_of_24_to_64_bytes_are_taken(length):
    assert get_secrets(ENDPOINT, {"NEW": encode(b"x" * length), "OLD": OLD})[0] == b"x" * length


@pytest.mark.parametrize(
    ("environ", "values"),
    [
        ({}, []),
        ({"NEW": ""}, []),
        ({"NEW": base64.b64encode(b"x" * 32).decode()}, ["whsec_"]),
        ({"NEW": "whsec_" + "x" * 31 + "!"}, ["base64"]),
        ({"NEW": "whsec_" + "x" * 33}, ["base64"]),
        ({"NEW": "whsec_" + base64.urlsafe_b64encode(b"\xff" * 32).decode()}, ["base64"]),
        ({"NEW": encode(b"x" * 23)}, [23, 24, 64]),
        ({"NEW": encode(b"x" * 65)}, [65, 24, 64]),
    ],
)
def test_another_secret_is_refused_by_its_variables_name_alone(environ, values):
    with raises_naming(ConfigError, "'alerts'", "NEW", *values) as caught:
        get_secrets(ENDPOINT, {"OLD": OLD, **environ})
    for secret in filter(None, environ.values()):
        assert secret.removeprefix("whsec_") not in str(caught.value)
