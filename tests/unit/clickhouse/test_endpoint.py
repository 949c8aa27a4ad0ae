"""Where ClickHouse is, as its URL says."""

import re

import pytest
from clickhouse_connect.driver.exceptions import OperationalError

from iscp_dagster.clickhouse.connect.endpoint import Endpoint, split_urls
from iscp_dagster.clickhouse.connect.failures import map_error
from iscp_dagster.model.errors import ConfigError, UnavailableError


@pytest.mark.parametrize("url", ["http://u:pa/ss@ch1:8123", "http://u:se#cret@ch1:8123"])
def test_a_password_that_is_not_quoted_is_refused_and_not_shown(url):
    with pytest.raises(ConfigError) as refused:
        Endpoint.parse(url)
    assert not {"pa", "ss", "se", "cret"} & set(re.split(r"\W+", str(refused.value)))


def test_a_comma_in_a_password_parts_no_servers():
    text = "http://u:pa,ss@ch1:8123, http://ch2:8123 http://ch3:8123,http://ch4:8123"
    assert [Endpoint.parse(url).host for url in split_urls(text)] == ["ch1", "ch2", "ch3", "ch4"]
    assert Endpoint.parse(split_urls(text)[0]).password == "pa,ss"


def test_a_url_names_host_port_user_and_password_which_is_never_shown():
    found = Endpoint.parse("https://me:s%40id@example.org")
    assert (found.host, found.port, found.secure, found.user) == ("example.org", 8443, True, "me")
    assert found.password == "s@id"
    assert "s@id" not in repr(found)
    assert Endpoint.parse("http://example.org").port == 8123


@pytest.mark.parametrize("quorum", ["2", "auto"])
def test_a_quorum_is_asked_of_inserts_and_its_reads_are_consistent(quorum):
    found = Endpoint.parse(f"http://example.org:8123/?insert_quorum={quorum}")
    assert found.insert_settings == {"insert_quorum": quorum, "insert_quorum_parallel": "0"}
    assert found.read_settings == {"select_sequential_consistency": 1}


def test_without_one_nothing_is_asked():
    found = Endpoint.parse("http://example.org/")
    assert (found.insert_settings, found.read_settings) == ({}, {})


def test_what_is_refused_is_not_repeated():
    with pytest.raises(ConfigError) as refused:
        Endpoint.parse("http://h/?user=u&password=secret")
    assert "password" in str(refused.value)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        "ftp://example.org",
        "http://",
        "http://h/?insert_quorum=most",
        "http://h/?user=x",
        "http://h/below",
        "http://h#x",
    ],
)
def test_anything_else_is_refused(url):
    with pytest.raises(ConfigError, match="CLICKHOUSE_URL"):
        Endpoint.parse(url)


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        (
            (
                "NewConnectionError(\"HTTPConnection(host='h', port=9): Failed to establish a new "
                'connection: [Errno 111] Connection refused")'
            ),
            "Failed to establish a new connection: [Errno 111] Connection refused",
        ),
        (
            "ReadTimeoutError(\"HTTPConnectionPool(host='h', port=9): Read timed out.\")",
            "Read timed out",
        ),
    ],
)
def test_a_server_that_does_not_answer_is_told_without_the_request(cause, said):
    url = "/?date_time_input_format=best_effort&param=secret"
    told = f"Error HTTPConnectionPool(host='h', port=9): Max retries exceeded with url: {url} "
    known = map_error(OperationalError(f"{told}(Caused by {cause}) executing"), "http://h:9", "ask")
    assert isinstance(known, UnavailableError)
    assert str(known).startswith(f"ClickHouse at http://h:9 did not answer (ask): {said}. Start it")
    plain = map_error(OperationalError(f"{told}(Caused by Odd())"), "http://h:9", "ask")
    assert "param" not in str(plain)
