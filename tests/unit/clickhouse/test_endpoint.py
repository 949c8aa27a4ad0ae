"""The server of ClickHouse that a URL names, and its errors without secrets."""

import re

import pytest
from clickhouse_connect.driver.exceptions import OperationalError

from iscp_dagster.clickhouse.connect.endpoint import ClickHouseEndpoint, split_urls
from iscp_dagster.clickhouse.connect.failures import map_error
from iscp_dagster.model.errors import ConfigError, UnavailableError
from support.errors import assert_names, raises_naming


@pytest.mark.parametrize(
    ("url", "value"),
    [
        ("http://u:pa/ss@ch1:8123", "'u'"),
        ("http://u:se#cret@ch1:8123", "'u'"),
        ("http://h/?user=u&password=secret", "password, user"),
        ("http://h/?insert_quorum=secret", "(insert_quorum)"),
        ("http://h/below", "'/below'"),
        ("http://h#secret", "'h'"),
        ("ftp://example.org", "'ftp://example.org'"),
        ("http://", "'http://'"),
        ("localhost:8123", "'localhost://'"),
    ],
)
def test_a_wrong_url_is_refused_and_its_secrets_are_not_shown(url, value):
    with raises_naming(ConfigError, "CLICKHOUSE_URL", value) as caught:
        ClickHouseEndpoint.parse(url)
    words = set(re.split(r"\W+", str(caught.value)))
    assert not {"pa", "ss", "se", "cret", "secret"} & words


def test_a_comma_in_a_password_does_not_separate_servers():
    text = "http://u:pa,ss@ch1:8123, http://ch2:8123 http://ch3:8123,http://ch4:8123"
    endpoints = [ClickHouseEndpoint.parse(url) for url in split_urls(text)]
    assert [endpoint.host for endpoint in endpoints] == ["ch1", "ch2", "ch3", "ch4"]
    assert endpoints[0].password == "pa,ss"


def test_a_url_names_host_port_user_and_password_which_is_never_shown():
    one = ClickHouseEndpoint.parse("https://me:s%40id@example.org")
    assert (one.host, one.port, one.secure, one.user) == ("example.org", 8443, True, "me")
    assert one.password == "s@id"
    assert "s@id" not in repr(one)
    assert ClickHouseEndpoint.parse("http://example.org").port == 8123


@pytest.mark.parametrize("quorum", ["2", "auto"])
def test_a_quorum_alone_is_required_of_inserts_and_makes_reads_consistent(quorum):
    endpoint = ClickHouseEndpoint.parse(f"http://example.org:8123/?insert_quorum={quorum}")
    assert endpoint.insert_settings == {"insert_quorum": quorum, "insert_quorum_parallel": "0"}
    assert endpoint.read_settings == {"select_sequential_consistency": 1}
    without = ClickHouseEndpoint.parse("http://example.org/")
    assert (without.insert_settings, without.read_settings) == ({}, {})


REFUSED = "Failed to establish a new connection: [Errno 111] Connection refused"


@pytest.mark.parametrize(
    ("cause", "reason"),
    [
        (f"NewConnectionError(\"HTTPConnection(host='h', port=9): {REFUSED}\")", REFUSED),
        (
            "ReadTimeoutError(\"HTTPConnectionPool(host='h', port=9): Read timed out.\")",
            "Read timed out",
        ),
    ],
)
def test_an_error_of_the_connection_is_shown_without_the_request(cause, reason):
    url = "/?date_time_input_format=best_effort&param=secret"
    text = f"Error HTTPConnectionPool(host='h', port=9): Max retries exceeded with url: {url} "
    known = map_error(OperationalError(f"{text}(Caused by {cause}) executing"), "http://h:9", "ask")
    assert isinstance(known, UnavailableError)
    assert_names(str(known), "http://h:9", "ask", reason)
    assert ".." not in str(known)
    assert not {"Max", "param", "executing"} & set(re.split(r"\W+", str(known)))
    plain = map_error(OperationalError(f"{text}(Caused by Odd())"), "http://h:9", "ask")
    assert "param" not in str(plain)
