"""The embedded server over HTTP: ClickHouse's documented examples, and cases beyond them."""

import concurrent.futures
import gzip
import json
import socket
import threading
import time
import zlib
from urllib.parse import quote

import httpx
import lz4.frame
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chdb_http import launch

GZIP_ROWS = 30_000
COMPRESS = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "zstd": zstandard.compress,
    "lz4": lz4.frame.compress,
}
DECOMPRESS = {
    "gzip": gzip.decompress,
    "deflate": zlib.decompress,
    "zstd": lambda body: zstandard.ZstdDecompressor().decompressobj().decompress(body),
    "lz4": lz4.frame.decompress,
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Run a server; at the end its log must be empty, without an unexpected error."""
    log = tmp_path_factory.mktemp("log") / "server.log"
    with launch(tmp_path_factory.mktemp("clickhouse"), log=log) as started:
        yield started
    assert log.read_text() == ""


@pytest.fixture(scope="module")
def url(server):
    return server.url + "/"


@pytest.fixture
def http(url):
    with httpx.Client(base_url=url, timeout=60, verify=False) as client:
        yield client


@pytest.fixture
def table(http):
    def create(columns, tail="ENGINE = MergeTree ORDER BY tuple()"):
        name = f"t{time.monotonic_ns()}"
        execute(http, f"CREATE TABLE {name} ({columns}) {tail}")
        return name

    return create


def wait_for(condition, seconds, describe=lambda: ""):
    """Wait until the condition holds; fail after `seconds` with the text from `describe`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, describe()
        time.sleep(0.05)


def read_ok(response):
    """The text of an answer with status 200."""
    assert response.status_code == 200, response.text
    return response.text


def execute(http, content, params=None):
    return read_ok(http.post("/", params=params, content=content))


def assert_failed(response, status, number, *words):
    """It is the answer for this exception, and its text has these words."""
    assert response.status_code == status, response.text
    assert response.headers["X-ClickHouse-Exception-Code"] == str(number)
    assert response.text.startswith(f"Code: {number}. DB::Exception: ")
    assert all(word in response.text for word in words)


def make_head(server, params, size):
    """The head of a request that the test sends itself, perhaps in part."""
    host = f"{server.host}:{server.port}"
    head = f"POST /?{params} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {size}\r\n\r\n"
    return head.encode()


# The documentation's own examples (ClickHouse doc: HTTP interface).


def test_doc_default_response(http):
    for path in ("/", "/ping", "/replicas_status"):
        assert http.get(path).text == "Ok.\n"


@pytest.mark.parametrize(
    ("params", "headers", "body", "text"),
    [
        ({}, {}, "SELECT 1", "1\n"),
        ({"query": ""}, {}, "SELECT 1", "1\n"),
        ({"query": "SELECT"}, {}, "1", "1\n"),
        ({}, {}, "SELECT 1 FORMAT CSV", "1\n"),
        ({"default_format": "CSVWithNames"}, {}, "SELECT 1 AS a", '"a"\n1\n'),
        ({}, {"X-ClickHouse-Format": "CSVWithNames"}, "SELECT 1 AS a", '"a"\n1\n'),
        ({"database": "system"}, {}, "SELECT count() > 0 FROM settings", "1\n"),
        ({}, {"X-ClickHouse-Database": "system"}, "SELECT count() > 0 FROM settings", "1\n"),
        ({"param_id": "2", "param_s": "x"}, {}, "SELECT {id:UInt8} + 1, {s:String}", "3\tx\n"),
        ({"param_s": "\\t"}, {}, "SELECT {s:String} = char(9)", "1\n"),
    ],
)
def test_doc_queries(http, params, headers, body, text):
    assert read_ok(http.post("/", params=params, headers=headers, content=body)) == text


def test_doc_errors(http):
    word = {"query": "SEL"}
    assert_failed(http.post("/", params=word, content="ECT 1"), 400, 62)
    tab = {"param_s": "abc\t123"}
    assert_failed(http.post("/", params=tab, content="SELECT {s:String}"), 500, 457)


def test_doc_create_insert_read_drop(http):
    assert execute(http, "CREATE TABLE doc_t (a UInt8) ENGINE = Memory") == ""
    assert execute(http, "INSERT INTO doc_t VALUES (1),(2),(3)") == ""
    assert execute(http, "(4),(5),(6)", {"query": "INSERT INTO doc_t VALUES"}) == ""
    assert execute(http, "10\n11\n", {"query": "INSERT INTO doc_t FORMAT TabSeparated"}) == ""
    rows = read_ok(http.get("/", params={"query": "SELECT a FROM doc_t ORDER BY a"}))
    assert rows.split() == ["1", "2", "3", "4", "5", "6", "10", "11"]
    assert execute(http, "DROP TABLE doc_t") == ""


def test_doc_error_in_a_stream_is_marked(http):
    query = "SELECT number, throwIf(number = 500000, 'boom') FROM system.numbers"
    chunks, headers = [], {"Accept-Encoding": "identity"}
    with (
        http.stream("POST", "/", content=query, headers=headers) as response,
        pytest.raises(httpx.RemoteProtocolError),
    ):
        chunks.extend(response.iter_raw())
    tag, text = response.headers["X-ClickHouse-Exception-Tag"], b"".join(chunks).decode()
    assert f"\r\n__exception__\r\n{tag}\r\nCode: 395. DB::Exception: boom" in text
    assert text.endswith(f" {tag}\r\n__exception__\r\n")


# Statuses and headers.


def test_headers_of_a_result(http):
    response = http.post("/", params={"query_id": "q-1"}, content="SELECT number FROM numbers(10)")
    assert read_ok(response).count("\n") == 10
    headers = response.headers
    assert headers["Content-Type"] == "text/tab-separated-values; charset=UTF-8"
    assert headers["X-ClickHouse-Query-Id"] == "q-1"
    assert headers["X-ClickHouse-Format"] == "TabSeparated"
    assert headers["X-ClickHouse-Timezone"] == execute(http, "SELECT timezone()")[:-1]
    assert headers["X-ClickHouse-Server-Display-Name"]
    summary = json.loads(headers["X-ClickHouse-Summary"])
    assert (summary["read_rows"], summary["result_rows"]) == ("10", "10")
    assert all(isinstance(value, str) for value in summary.values())


def test_summary_of_an_insert(http, table):
    name = table("a UInt64")
    response = http.post("/", content=f"INSERT INTO {name} FORMAT CSV\n1\n2\n")
    assert read_ok(response) == ""
    assert json.loads(response.headers["X-ClickHouse-Summary"])["written_rows"] == "2"
    response = http.post("/", content=f"INSERT INTO {name} SELECT number FROM numbers(5)")
    assert json.loads(response.headers["X-ClickHouse-Summary"])["written_rows"] == "5"


@pytest.mark.parametrize(
    ("query", "status", "number"),
    [
        ("SELECT", 400, 62),
        ("SELECT 1; SELECT 2", 400, 62),
        ("SELECT * FROM missing", 404, 60),
        ("SELECT missing", 404, 47),
        ("SELECT missing(1)", 404, 46),
        ("SELECT 1 FORMAT Missing", 404, 73),
        ("SELECT 1 FORMAT ArrowTable", 404, 73),
        ("SELECT throwIf(1)", 500, 395),
        ("SELECT toUInt8('x')", 400, 6),
        ("SELECT {x:UInt8}", 500, 456),
        ("SELECT 1 INTO OUTFILE '/tmp/x'", 500, 358),
        ("SELECT sleep(3) SETTINGS max_execution_time = 0.1", 408, 159),
        ("INSERT INTO missing VALUES (1)", 404, 60),
    ],
)
def test_error_statuses(http, query, status, number):
    assert_failed(http.post("/", content=query), status, number)


@pytest.mark.parametrize(
    "token",
    [
        *(b"\x00", b"\x01", b"\x7f", b"\x80", b"\xff", b"!", b"#", b"&", b"\\"),
        *(b"\xe1\x9a\x80", b"\xe2\x80\x8e", b"1.5a", b"1.0_", b"1e+5x", b"0x1.8g", b"b'2'"),
    ],
)
def test_a_first_token_that_the_lexer_rejects(http, table, token):
    """The engine itself takes such a text for empty, and reports no error."""
    name = table("a UInt8")
    for before in (b"", b" \n", b"/* c */ ", b"(", b"-- c\n") if token == b"!" else [b" "]:
        text = before + token + b"INSERT INTO %b VALUES (1)" % name.encode()
        assert_failed(http.post("/", content=text), 400, 62)
        assert_failed(http.post(f"/?query={quote(text)}"), 400, 62)
        assert_failed(http.post(f"/?query={quote(before + token)}", content="SELECT 1"), 400, 62)
    assert_failed(http.post("/", content=b"SELECT 1; " + token), 400, 62)
    assert execute(http, f"SELECT count() FROM {name}") == "0\n"


@pytest.mark.parametrize(
    "text", ["exit", " quit\n", "logout;", "q; -- c", ":q", "\\l", "??", "?? x"]
)
def test_a_command_of_the_client_is_no_statement(http, text):
    assert_failed(http.post("/", content=text), 400, 62)


@pytest.mark.parametrize(
    "text", ["1", "-1", "\u22121", "1.5", "1.", "1e+5", "0x1F+1", "0b11", "1_000", "'a'", "[1]"]
)
def test_a_statement_may_begin_with_any_other_token(http, text):
    expected = execute(http, f"SELECT {text}")
    assert read_ok(http.post("/?implicit_select=1", content=text)) == expected


@pytest.mark.parametrize(
    ("params", "status", "number"),
    [
        ({"no_such_setting": "1"}, 404, 115),
        ({"no such setting": "1"}, 404, 115),
        ({"max_threads": "many"}, 400, 27),
        ({"database": "missing"}, 404, 81),
        ({"role": "missing"}, 404, 511),
        ({"compress": "1"}, 501, 48),
        ({"session_id": "s", "session_timeout": "x"}, 500, 374),
        ({"session_id": "s", "session_timeout": "3601"}, 500, 374),
        ({"session_id": "s", "session_timeout": "9" * 5000}, 500, 374),
        ({"session_id": "s", "session_timeout": "\u0663"}, 500, 374),
        ({"buffer_size": "9" * 5000}, 400, 27),
        ({"buffer_size": "-1"}, 400, 27),
        ({"query_id": "a\r\nX-Told: yes"}, 400, 36),
        ({"session_timezone": "UTC\r\nX-Told: yes"}, 400, 36),
        ({"param_a b": "1"}, 404, 115),
        ({"\u00fc": "1"}, 404, 115),
        ({"session_id": "never", "session_check": "1"}, 500, 372),
    ],
)
def test_errors_of_parameters(http, params, status, number):
    assert_failed(http.post("/", params=params, content="SELECT 1"), status, number)


def test_a_refused_query_id_runs_nothing(http, table):
    name = table("a UInt8")
    for query_id in ("a\r\nX-Told: yes", "a\nb", "\x00"):
        params = {"query_id": query_id}
        answer = http.post("/", params=params, content=f"INSERT INTO {name} VALUES (1)")
        assert_failed(answer, 400, 36, "query_id")
        assert "X-Told" not in answer.headers
        assert answer.headers["X-ClickHouse-Query-Id"] == ""
    assert execute(http, f"SELECT count() FROM {name}") == "0\n"


@pytest.mark.parametrize("query_id", ["  q", "q ", "  "])
def test_blanks_around_a_query_id_are_not_answered(http, query_id):
    answer = http.post("/", params={"query_id": query_id}, content="SELECT 1")
    assert read_ok(answer) == "1\n"
    assert answer.headers["X-ClickHouse-Query-Id"] == query_id.strip()


def test_a_time_zone_that_no_header_can_hold_is_refused(http):
    answer = http.post("/", params={"session_timezone": "\r\nX: y"}, content="SELECT 1")
    assert_failed(answer, 400, 36)
    assert answer.headers["X-ClickHouse-Timezone"] == "X: y"


def test_bytes_that_are_no_text_arrive_unchanged(http, table):
    name = table("s String")
    raw = b"\xff\xfe'\x80"
    insert = f"INSERT INTO {name} VALUES ({{v:String}})"
    read_ok(http.post("/", files={"query": (None, insert), "param_v": (None, raw)}))
    read_ok(http.post(f"/?param_v={quote(raw)}", content=insert))
    insert = f"INSERT INTO {name} VALUES ('".encode() + b"\xff')"
    read_ok(http.post("/", files={"query": (None, insert)}))
    read_ok(http.post(f"/?query=INSERT+INTO+{name}+VALUES+('%FE')", content=b""))
    rows = execute(http, f"SELECT hex(s) FROM {name} ORDER BY s").split()
    assert rows == sorted(["FE", "FF", raw.hex().upper(), raw.hex().upper()])
    for text in (b"SELECT \xff", b"SELECT missing('\xff')", b"SELECT `\xff` FROM \xfe"):
        answer = http.post("/", files={"query": (None, text)})
        assert answer.status_code in {400, 404}, answer.text
    answer = http.post("/", params={"query_id": "\u00fc\u20ac"}, content="SELECT 1")
    assert (b"x-clickhouse-query-id", "\u00fc\u20ac".encode()) in answer.headers.raw


def test_unknown_path_and_methods(http):
    response = http.get("/nope?x=1")
    assert response.status_code == 404
    assert response.text.startswith("There is no handle /nope?x=1\n")
    assert http.request("OPTIONS", "/").headers["Allow"] == "GET, HEAD, POST, OPTIONS"
    assert http.head("/", params={"query": "SELECT 1"}).status_code == 200
    assert http.put("/", content="SELECT 1").status_code == 501
    assert_failed(http.get("/", params={"database": "system"}), 400, 62)


def test_get_reads_only(http, table):
    name = table("a UInt8")
    function = "INSERT INTO FUNCTION file('got.csv', 'CSV', 'a Int8') SELECT 1"
    drop = f"DROP TABLE {name}"
    for query in (f"INSERT INTO {name} VALUES (1)", drop, "CREATE DATABASE x", function):
        assert_failed(http.get("/", params={"query": query, "readonly": "0"}), 500, 164, "GET")
        assert_failed(http.get("/", params={"query": query, "session_id": "get"}), 500, 164)
    for query in ("SELECT 1 SETTINGS readonly = 0", "SET readonly = 0"):
        assert_failed(http.get("/", params={"query": query}), 500, 164)
    for first in ("SET max_threads = 1", "USE default", "SHOW TABLES", "(SELECT 1)"):
        for session in ({}, {"session_id": "get"}):
            both = {"query": f"{first} PARALLEL WITH DROP TABLE {name}", **session}
            assert_failed(http.get("/", params=both), 500, 164)
    assert read_ok(http.get("/", params={"query": f"SELECT count() FROM {name}"})) == "0\n"
    assert read_ok(http.get("/", params={"query": "SELECT 1", "max_threads": "1"})) == "1\n"
    assert_failed(http.post("/", params={"readonly": "1"}, content=f"DROP TABLE {name}"), 500, 164)


def test_nothing_leaks_to_the_next_request(http):
    setting = "SELECT getSetting('max_threads'), currentDatabase()"
    before = execute(http, setting)
    changed = http.post("/", params={"max_threads": "7", "database": "system"}, content=setting)
    assert read_ok(changed) == "7\tsystem\n"
    execute(http, "SET max_threads = 9")
    execute(http, "USE system")
    execute(http, "CREATE TEMPORARY TABLE leak (a UInt8)")
    assert execute(http, setting) == before
    assert_failed(http.post("/", content="SELECT * FROM leak"), 404, 60)
    assert_failed(http.post("/", content="SELECT {p:UInt8}"), 500, 456)


def test_a_session_keeps_its_own_settings_and_not_those_of_a_request(http):
    def ask(text, **params):
        return http.post("/", params={"session_id": "keep", **params}, content=text)

    setting = "SELECT getSetting('max_threads'), currentDatabase()"
    read_ok(ask("SET max_threads = 3"))
    read_ok(ask("USE system"))
    read_ok(ask("CREATE TEMPORARY TABLE kept (a UInt8)"))
    read_ok(ask("INSERT INTO kept VALUES (5)"))
    assert read_ok(ask("SELECT a FROM kept")) == "5\n"
    assert read_ok(ask(setting)) == "3\tsystem\n"
    assert read_ok(ask(setting, max_threads="8", database="default")) == "8\tdefault\n"
    assert read_ok(ask(setting)) == "3\tsystem\n"
    assert_failed(ask("SELECT 1", no_such_setting="1"), 404, 115)
    assert read_ok(ask(setting)) == "3\tsystem\n"
    assert read_ok(ask("SELECT {p:UInt8}", param_p="5")) == "5\n"
    assert ask("SELECT {p:UInt8}").status_code >= 400
    # A request that fails before its statement leaves nothing behind either.
    one, two = {"kept_too": b"1\n"}, {"broken": b"1\n"}
    for bad in ("no_such_type", "a UInt8)) SELECT"):
        structures = {"kept_too_structure": "a UInt8", "broken_structure": f"a {bad}"}
        params = {"session_id": "keep", "query": "SELECT 1", "database": "default", **structures}
        assert http.post("/", params=params, files={**one, **two}).status_code >= 400
        assert read_ok(ask(setting)) == "3\tsystem\n"
        assert read_ok(ask("EXISTS TEMPORARY TABLE kept_too")) == "0\n"
    assert ask("SELECT 1", database="default", role="nobody").status_code >= 400
    assert read_ok(ask(setting)) == "3\tsystem\n"
    assert read_ok(ask("SELECT a FROM kept")) == "5\n"
    read_ok(ask("SELECT 1", close_session="1"))
    assert_failed(ask("SELECT 1", session_check="1"), 500, 372)


@pytest.mark.slow
def test_a_session_ends_after_its_timeout(http):
    execute(http, "SELECT 1", {"session_id": "short", "session_timeout": "1"})
    check = {"session_id": "short", "session_check": "1", "session_timeout": "1"}
    deadline = time.monotonic() + 10
    while http.post("/", params=check, content="SELECT 1").status_code == 200:
        # Each use extends the session by a second, so wait for longer.
        assert time.monotonic() < deadline
        threading.Event().wait(1.2)


def test_a_session_serves_one_at_a_time(url):
    params = {"session_id": "one"}
    query = "SELECT sleepEachRow(1) FROM numbers(3) SETTINGS max_block_size = 1"
    with concurrent.futures.ThreadPoolExecutor() as pool, httpx.Client(base_url=url) as http:
        slow = pool.submit(httpx.post, url, params={**params, "query_id": "one"}, content=query,
                           timeout=30)  # fmt: skip
        wait_for_running(http, 1)
        assert_failed(http.post("/", params=params, content="SELECT 1"), 500, 373)
        execute(http, "KILL QUERY WHERE query_id = 'one'")
        assert_failed(slow.result(), 500, 394)


def wait_for_running(http, count):
    sql = (
        "SELECT count() FROM system.processes WHERE query LIKE '%sleepEachRow%' AND elapsed > 0.05"
    )
    sql += " AND query NOT LIKE '%system.processes%'"
    wait_for(lambda: int(execute(http, sql)) >= count, 20, "the statement did not start".format)


# Formats and encodings.


@pytest.mark.parametrize("encoding", COMPRESS)
def test_rows_in_every_encoding(http, table, encoding):
    compress = COMPRESS[encoding]
    name = table("a UInt64")
    rows = b"".join(b"%d\n" % i for i in range(GZIP_ROWS))
    headers = {"Content-Encoding": encoding}
    query = {"query": f"INSERT INTO {name} FORMAT TSV"}
    read_ok(http.post("/", params=query, content=compress(rows), headers=headers))
    head = query["query"].encode() + b"\n"
    read_ok(http.post("/", content=compress(head + rows), headers=headers))
    counted = execute(http, f"SELECT count(), uniqExact(a) FROM {name}")
    assert counted == f"{2 * GZIP_ROWS}\t{GZIP_ROWS}\n"
    broken = compress(rows)[:-10]
    assert_failed(http.post("/", params=query, content=broken, headers=headers), 500, 271)
    assert execute(http, f"SELECT count() FROM {name}") == f"{2 * GZIP_ROWS}\n"


@pytest.mark.parametrize("encoding", COMPRESS)
def test_results_in_every_encoding(url, encoding):
    for rows in (10, 300_000):
        text = f"SELECT number FROM numbers({rows})"
        with httpx.stream(
            "POST", url, content=text, headers={"Accept-Encoding": encoding}, timeout=60
        ) as response:
            assert response.headers["Content-Encoding"] == encoding
            body = b"".join(response.iter_raw())
        assert DECOMPRESS[encoding](body).split()[-1] == b"%d" % (rows - 1)
    plain = httpx.post(url, params={"enable_http_compression": "0"}, content="SELECT 1",
                       headers={"Accept-Encoding": encoding})  # fmt: skip
    assert "Content-Encoding" not in plain.headers


def test_an_unknown_encoding_is_refused(http):
    response = http.post("/", content=b"SELECT 1", headers={"Content-Encoding": "bz3"})
    assert_failed(response, 501, 48, "bz3")


@pytest.mark.parametrize("name", ["JSON", "XML", "CSVWithNames"])
def test_a_long_result_is_one_document(http, name):
    text = execute(http, f"SELECT number n FROM numbers(100000) FORMAT {name}")
    if name.startswith("JSON"):
        document = json.loads(text)
        assert (document["rows"], len(document["data"])) == (100_000, 100_000)
    elif name == "CSVWithNames":
        assert text.count('"n"') == 1
    else:
        assert text.count("xml version") == (name == "XML")


def test_an_empty_result_keeps_its_head(http):
    query = "SELECT number n FROM numbers(10) WHERE 0"
    assert execute(http, f"{query} FORMAT TSVWithNames") == "n\n"
    assert json.loads(execute(http, f"{query} FORMAT JSON"))["data"] == []
    assert execute(http, query) == ""


def test_totals_and_extremes_are_in_the_result(http):
    query = "SELECT number % 2 k, count() FROM numbers(10) GROUP BY k WITH TOTALS ORDER BY k"
    document = json.loads(execute(http, f"{query} FORMAT JSON", {"extremes": "1"}))
    assert document["totals"]["count()"] in {10, "10"}
    assert set(document["extremes"]) == {"min", "max"}


def test_wait_end_of_query_gives_errors_a_status(http):
    query = "SELECT number, throwIf(number = 300000, 'late') FROM numbers(400000)"
    waited = http.post("/", params={"wait_end_of_query": "1"}, content=query)
    assert_failed(waited, 500, 395, "late")
    whole = http.post("/", params={"wait_end_of_query": "1"},
                      content="SELECT number FROM numbers(300000)")  # fmt: skip
    assert json.loads(whole.headers["X-ClickHouse-Summary"])["result_rows"] == "300000"
    assert read_ok(whole).count("\n") == 300_000


def test_statements_with_a_result_that_are_no_select(http, table):
    name = table("a UInt8")
    assert execute(http, f"EXISTS TABLE {name} FORMAT CSV") == "1\n"
    assert name in read_ok(http.get("/", params={"query": "SHOW TABLES"}))
    assert "a" in execute(http, f"DESCRIBE {name} FORMAT JSONEachRow")
    assert "Read" in execute(http, f"EXPLAIN SELECT * FROM {name}")
    described = http.post("/", content=f"DESCRIBE {name} FORMAT JSONEachRow")
    assert described.headers["X-ClickHouse-Format"] == "JSONEachRow"
    assert "X-ClickHouse-Format" not in http.post("/", content=f"TRUNCATE TABLE {name}").headers


# Inserts.


def test_rows_with_expressions_parameters_and_identifiers(http, table):
    name = table("a UInt64, s String")
    text = "INSERT INTO {t:Identifier} VALUES (1 + 1, upper('x')), ({a:UInt64}, 'y')"
    execute(http, text, {"param_t": name, "param_a": "40"})
    assert execute(http, f"SELECT sum(a) FROM {name}") == "42\n"


def test_rows_through_input(http, table):
    name = table("a UInt64, s String")
    text = f"INSERT INTO {name} SELECT a * 10, upper(s) FROM input('a UInt64, s String') FORMAT CSV"
    execute(http, b"1,x\n2,y\n", {"query": text})
    assert execute(http, f"SELECT * FROM {name} ORDER BY a") == "10\tX\n20\tY\n"


def test_every_byte_of_the_rows_arrives(http, table):
    name = table("s String")
    value = bytes(range(256)) * 10
    body = f"INSERT INTO {name} FORMAT RowBinary\n".encode() + b"\x80\x14" + value
    execute(http, body)
    assert execute(http, f"SELECT hex(s) FROM {name}").strip() == value.hex().upper()


def test_settings_act_on_inserts(http, table):
    name = table("a UInt64", "ENGINE = MergeTree PARTITION BY a ORDER BY a")
    rows = b"".join(b"%d\n" % i for i in range(150))
    query = {"query": f"INSERT INTO {name} FORMAT TSV"}
    assert_failed(http.post("/", params=query, content=rows), 500, 252)
    assert execute(http, f"SELECT count() FROM {name}") == "0\n"
    execute(http, rows, {**query, "max_partitions_per_insert_block": "150"})
    inline = {"query": f"INSERT INTO {name} SETTINGS max_partitions_per_insert_block=9 FORMAT TSV"}
    assert_failed(http.post("/", params=inline, content=rows), 500, 252)
    assert execute(http, f"SELECT count() FROM {name}") == "150\n"


def test_a_repeated_token_is_dropped(http, table):
    tail = "ENGINE = MergeTree ORDER BY a SETTINGS non_replicated_deduplication_window = 100"
    name = table("a UInt64", tail)
    for token, row in (("k", b"1\n"), ("k", b"2\n"), ("l", b"3\n")):
        query = {"query": f"INSERT INTO {name} FORMAT TSV", "insert_deduplication_token": token}
        execute(http, row, query)
    assert execute(http, f"SELECT arraySort(groupArray(a)) FROM {name}") == "[1,3]\n"


def test_broken_rows_write_nothing(http, table):
    name = table("a UInt64, CONSTRAINT small CHECK a < 10")
    query = {"query": f"INSERT INTO {name} FORMAT TSV"}
    assert_failed(http.post("/", params=query, content=b"1\nx\n"), 400, 27)
    assert_failed(http.post("/", params=query, content=b"1\n99\n"), 500, 469)
    big = b"1\n" * 100_000 + b"x\n" + b"1\n" * 1_000_000
    assert_failed(http.post("/", params=query, content=big), 400, 27)
    assert execute(http, f"SELECT count() FROM {name}") == "0\n"


def test_a_client_that_disconnects_writes_nothing(server, http, table):
    name = table("a UInt64")
    for sent in (b"1\n", b"1\n" * 50_000, b"1\n" * 400_000):
        head = make_head(server, f"query=INSERT+INTO+{name}+FORMAT+TSV", 9_999_999)
        with socket.create_connection((server.host, server.port)) as raw:
            raw.sendall(head + sent)
    sql = f"SELECT count() FROM system.processes WHERE query LIKE '%INTO {name}%FROM INFILE%'"
    sql += " AND query NOT LIKE '%system.processes%'"
    wait_for(lambda: execute(http, sql) == "0\n", 20)
    assert execute(http, f"SELECT count() FROM {name}") == "0\n"


# Side by side.


SLOW_SECONDS = 60


@pytest.mark.slow
def test_slow_queries_hold_up_nobody(url, http):
    slow = (
        f"SELECT sleepEachRow(1) FROM numbers({SLOW_SECONDS}) "
        "SETTINGS max_block_size = 1, log_comment = 'slow'"
    )
    with concurrent.futures.ThreadPoolExecutor(10) as pool:
        waiting = [pool.submit(httpx.post, url, content=slow, timeout=60) for _ in range(10)]
        wait_for_running(http, 10)
        for path in ("/ping", "/?query=SELECT+1"):
            started = time.monotonic()
            read_ok(http.get(path))
            assert time.monotonic() - started < SLOW_SECONDS / 4
        killed = http.post("/", content="KILL QUERY WHERE Settings['log_comment'] = 'slow'")
        assert read_ok(killed).count("\n") == 10
        assert {answer.result().status_code for answer in waiting} == {500}


SLOW = "SELECT sum(sleepEachRow(1)) FROM numbers(60) SETTINGS max_block_size = 1"


def test_kill_by_the_client_s_query_id(url, http):
    params = {"query_id": "it's mine"}
    with concurrent.futures.ThreadPoolExecutor() as pool:
        mine = pool.submit(httpx.post, url, params=params, content=SLOW, timeout=60)
        wait_for_running(http, 1)
        assert_failed(http.post("/", params=params, content="SELECT 1"), 500, 216)
        assert execute(http, "KILL QUERY WHERE query_id = 'someone else'") == ""
        killed = execute(http, r"KILL QUERY WHERE query_id = 'it\'s mine' SYNC")
        assert killed.startswith("finished")
        assert_failed(mine.result(), 500, 394)


def count_running(http, mark):
    sql = f"SELECT count() FROM system.processes WHERE Settings['log_comment'] = '{mark}'"
    return int(execute(http, sql))


@pytest.mark.parametrize(
    ("query", "session"),
    [(SLOW, {}), (f"EXPLAIN PLAN SELECT ({SLOW}) AS x", {"session_id": "leaves"})],
)
def test_a_client_that_leaves_ends_its_query(server, http, query, session):
    mark = f"left-{time.monotonic_ns()}"
    body = query.encode()
    params = "&".join(f"{name}={value}" for name, value in {"log_comment": mark, **session}.items())
    head = make_head(server, params, len(body))
    with socket.create_connection((server.host, server.port)) as raw:
        raw.sendall(head + body)
        wait_for(lambda: count_running(http, mark), 20, "the query did not start".format)
    wait_for(lambda: not count_running(http, mark), 20, "the query still runs".format)

    def free():
        return http.post("/", params=session, content="SELECT 1").status_code == 200

    wait_for(free, 20, "the session is still taken".format)


def test_a_query_may_continue_without_its_client(server, http):
    mark = f"goes-on-{time.monotonic_ns()}"
    params = f"log_comment={mark}&cancel_http_readonly_queries_on_client_close=0"
    head = make_head(server, params, len(SLOW))
    with socket.create_connection((server.host, server.port)) as raw:
        raw.sendall(head + SLOW.encode())
        wait_for(lambda: count_running(http, mark), 20, "the query did not start".format)
    test_a_client_that_leaves_ends_its_query(server, http, SLOW, {})
    assert count_running(http, mark), "the query of the other client ended, and this one did not"
    execute(http, f"KILL QUERY WHERE Settings['log_comment'] = '{mark}'")


def test_a_client_that_stops_reading_ends_its_query(url, http):
    query = "SELECT number FROM system.numbers"
    params = {"log_comment": "stops"}
    with httpx.stream("POST", url, params=params, content=query, timeout=30) as response:
        chunks = response.iter_raw()  # The connection closes with it.
        next(chunks)
        assert count_running(http, "stops")
    wait_for(lambda: not count_running(http, "stops"), 20, "the query still runs".format)


def test_an_open_stream_lets_others_write(url, http, table):
    name = table("a UInt64")
    query, params = "SELECT number FROM system.numbers", {"log_comment": "open"}
    with httpx.stream("POST", url, params=params, content=query, timeout=30) as slow:
        chunks = slow.iter_raw()
        next(chunks)
        execute(http, f"INSERT INTO {name} VALUES (1)")
        assert execute(http, f"SELECT count() FROM {name}") == "1\n"
        assert count_running(http, "open")


# Long and hostile statements.


MEGABYTE = 1 << 20
UNBOUNDED = {"max_query_size": "0"}
HOSTILE = {
    "brackets": (b"SELECT " + b"(" * 40_000, {}),
    "megabytes of brackets": (b"(" * (2 * MEGABYTE), {}),
    "ids": (b"SELECT 1 IN (%b)" % b",".join(b"%d" % at for at in range(10_000)), {}),
    "a vector": (b"SELECT length([%b])" % b",".join(b"%f" % at for at in range(3072)), {}),
    "a long string": (b"SELECT '%b'" % (b"x" * (2 * MEGABYTE)), {}),
    "one allowed": (b"SELECT length('%b')" % (b"''" * MEGABYTE), UNBOUNDED),
    "one to look for": (b"SELECT length('%b')" % (b"x" * (12 * MEGABYTE)), UNBOUNDED),
    "one of escapes": (b"SELECT 'file', length('%b')" % (rb"\a" * (3 * MEGABYTE)), UNBOUNDED),
    "an insert of brackets": (b"INSERT INTO t " + b"(" * 40_000, {}),
    "one of blanks": (b"INSERT INTO t" + b" " * (12 * MEGABYTE) + b"VALUES (1)", {"gzip": "1"}),
}
ALLOWED = ("ids", "a vector", "one allowed", "one to look for", "one of escapes")


def test_a_hostile_statement_does_not_hold_up_the_server(url):
    """Pings meanwhile are as fast as before, apart from the machine's load."""

    def send(kind):
        body, options = HOSTILE[kind]
        if "gzip" in options:
            body, options, headers = gzip.compress(body, 1), {}, {"Content-Encoding": "gzip"}
        else:
            headers = {}
        answer = httpx.post(url, params=options, content=body, headers=headers, timeout=120)
        return answer.headers.get("X-ClickHouse-Exception-Code", "none")

    with httpx.Client(base_url=url, timeout=120) as http:

        def ping():
            started = time.monotonic()
            assert http.get("/ping").text == "Ok.\n"
            return time.monotonic() - started

        idle = sorted(ping() for _ in range(50))
        lags = []
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            sent = {kind: pool.submit(send, kind) for kind in HOSTILE}
            while not all(answer.done() for answer in sent.values()):
                lags.append(ping())
                # Continuous pings would be the load that they measure.
                threading.Event().wait(0.005)
    for kind, answer in sent.items():
        assert answer.result() in ({"none"} if kind in ALLOWED else {"62", "306"}), kind
    lags.sort()
    assert len(lags) > 20
    assert lags[len(lags) // 2] < max(0.05, 20 * idle[25]), "half of the pings"
    assert lags[-1] < 2, "the slowest of the pings"


def test_a_statement_is_bounded_as_the_server_bounds_it(http, table):
    def text(size):
        return f"SELECT length('{'x' * (size - 17)}')"

    words = ("`max_query_size`",)
    assert execute(http, text(262_144)) == f"{262_144 - 17}\n"
    assert_failed(http.post("/", content=text(262_145)), 400, 62, *words)
    assert_failed(
        http.post("/", params={"max_query_size": "99"}, content=text(100)), 400, 62, *words
    )
    for limit in ("300000", "0"):
        assert execute(http, text(300_000), {"max_query_size": limit})[0] == "2"
    assert_failed(http.post("/", params={"max_query_size": "many"}, content="SELECT 1"), 400, 27)
    blanks = b" " * (1 << 26) + b"X"
    assert_failed(http.post("/", params=UNBOUNDED, content=blanks), 413, 229)
    value = {"param_v": (None, b"x" * ((1 << 26) + 1))}
    assert_failed(
        http.post("/", params={"query": "SELECT length({v:String})"}, files=value), 413, 229
    )
    name = table("s String")
    for head in (f"INSERT INTO {name} VALUES ", f"INSERT INTO {name} FORMAT Values "):
        execute(http, f"{head}{' ' * 300_000}('{'x' * 300_000}')")
    late = f"INSERT INTO {name}{' ' * 300_000} VALUES ('x')"
    assert_failed(http.post("/", content=late), 400, 62, *words)
    assert execute(http, f"SELECT count(), min(length(s)) FROM {name}") == "2\t300000\n"


def test_a_session_may_have_its_own_bound_of_statements(http):
    def ask(text, **params):
        return http.post("/", params={"session_id": "bound", **params}, content=text)

    text = f"SELECT length('{'x' * 300_000}')"
    assert_failed(ask(text), 400, 62)
    read_ok(ask("SET max_query_size = 400000"))
    assert read_ok(ask(text)) == "300000\n"
    assert_failed(ask(text, max_query_size="262144"), 400, 62)
    assert read_ok(ask("SELECT getSetting('max_query_size')")) == "400000\n"


def test_a_statement_may_be_longer_than_its_many_parameters(http):
    values = {f"param_p{number}": "x" * 20 for number in range(60)}
    names = [f"{{p{number}:String}} AS a_column_of_some_length_{number}" for number in range(60)]
    query = f"SELECT {', '.join(names)}"
    assert len(query) > sum(map(len, values.values()))
    assert execute(http, query, values).split("\t")[0] == "x" * 20
    assert execute(http, "SELECT getSetting('max_query_size')") == "262144\n"


def test_long_parameters_are_no_part_of_the_statement(http):
    form = {"query": (None, "SELECT length({a:String})"), "param_a": (None, "x" * 500_000)}
    assert read_ok(http.post("/", files=form)) == "500000\n"


@pytest.mark.parametrize(
    "text",
    [
        "SELECT 1 // '\n; DROP TABLE {name} -- '",
        "SELECT 1 /* /* */ ' */ ; DROP TABLE {name} -- '",
        "SELECT $a$ '$a$ ; DROP TABLE {name} -- '",
        "SELECT \u2018 '\u2019 ; DROP TABLE {name} -- '",
        "SELECT x'41' ; DROP TABLE {name}",
        "SELECT 1\u00a0; DROP TABLE {name}",
    ],
)
def test_no_second_statement_hides_from_the_server(http, table, text):
    name = table("a UInt8")
    assert_failed(http.post("/", content=text.format(name=name)), 400, 62, "Multi-statements")
    assert execute(http, f"EXISTS TABLE {name}") == "1\n"


# The answer to any request has ClickHouse's form.

NAMES = st.sampled_from([
    *("query", "query_id", "database", "default_format", "role", "session_id", "session_timeout"),
    *("session_check", "close_session", "buffer_size", "wait_end_of_query", "compress"),
    *("client_protocol_version", "enable_http_compression", "max_query_size", "max_threads"),
    *("param_a", "param_$1", "session_timezone", "t_structure", "t_types", "t_format", "readonly"),
    *("quota_key", "stacktrace", "user", "password", "add_http_cors_header", "async_insert"),
])  # fmt: skip
ODD = st.sampled_from([
    *(b"", b"0", b"1", b"-1", b"9" * 5000, b"1e9", b"\r\nX: y", b"\x00", b"\xff", b"'", b"`"),
    *("\u0663".encode(), b"{", b"%", b"$", b"Null", b"JSON", b"system", b"a UInt8", b"UInt8, ("),
])  # fmt: skip
VALUES = ODD | st.binary(max_size=20) | st.text(max_size=20).map(str.encode)
TEXTS = st.sampled_from([
    *(b"SELECT 1", b"SELECT {a:UInt8}", b"SELECT", b"INSERT INTO t", b"SHOW TABLES", b"WITH", b"("),
    *(b"INSERT INTO t FORMAT CSV\n1", b"SET max_threads = 1", b"USE system", b"SELECT * FROM t"),
    *(b"SELECT 1 FORMAT JSON", b"EXISTS t", b"';", b"SELECT '\xff' x", b"USE \xff"),
    b"KILL QUERY WHERE 0",
])  # fmt: skip
HEADER_NAMES = st.sampled_from([
    *("X-ClickHouse-Format", "X-ClickHouse-Database", "Content-Encoding", "Accept-Encoding"),
    *("X-ClickHouse-User", "Authorization", "Content-Type"),
])  # fmt: skip
HEADERS = st.dictionaries(
    HEADER_NAMES,
    st.sampled_from([b"gzip", b"zstd", b"lz4;q=0", b"\xff", b"JSON", b"Basic ?", b"text/plain"])
    | st.text(
        st.characters(min_codepoint=33, max_codepoint=255, exclude_characters="\x7f"), max_size=9
    ).map(lambda text: text.encode("latin-1")),
    max_size=2,
)
FORMS = st.lists(st.tuples(NAMES | st.just("t"), VALUES | TEXTS, st.booleans()), max_size=4)


def escape(data):
    return "".join(f"%{byte:02x}" for byte in data)


def make_form(parts):
    pieces = []
    for name, data, is_file in parts:
        file = '; filename="f"' if is_file else ""
        head = f'--xx\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'
        pieces.append(head.encode() + data)
    return b"\r\n".join([*pieces, b"--xx--\r\n"])


def is_well_formed(answer):
    number = answer.headers.get("X-ClickHouse-Exception-Code")
    if answer.status_code == 200:
        return number is None
    if number is None:
        return False
    return answer.content.startswith(f"Code: {number}. DB::Exception: ".encode())


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    method=st.sampled_from(["POST", "POST", "GET"]),
    params=st.lists(st.tuples(NAMES, VALUES), max_size=4),
    headers=HEADERS,
    body=TEXTS | st.binary(max_size=40) | FORMS.map(make_form),
    form=st.sampled_from([
        *(b"multipart/form-data; boundary=xx", b"multipart/form-data; boundary*0*=x"),
        b"multipart/form-data",
    ]),
)  # fmt: skip
def test_every_answer_has_clickhouse_s_form(http, method, params, headers, body, form):
    """The log of the server must stay empty; it is read when the server ends."""
    url = "/?" + "&".join(f"{name}={escape(value)}" for name, value in params)
    headers = {**headers, **({"Content-Type": form} if body.startswith(b"--xx") else {})}
    content = body if method == "POST" else None
    answer = http.request(method, url, content=content, headers={**headers, "Accept": "*/*"})
    assert is_well_formed(answer), (answer.status_code, answer.headers, answer.content[:300])
