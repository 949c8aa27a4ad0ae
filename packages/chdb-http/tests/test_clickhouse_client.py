"""clickhouse-connect at the embedded server."""

import datetime as dt
import logging
import re
import uuid
from contextlib import contextmanager
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
ROWS = 100_000
UTC = dt.timezone.utc
LATE = "SELECT number, throwIf(number = 1000000, 'late') FROM numbers(2000000)"
either_encoding = pytest.mark.parametrize("encoded", [True, False])


@contextmanager
def raises_database_error(code):
    with pytest.raises(DatabaseError) as caught:
        yield caught
    assert caught.value.code == code


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


def test_the_server_has_the_engine_s_version(client):
    assert client.server_version == client.command("SELECT version()")
    assert client.ping()
    assert client.min_version("25.11")


@pytest.mark.parametrize("compress", COMPRESSIONS)
def test_rows_are_inserted_and_read(connect, table, compress):
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
def test_arrow_tables_are_inserted_and_read(connect, table, compress):
    client = connect(compress=compress)
    name = table("a UInt64, s String", "a")
    rows = pa.table({
        "a": pa.array(range(ROWS), pa.uint64()),
        "s": [f"row {i}" for i in range(ROWS)],
    })  # fmt: skip
    assert client.insert_arrow(name, rows).written_rows == ROWS
    result = client.query_arrow(f"SELECT * FROM {name} ORDER BY a", use_strings=True)
    assert result.to_pydict() == rows.to_pydict()


def test_data_frames_are_inserted_and_read(client, table):
    name = table("a Int64, s String", "a")
    frame = pd.DataFrame({"a": range(1000), "s": [str(i) for i in range(1000)]})
    client.insert_df(name, frame)
    result = client.query_df(f"SELECT * FROM {name} ORDER BY a")
    assert result["s"].tolist() == frame["s"].tolist()


def test_results_are_read_in_streams(client):
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


def test_encoded_rows_are_inserted(client, table):
    name = table("a UInt64, s String", "a")
    client.raw_insert(name, ["a", "s"], "1,x\n2,y\n", fmt="CSV")
    client.raw_insert(name, ["a", "s"], iter([b"3,x\n", b"4,y\n"]), fmt="CSV")
    assert client.command(f"SELECT sum(a) FROM {name}") == 10


@either_encoding
def test_parameters_have_any_value(connect, encoded):
    client = connect(form_encode_query_params=encoded)
    parameters = {"s": "it's \\ \n tab\t", "a": [1, 2], "n": None, "d": dt.date(2020, 1, 2)}
    query = "SELECT {s:String}, {a:Array(Int64)}, {n:Nullable(String)}, {d:Date}"
    result = client.query(query, parameters=parameters)
    assert result.result_rows == [tuple(parameters.values())]


@either_encoding
@pytest.mark.parametrize("name", ["a$b", "$1", "1a", "_"])
def test_parameters_have_any_name(connect, encoded, name):
    client = connect(form_encode_query_params=encoded)
    query = f"SELECT {{{name}:UInt8}} + 1"
    assert client.query(query, parameters={name: 4}).result_rows == [(5,)]


@either_encoding
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
    result = client.query(query, external_data=data, settings=settings)
    assert result.result_rows == [("one",), ("three",)]
    with raises_database_error(27):
        client.query(query, external_data=data)


@pytest.mark.parametrize("session", [True, False])
def test_external_data_has_any_bytes(connect, session):
    client = connect(autogenerate_session_id=session)
    rows = [bytes([one, other]) for one in range(256) for other in (0, 10, 13, 34, 39, 59, one)]
    packed = b"".join(b"\x02" + row for row in rows)
    data = ExternalData(file_name="t", data=packed, fmt="RowBinary", structure="x String")
    result = client.query("SELECT groupArray(hex(x)) FROM t", external_data=data)
    assert result.result_rows == [([row.hex().upper() for row in rows],)]


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
    with raises_database_error(60):
        second.command("SELECT a FROM kept")


@pytest.mark.parametrize(
    ("query", "code", "name"),
    [
        ("SELECT * FROM missing", 60, "UNKNOWN_TABLE"),
        ("SELECT throwIf(1)", 395, "FUNCTION_THROW_IF_VALUE_IS_NON_ZERO"),
    ],
)
def test_the_client_gets_code_and_name_of_an_error(client, query, code, name):
    with raises_database_error(code) as caught:
        client.query(query)
    assert caught.value.name == name


def test_an_insert_of_invalid_rows_is_an_error(client, table):
    name = table("a UInt64, CONSTRAINT small CHECK a < 10")
    with raises_database_error(469):
        client.insert(name, [[1], [99]], column_names=["a"])
    with raises_database_error(469):
        client.insert_arrow(name, pa.table({"a": pa.array([1, 99], pa.uint64())}))
    assert client.command(f"SELECT count() FROM {name}") == 0


@pytest.mark.parametrize("compress", ["lz4", "gzip", False])
def test_an_error_ends_a_stream(connect, caplog, compress):
    caplog.set_level(logging.CRITICAL)
    client = connect(compress=compress)

    def read_batches():
        with client.query_arrow_stream(LATE) as batches:
            return sum(batch.num_rows for batch in batches)

    def read_blocks():
        with client.query_row_block_stream(LATE) as blocks:
            return sum(len(block) for block in blocks)

    with pytest.raises((OSError, pa.ArrowException, HTTPError)):
        read_batches()
    with pytest.raises(StreamFailureError) as caught:
        read_blocks()
    assert "late" in str(caught.value)
    assert client.command("SELECT 1") == 1


def test_the_definition_of_a_table_is_shown(client, table):
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
def test_a_statement_that_the_server_does_not_support_is_refused(client, query):
    with pytest.raises(DatabaseError) as caught:
        client.command(query)
    assert "embedded server" in str(caught.value)


@pytest.mark.parametrize("version", ["0", "54405"])
def test_the_protocol_version_of_the_client_is_not_used(server, version):
    """The answer has no block info, which shows a client that its version is not used."""
    params = {"client_protocol_version": version}
    query = "SELECT 1 AS check FORMAT Native"
    answer = httpx.post(f"{server.url}/", params=params, content=query)
    assert answer.content == b"\x01\x01\x05check\x05UInt8\x01"
    refused = httpx.post(f"{server.url}/", params={"client_protocol_version": "x"}, content=query)
    assert refused.headers["X-ClickHouse-Exception-Code"] == "27"


def test_the_first_example_of_the_readme(capsys):
    page = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    (example, _) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    exec(example, {})
    assert capsys.readouterr().out == "[(2, 'b')]\n"
