"""Endpoints that cannot be declared, each with one clear error that shows no secret."""

import pytest

from iscp_dagster import Endpoint
from iscp_dagster.model.errors import ConfigError
from support.errors import raises_naming


def declare_endpoint(**changes):
    return Endpoint("alerts", **{"url": "https://example.com/a?b=c", "secrets": ["S"]} | changes)


def test_an_endpoint_needs_a_url_and_a_secret():
    assert declare_endpoint(allow=["10.0.0.0/8"]).allow == ("10.0.0.0/8",)
    assert declare_endpoint(url="http://[::1]:8080/").secrets == ("S",)


@pytest.mark.parametrize(
    ("changes", "value"),
    [
        ({"url": "example.com/hook"}, "'example.com/hook'"),
        ({"url": "ftp://example.com"}, "'ftp://example.com'"),
        ({"url": "https://"}, "'https://'"),
        ({"url": "https://example.com:99999/"}, "'https://example.com:99999/'"),
        ({"url": "https://exa mple.com/"}, "'https://exa mple.com/'"),
        ({"url": "https://bücher.example/"}, "'https://bücher.example/'"),
        ({"url": "https://[::1/"}, "'https://[::1/'"),
        ({"url": "https://example.com/#a"}, "#a"),
        ({"secrets": []}, "secrets=[...]"),
        ({"secrets": "S"}, "secrets='S'"),
        ({"batch": 0}, "batch=0"),
        ({"concurrency": 2.5}, "concurrency=2.5"),
        ({"timeout": 0}, "timeout=0"),
        ({"failing_days": -1}, "failing_days=-1"),
        ({"retries": []}, "retries=[]"),
        ({"retries": [5, 0]}, "retries=[5, 0]"),
        ({"jitter": "0.2"}, "jitter='0.2'"),
        ({"jitter": 1}, "jitter=1"),
        ({"pending": True}, "pending=True"),
        ({"allow": ["10.0.0.1/8"]}, "'10.0.0.1/8'"),
        ({"allow": [167772161]}, "167772161"),
        ({"allow": ["internal"]}, "'internal'"),
        ({"url": "https://user:hunter2@example.com/"}, "url"),
        ({"url": "https://hunter2@example.com/"}, "url"),
        ({"url": "https://user:hunter2@example.com:99999/"}, "url"),
        ({"url": "https://user:hunter2@bücher.example/"}, "url"),
        ({"url": "user:hunter2@example.com/"}, "url"),
        ({"secrets": ["whsec_hunter2"]}, "secrets=[...]"),
        ({"secrets": ["aHVudGVyMg==hunter2"]}, "secrets=[...]"),
    ],
)
def test_a_bad_endpoint_is_refused_without_its_secrets(changes, value):
    with raises_naming(ConfigError, "'alerts'", value) as caught:
        declare_endpoint(**changes)
    assert "hunter2" not in str(caught.value)
