"""A web page can do nothing with the embedded server, unless its origin is allowed.

The requests carry what a browser sends with those of a page (Fetch standard, Fetch Metadata).
"""

import socket
import time
from contextlib import suppress

import httpx
import pytest

from chdb_http import launch

EVIL = "http://evil.example"
FRIEND = "https://board.example"
PAGES = {
    "another site": {"Origin": EVIL, "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
    "no fetch metadata": {"Origin": EVIL},
    "a sandboxed frame": {"Origin": "null", "Sec-Fetch-Site": "cross-site"},
    "an image": {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "image"},
    "a link": {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"},
    "another port here": {"Origin": "http://127.0.0.1:1", "Sec-Fetch-Site": "same-site"},
    "another port, an image": {"Sec-Fetch-Site": "same-site"},
    "another scheme": {"Origin": "file://"},
    "an origin like ours": {"Origin": "http://127.0.0.1.evil.example"},
    "a rebound name": {"Host": "evil.example"},
    "a rebound name with our port": {"Host": "evil.example:{port}", "Sec-Fetch-Site": "none"},
    "another address": {"Host": "127.0.0.2:{port}"},
    "a host that begins like ours": {"Host": "127.0.0.1:{port}@evil.example"},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clickhouse")
    with launch(
        folder, allowed_hosts=["ch.internal, ch.example"], allowed_origins=[FRIEND]
    ) as started:
        yield started


@pytest.fixture
def http(server):
    with httpx.Client(base_url=server.url, timeout=60, verify=False) as client:
        yield client


@pytest.fixture
def table(http):
    name = f"t{time.monotonic_ns()}"
    assert http.post("/", content=f"CREATE TABLE {name} (a UInt8) ENGINE = Log").is_success
    yield name
    assert http.post("/", content=f"SELECT count() FROM {name}").text == "0\n"


def make_headers(page, server):
    port = str(server.port)
    return {"Content-Type": "text/plain"} | {
        name: value.replace("{port}", port) for name, value in PAGES[page].items()
    }


@pytest.mark.parametrize("page", PAGES)
def test_a_foreign_page_changes_and_reads_nothing(http, server, table, page):
    headers = make_headers(page, server)
    drop = http.post("/", content=f"DROP TABLE {table}", headers=headers)
    form = http.post("/", params={"query": f"INSERT INTO {table} VALUES (1)"}, headers=headers)
    read = http.get("/?query=SELECT+1&add_http_cors_header=1", headers=headers)
    ping = http.get("/ping", headers=headers)
    for answer in (drop, form, read, ping, http.get("/nowhere", headers=headers)):
        assert answer.status_code == 403
        assert any(name in answer.text for name in PAGES[page])
        assert not allows_pages(answer)


def allows_pages(answer):
    return any(name.startswith("access-control") for name in answer.headers)


def test_the_preflight_of_a_page_is_refused(http):
    headers = {"Origin": EVIL, "Access-Control-Request-Method": "POST"}
    answer = http.options("/", headers=headers)
    assert answer.status_code == 403
    assert not allows_pages(answer)


def test_a_parameter_of_the_url_allows_no_page(http):
    answer = http.get("/", params={"query": "SELECT 1", "add_http_cors_header": "1"})
    assert answer.text == "1\n"
    assert not allows_pages(answer)


def exchange(server, request):
    """The beginning of the answer to these bytes."""
    with socket.create_connection((server.host, server.port), timeout=30) as connection:
        connection.sendall(request.encode())
        return connection.recv(1 << 16)


def test_a_page_is_refused_before_its_body_is_read(server):
    head = f"POST / HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nOrigin: {EVIL}\r\n"
    answer = exchange(server, f"{head}Content-Length: 1000000000\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 403 ")


def test_a_head_without_end_is_refused(server, http):
    answer = b""
    with socket.create_connection((server.host, server.port), 30) as connection:
        with suppress(OSError):
            connection.sendall(b"GET /?query=SELECT+1 HTTP/1.1\r\nHost: 127.0.0.1\r\n")
            for number in range(3 << 7):
                connection.sendall(b"x%d: %s\r\n" % (number, b"y" * 8_192))
            connection.sendall(b"\r\n")
        with suppress(ConnectionResetError):
            answer = connection.recv(1 << 16)
    assert not answer or answer.startswith(b"HTTP/1.1 400 ")
    assert http.get("/", params={"query": "SELECT 1"}).text == "1\n"


def test_a_request_with_two_hosts_is_refused(server):
    host = f"Host: 127.0.0.1:{server.port}\r\n"
    answer = exchange(server, f"GET /ping HTTP/1.1\r\n{host}Host: evil.example\r\n\r\n")
    assert answer.split(b" ", 2)[1] in {b"400", b"403"}


@pytest.mark.parametrize(
    "host",
    [
        *("localhost:{port}", "127.0.0.1:1", "localhost", "LOCALHOST:{port}", "ch.example"),
        "ch.example:9",
    ],
)
def test_requests_to_the_address_and_to_allowed_names_are_answered(http, server, host):
    headers = {"Host": host.replace("{port}", str(server.port))}
    assert http.post("/", content="SELECT 1", headers=headers).text == "1\n"


def test_a_page_of_this_server_and_a_typed_address_are_answered(http, server):
    own = {"Origin": server.url, "Sec-Fetch-Site": "same-origin"}
    assert http.post("/", content="SELECT 1", headers=own).text == "1\n"
    typed = {"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate"}
    assert http.get("/?query=SELECT+1", headers=typed).text == "1\n"


def test_an_allowed_origin_reads_answers(http):
    friend = {"Origin": FRIEND, "Sec-Fetch-Site": "cross-site"}
    answer = http.post("/", content="SELECT 1", headers=friend)
    assert answer.text == "1\n"
    assert answer.headers["Access-Control-Allow-Origin"] == FRIEND
    preflight = http.options("/", headers={**friend, "Access-Control-Request-Method": "POST"})
    assert preflight.status_code == 200
    assert preflight.headers["Access-Control-Allow-Origin"] == FRIEND
    rebound = http.post("/", content="SELECT 1", headers={**friend, "Host": "evil.example"})
    assert rebound.status_code == 403


def test_a_request_without_these_headers_is_answered(server):
    assert exchange(server, "GET /ping HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200 ")
