"""The embedded server as clickhouse-connect sees it."""

import datetime as dt
import logging
import re
import uuid
from decimal import Decimal
from pathlib import Path

import clickhouse_connect
import httpx
import pandas as pd
import pyarrow as pa
import pytest
from clickhouse_connect.driver.exceptions import DatabaseError, StreamFailureError
from clickhouse_connect.driver.external import ExternalData
from urllib3.exceptions import HTTPError

from chdb_http import launch

COMPRESSIONS = ["lz4", "zstd", "gzip", True, False]
ROWS = 300_000
UTC = dt.timezone.utc


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with launch(tmp_path_factory.mktemp("clickhouse")) as started:
        yield started


@pytest.fixture
def connect(server):
    clients = []

    def make(**options):
        client = clickhouse_connect.get_client(host=server.host, port=server.port, **options)
        clients.append(client)
        return client

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def client(connect):
    return connect()


@pytest.fixture
def table(client):
    def create(columns, order="tuple()"):
        name = f"t_{uuid.uuid4().hex}"
        client.command(f"CREATE TABLE {name} ({columns}) ENGINE = MergeTree ORDER BY {order}")
        return name

    return create


def test_it_is_the_engine_s_version(client):
    assert client.server_version == client.command("SELECT version()")
    assert client.ping()
    assert client.min_version("25.11")


@pytest.mark.parametrize("compress", COMPRESSIONS)
def test_rows_there_and_back(connect, table, compress):
    client = connect(compress=compress)
    name = table("a UInt64, s String, d DateTime64(6), n Nullable(Decimal(9, 2)), v Array(Float32)")
    day = dt.datetime(2020, 1, 1, 1, 2, 3, 4, tzinfo=UTC)
    rows = [(1, "x'y\\", day, None, [1.5, 2.5]), (2**63, "\n\t\0", day, Decimal("1.25"), [])]
    summary = client.insert(name, rows, column_names=["a", "s", "d", "n", "v"])
    assert summary.written_rows == 2
    result = client.query(f"SELECT * FROM {name} ORDER BY a", tz_mode="aware")
    assert result.result_rows == rows
    assert result.column_names == ("a", "s", "d", "n", "v")
    assert int(result.summary["result_rows"]) == 2


@pytest.mark.parametrize("compress", COMPRESSIONS)
def test_arrow_there_and_back(connect, table, compress):
    client = connect(compress=compress)
    name = table("a UInt64, s String", "a")
    rows = pa.table({
        "a": pa.array(range(ROWS), pa.uint64()),
        "s": [f"row {i}" for i in range(ROWS)],
    })  # fmt: skip
    assert client.insert_arrow(name, rows).written_rows == ROWS
    back = client.query_arrow(f"SELECT * FROM {name} ORDER BY a", use_strings=True)
    assert back.to_pydict() == rows.to_pydict()


def test_data_frames(client, table):
    name = table("a Int64, s String", "a")
    frame = pd.DataFrame({"a": range(1000), "s": [str(i) for i in range(1000)]})
    client.insert_df(name, frame)
    back = client.query_df(f"SELECT * FROM {name} ORDER BY a")
    assert back["s"].tolist() == frame["s"].tolist()


def test_streams(client):
    query = f"SELECT number, toString(number) FROM numbers({ROWS})"
    with client.query_row_block_stream(query) as blocks:
        assert sum(len(block) for block in blocks) == ROWS
    with client.query_df_stream(query) as frames:
        assert sum(len(frame) for frame in frames) == ROWS
    with client.query_arrow_stream(query) as batches:
        assert sum(batch.num_rows for batch in batches) == ROWS
    with client.raw_stream(query, fmt="CSV") as raw:
        assert raw.read().count(b"\n") == ROWS
    assert client.raw_query("SELECT 1 AS x FORMAT JSONEachRow") == b'{"x":1}\n'


def test_raw_inserts(client, table):
    name = table("a UInt64, s String", "a")
    client.raw_insert(name, ["a", "s"], "1,x\n2,y\n", fmt="CSV")
    client.raw_insert(name, ["a", "s"], iter([b"3,x\n", b"4,y\n"]), fmt="CSV")
    assert client.command(f"SELECT sum(a) FROM {name}") == 10


@pytest.mark.parametrize("encoded", [True, False])
def test_parameters(connect, encoded):
    client = connect(form_encode_query_params=encoded)
    given = {"s": "it's \\ \n tab\t", "a": [1, 2], "n": None, "d": dt.date(2020, 1, 2)}
    query = "SELECT {s:String}, {a:Array(Int64)}, {n:Nullable(String)}, {d:Date}"
    assert client.query(query, parameters=given).result_rows == [tuple(given.values())]


@pytest.mark.parametrize("encoded", [True, False])
@pytest.mark.parametrize("name", ["a$b", "$1", "1a", "_"])
def test_names_of_parameters(connect, encoded, name):
    client = connect(form_encode_query_params=encoded)
    query = f"SELECT {{{name}:UInt8}} + 1"
    assert client.query(query, parameters={name: 4}).result_rows == [(5,)]


@pytest.mark.parametrize("encoded", [True, False])
@pytest.mark.parametrize("session", [True, False])
@pytest.mark.parametrize(
    "allowed", [{"input_format_allow_errors_num": 1}, {"input_format_allow_errors_ratio": 0.5}]
)
def test_external_data_is_read_as_its_request_says(connect, encoded, session, allowed):
    client = connect(form_encode_query_params=encoded, autogenerate_session_id=session)
    data = ExternalData(file_name="numbers.tsv", data=b"1\nx\n3\n", fmt="TSV", types=["UInt8"])
    data.add_file(file_name="names.csv", data=b"1,one\n3,three\n", fmt="CSV",
                  structure=["id UInt8", "name String"])  # fmt: skip
    query = "SELECT name FROM numbers JOIN names ON id = _1 ORDER BY id"
    settings = {**allowed, "async_insert": 1}
    found = client.query(query, external_data=data, settings=settings)
    assert found.result_rows == [("one",), ("three",)]
    with pytest.raises(DatabaseError, match="CANNOT_PARSE"):
        client.query(query, external_data=data)


@pytest.mark.parametrize("encoded", [True, False])
def test_external_data(connect, encoded):
    client = connect(form_encode_query_params=encoded)
    data = ExternalData(
        file_name="movies.csv", data=b"1,aa\n2,bb\n", fmt="CSV", structure="id UInt8, name String"
    )
    data.add_file(file_name="prices", data=b"2\t1.50\n", types=["UInt8", "Decimal(10, 2)"])
    query = "SELECT name, _2 FROM movies JOIN prices ON id = _1 WHERE id >= {x:UInt8}"
    found = client.query(query, parameters={"x": 1}, external_data=data)
    assert found.result_rows == [("bb", Decimal("1.50"))]


@pytest.mark.parametrize("session", [True, False])
def test_external_data_of_any_bytes(connect, session):
    client = connect(autogenerate_session_id=session)
    rows = [bytes([one, other]) for one in range(256) for other in (0, 10, 13, 34, 39, 59, one)]
    packed = b"".join(b"\x02" + row for row in rows)
    data = ExternalData(file_name="t", data=packed, fmt="RowBinary", structure="x String")
    found = client.query("SELECT groupArray(hex(x)) FROM t", external_data=data)
    assert found.result_rows == [([row.hex().upper() for row in rows],)]


def test_a_client_has_a_session(connect):
    first, second = connect(), connect()
    first.command("CREATE TEMPORARY TABLE kept (a UInt8)")
    first.command("INSERT INTO kept VALUES (7)")
    first.command("SET max_threads = 1")
    assert first.command("SELECT a FROM kept") == 7
    query = "SELECT getSetting('max_threads')"
    assert first.query(query, settings={"max_threads": 5}).result_rows == [(5,)]
    assert first.command(query) == 1
    assert second.command(query) != 1
    with pytest.raises(DatabaseError, match="UNKNOWN_TABLE"):
        second.command("SELECT a FROM kept")


def test_settings_and_database_of_a_client(connect):
    connect().command("CREATE DATABASE IF NOT EXISTS other")
    client = connect(database="other", settings={"max_block_size": 123})
    assert client.query("SELECT currentDatabase(), getSetting('max_block_size')").result_rows == [
        ("other", 123)
    ]


@pytest.mark.parametrize(
    ("query", "code", "name"),
    [
        ("SELECT * FROM missing", 60, "UNKNOWN_TABLE"),
        ("SELECT throwIf(1)", 395, "FUNCTION_THROW_IF_VALUE_IS_NON_ZERO"),
    ],
)
def test_errors(client, query, code, name):
    with pytest.raises(DatabaseError) as caught:
        client.query(query)
    assert (caught.value.code, caught.value.name) == (code, name)


def test_errors_of_inserts(client, table):
    name = table("a UInt64, CONSTRAINT small CHECK a < 10")
    with pytest.raises(DatabaseError, match="VIOLATED_CONSTRAINT"):
        client.insert(name, [[1], [99]], column_names=["a"])
    with pytest.raises(DatabaseError, match="VIOLATED_CONSTRAINT"):
        client.insert_arrow(name, pa.table({"a": pa.array([1, 99], pa.uint64())}))
    assert client.command(f"SELECT count() FROM {name}") == 0


@pytest.mark.parametrize("compress", COMPRESSIONS)
def test_a_broken_arrow_stream_is_not_taken_for_a_whole_one(connect, compress):
    client = connect(compress=compress)
    query = "SELECT number, throwIf(number = 3000000, 'late') FROM numbers(4000000)"

    def read_all():
        with client.query_arrow_stream(query) as batches:
            return sum(batch.num_rows for batch in batches)

    with pytest.raises((OSError, pa.ArrowException, HTTPError)):
        read_all()


@pytest.mark.parametrize("compress", COMPRESSIONS)
def test_an_error_in_a_stream(connect, caplog, compress):
    caplog.set_level(logging.CRITICAL)
    client = connect(compress=compress)
    query = "SELECT number, throwIf(number = 3000000, 'late') FROM numbers(4000000)"

    def read_all():
        with client.query_row_block_stream(query) as blocks:
            return sum(len(block) for block in blocks)

    with pytest.raises(StreamFailureError, match="late"):
        read_all()
    assert client.command("SELECT 1") == 1


def test_the_definition_of_a_table(client, table):
    name = table("a UInt64 COMMENT 'x'", "a")
    (row,) = client.query(f"SHOW CREATE TABLE {name}").result_rows
    assert row[0].startswith(f"CREATE TABLE default.{name}\n(\n    `a` UInt64 COMMENT 'x'\n)")
    assert "GRANT" in client.query("SHOW GRANTS").result_rows[0][0]


@pytest.mark.parametrize(
    "query",
    [
        *("CREATE USER bob", "CREATE ROLE r", "GRANT SELECT ON *.* TO bob", "SHOW USERS"),
        *("SELECT * FROM system.query_log", "SELECT count() FROM system.part_log"),
    ],
)
def test_what_the_server_lacks_is_told(client, query):
    with pytest.raises(DatabaseError, match="Not supported: the embedded server"):
        client.command(query)


@pytest.mark.parametrize("version", ["0", "54405"])
def test_a_client_of_another_protocol_version(server, version):
    """The answer has no block info, which shows a client that its version is not used."""
    params = {"client_protocol_version": version}
    query = "SELECT 1 AS check FORMAT Native"
    said = httpx.post(f"{server.url}/", params=params, content=query).content
    assert said == b"\x01\x01\x05check\x05UInt8\x01"
    refused = httpx.post(f"{server.url}/", params={"client_protocol_version": "x"}, content=query)
    assert refused.headers["X-ClickHouse-Exception-Code"] == "27"


def test_the_first_example_of_the_readme(capsys):
    page = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    (example, _) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    exec(example, {})
    assert capsys.readouterr().out == "[(2, 'b')]\n"
