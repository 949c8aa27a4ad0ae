"""Endpoints that cannot be declared, each with one clear error that shows no secret."""

import pytest

from iscp_dagster import Endpoint
from iscp_dagster.model.errors import ConfigError


def endpoint(**changes):
    return Endpoint("alerts", **{"url": "https://example.com/a?b=c", "secrets": ["S"]} | changes)


def test_an_endpoint_needs_a_url_and_a_secret():
    assert endpoint(allow=["10.0.0.0/8"]).allow == ("10.0.0.0/8",)
    assert endpoint(url="http://[::1]:8080/").secrets == ("S",)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"url": "example.com/hook"}, "its url 'example.com/hook' is not an http or https address"),
        ({"url": "ftp://example.com"}, "is not an http or https address"),
        ({"url": "https://"}, "is not an http or https address"),
        ({"url": "https://example.com:99999/"}, "is not an http or https address"),
        ({"url": "https://exa mple.com/"}, "is not an http or https address"),
        ({"url": "https://bücher.example/"}, "is not an http or https address in ASCII"),
        ({"url": "https://[::1/"}, "is not an http or https address"),
        ({"url": "https://example.com/#a"}, "ends in a fragment, #a; leave it out"),
        ({"secrets": []}, r"secrets=\[...\] is empty; name the environment variable"),
        ({"secrets": "S"}, "secrets='S' is not a list"),
        ({"batch": 0}, "batch=0 is not a whole number from 1 on"),
        ({"concurrency": 2.5}, "concurrency=2.5 is not a whole number"),
        ({"timeout": 0}, "timeout=0 is not a number above 0"),
        ({"failing_days": -1}, "failing_days=-1 is not a number above 0"),
        ({"retries": []}, r"retries=\[\] is not a list of seconds above 0"),
        ({"retries": [5, 0]}, r"retries=\[5, 0\] is not a list of seconds above 0"),
        ({"jitter": "0.2"}, "jitter='0.2' is not a number from 0 to less than 1"),
        ({"jitter": 1}, "jitter=1 is not a number from 0 to less than 1"),
        ({"pending": True}, "pending=True is not a whole number"),
        ({"allow": ["10.0.0.1/8"]}, "has '10.0.0.1/8', which is not a network: .*host bits set"),
        ({"allow": [167772161]}, "allow has 167772161, which is not a network"),
        ({"allow": ["internal"]}, "allow has 'internal', which is not a network"),
    ],
)
def test_a_bad_endpoint_is_refused(changes, why):
    with pytest.raises(ConfigError, match=f"Endpoint 'alerts': .*{why}"):
        endpoint(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"url": "https://user:hunter2@example.com/"},
        {"url": "https://hunter2@example.com/"},
        {"url": "https://user:hunter2@example.com:99999/"},
        {"url": "https://user:hunter2@bücher.example/"},
        {"url": "user:hunter2@example.com/"},
        {"secrets": ["whsec_hunter2"]},
        {"secrets": ["aHVudGVyMg==hunter2"]},
    ],
)
def test_an_error_shows_no_secret(changes):
    with pytest.raises(ConfigError) as error:
        endpoint(**changes)
    assert "hunter2" not in str(error.value)
