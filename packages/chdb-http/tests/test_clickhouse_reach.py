"""A query reaches only the tables, user_files, and folders and hosts that are allowed by name."""

import http.server
import threading
from pathlib import Path

import httpx
import pytest

from chdb_http import Account, launch
from chdb_http.engine import landlock

SECRET = "the secret of another program"
STATEMENTS = {
    "file": "SELECT * FROM file('{outside}/secret', 'LineAsString')",
    "file upwards": "SELECT * FROM file('../../../secret', 'LineAsString')",
    "file in braces": "SELECT throwIf(count() = 0) FROM file('{{{outside}/secret,x}}', One)",
    "a bound path": "SELECT * FROM file({{p:String}}, 'LineAsString')",
    "an escaped path": "SELECT * FROM file('\\x2f{outside}/secret', 'LineAsString')",
    "a heredoc": "SELECT * FROM file($$ {outside}/secret$$, 'LineAsString')",
    "the data's own": "SELECT * FROM file('{data}/chdb-http.lock', 'One')",
    "compared file": "SELECT 1 WHERE engine = file('{outside}/secret')",
    "quoted file": "SELECT * FROM `file`('{outside}/secret', 'LineAsString')",
    "environment": "SELECT file('/proc/self/environ')",
    "write a file": (
        "INSERT INTO FUNCTION file('{outside}/zz.py', 'RawBLOB', 'x String') SELECT '1'"
    ),
    "engine File": "CREATE TABLE f (a String) ENGINE = File(LineAsString, '{outside}/secret')",
    "temporary File": (
        "CREATE TEMPORARY TABLE f (a String) ENGINE = File(LineAsString, '{outside}/secret')"
    ),
    "outfile": "SELECT 1 INTO OUTFILE '{outside}/out'",
    "show outfile": "SHOW TABLES INTO OUTFILE '{outside}/out'",
    "explain outfile": "EXPLAIN SELECT 1 INTO OUTFILE '{outside}/out'",
    "infile": "INSERT INTO FUNCTION null('a String') FROM INFILE '{outside}/secret' FORMAT CSV",
    "a table's name": "SELECT * FROM `{outside}/secret`",
    "a database of files": "CREATE DATABASE d ENGINE = Filesystem('{outside}')",
    "backup": "BACKUP DATABASE default TO File('{outside}/out')",
    "attach": "ATTACH TABLE a FROM '{outside}' (a Int8) ENGINE = Log",
    "a disk": (
        "CREATE TABLE d (a Int8) ENGINE = MergeTree ORDER BY a SETTINGS disk = disk("
        "type = object_storage, object_storage_type = local, metadata_type = plain, "
        "path = '{outside}/out/')"
    ),
    "a web disk": (
        "CREATE TABLE d (a Int8) ENGINE = MergeTree ORDER BY a "
        "SETTINGS disk = disk(type = web, endpoint = '{web}/')"
    ),
    "sqlite": "SELECT * FROM sqlite('{outside}/secret', 't')",
    "sqlite database": "CREATE DATABASE s ENGINE = SQLite('{outside}/secret')",
    "url": "SELECT * FROM url('{web}/', 'LineAsString')",
    "url with a user": "SELECT * FROM url('http://allowed.example@{address}/', 'LineAsString')",
    "url in braces": "SELECT * FROM url('http://{{allowed.example,{address}}}/', 'LineAsString')",
    "url with a choice": (
        "SELECT * FROM url('http://allowed.example/{{a|b}}|{web}/', 'LineAsString')"
    ),
    "url of a file": "SELECT * FROM url('file://{outside}/secret', 'LineAsString')",
    "engine URL": "CREATE TABLE u (a String) ENGINE = URL('{web}/', LineAsString)",
    "s3": "SELECT * FROM s3('{web}/bucket/key', 'CSV', 'a Int8')",
    "remote": "SELECT * FROM remote('{address}', 'system.one')",
    "mysql": "SELECT * FROM mysql('{address}', 'a', 'b', 'c', 'd')",
    "mysql database": "CREATE DATABASE m ENGINE = MySQL('{address}', 'a', 'b', 'c')",
    "postgresql": "SELECT * FROM postgresql('{address}', 'a', 'b', 'c', 'd')",
    "mongodb": "SELECT * FROM mongodb('{address}', 'a', 'b', 'c', 'd', 'a Int8')",
    "redis": "SELECT * FROM redis('{address}', 'k', 'k String, v String')",
    "hdfs": "SELECT * FROM hdfs('hdfs://{address}/x', 'CSV', 'a Int8')",
    "azure": "SELECT * FROM azureBlobStorage('{web}', 'c', 'b', 'a', 'YQ==', 'CSV')",
    "delta lake": "SELECT * FROM deltaLake('{web}/bucket/key')",
    "odbc": "SELECT * FROM odbc('DSN=x', 'a', 'b')",
    "url of the data": "SELECT * FROM url('file://{data}/status', 'RawBLOB')",
    "url in capitals": "SELECT * FROM url('FILE://{data}/status', 'RawBLOB')",
    "url with a comment": "SELECT * FROM `url` /* ( */ ('file://{data}/status', 'RawBLOB')",
    "url put together": "SELECT * FROM url(concat('file', '://{data}/status'), 'RawBLOB')",
    "a bound url": "SELECT * FROM url(concat('file://', {{p:String}}), 'RawBLOB')",
    "a base of urls": "SELECT * FROM url('status') SETTINGS url_base = 'file://{data}/'",
    "write a url": (
        "INSERT INTO FUNCTION url('file://{data}/victim', 'RawBLOB', 'x String') SELECT 'x' "
        "SETTINGS engine_file_truncate_on_insert = 1"
    ),
    "a table as url": "CREATE TABLE x8 AS url('file://{data}/status', 'RawBLOB', 'x String')",
    "a table as file": "CREATE TABLE x10 AS file('in.csv', 'CSV', 'a Int8')",
    "a view of url": "CREATE VIEW x9 AS WITH x AS (SELECT * FROM url('file://{data}/status')) "
    "SELECT * FROM x",
    "url of a cluster": "SELECT * FROM urlCluster('x', 'file://{data}/status')",
    "file of a cluster": "SELECT * FROM fileCluster('x', '{data}/status')",
    "dots in braces": "SELECT * FROM file('{{.,x}}{{.,x}}/status', 'RawBLOB')",
    "a format as string": "CREATE TABLE x0 (a String) ENGINE = File('RawBLOB', '../status')",
    "a quoted engine": "CREATE TABLE x1 (a String) ENGINE `File` ('RawBLOB', '../status')",
    "a file descriptor": "CREATE TABLE x2 (a String) ENGINE = File('RawBLOB', 1)",
    "attached File": (
        "ATTACH TABLE x3 UUID '0f1c7f5e-1111-4111-8111-111111111111' (a String) "
        "ENGINE = File('RawBLOB', '/etc/passwd')"
    ),
    "temporary File of the data": (
        "CREATE TEMPORARY TABLE x4 (a String) ENGINE = File('RawBLOB', '../status')"
    ),
    "File as a select": "CREATE TABLE x5 ENGINE = File('RawBLOB', '../victim') AS SELECT 'x'",
    "attached from a folder": "ATTACH TABLE x6 FROM '../store' (a Int8) ENGINE = Log",
    "attached beside another": (
        "SET max_threads = 1 PARALLEL WITH ATTACH TABLE x6 FROM '../store' (a Int8) ENGINE = Log"
    ),
    "RocksDB": ("CREATE TABLE x7 (a Int8) ENGINE = EmbeddedRocksDB(0, '{data}/out') PRIMARY KEY a"),
    "name with escapes": "SELECT * FROM default.`\\x2e.\\N/status`",
    "name as a string": "SELECT * FROM '{data}/status'",
    "name in hexadecimal": "SELECT * FROM x'2e2e2f737461747573'",
    "name put together": "SELECT * FROM loop('default', concat('.', './status')) LIMIT 1",
    "two slashes to a function": "SELECT * FROM loop('default', '/{data}/status') LIMIT 1",
    "an evaluated text": (
        "SELECT * FROM eval('SELECT 1') SETTINGS allow_experimental_eval_table_function = 1"
    ),
    "executable": "SELECT * FROM executable('sh', 'CSV', 'a Int8')",
    "engine Executable": "CREATE TABLE e (a Int8) ENGINE = Executable('sh', 'CSV')",
    "a dictionary": (
        "CREATE DICTIONARY d (k UInt64, v String) PRIMARY KEY k SOURCE(EXECUTABLE("
        "COMMAND 'touch {outside}/out' FORMAT CSV)) LAYOUT(FLAT()) LIFETIME(1)"
    ),
    "dictionary()": "SELECT * FROM dictionary('d')",
    "python": "SELECT * FROM Python(os)",
    "engine Python": "CREATE TABLE p ENGINE = Python(os)",
    "a collection": "CREATE NAMED COLLECTION c AS url = '{web}/'",
    "a user": "CREATE USER eve",
    "a grant": "GRANT ALL ON *.* TO default",
    "shutdown": "SYSTEM SHUTDOWN",
    "kill": "SYSTEM KILL",
    "suspend": "SYSTEM SUSPEND FOR 60 SECOND",
    "the default database": "DROP DATABASE default",
    "the schema": "DROP DATABASE information_schema",
    "the SCHEMA": "DROP DATABASE INFORMATION_SCHEMA",
    "the system": "DROP DATABASE system",
    "a table of the system": "DROP TABLE system.one",
    "a workload": "CREATE WORKLOAD everything",
    "redirects": "SELECT 1 SETTINGS max_http_get_redirects = 9",
}


@pytest.fixture(scope="module")
def web():
    """The address of a web server on this machine, and the paths of its requests."""
    paths = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            paths.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"inside\n")

        do_HEAD = do_GET  # noqa: N815 - the names that the library calls
        do_POST = do_GET  # noqa: N815

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as web:
        thread = threading.Thread(target=web.serve_forever)
        thread.start()
        yield f"127.0.0.1:{web.server_port}", paths
        web.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def outside(tmp_path_factory):
    folder = tmp_path_factory.mktemp("outside")
    (folder / "secret").write_text(SECRET)
    return folder


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clickhouse")
    (folder / "more").mkdir()
    with launch(
        folder / "data", allowed_paths=[folder / "more"], remote_hosts=["allowed.example"]
    ) as started:
        yield started, folder


@pytest.fixture
def http_client(server):
    with httpx.Client(base_url=server[0].url, timeout=60, verify=False) as client:
        yield client


@pytest.mark.parametrize("name", STATEMENTS)
def test_nothing_outside_is_reached(http_client, server, outside, web, name):
    (address, paths), data = web, server[1] / "data"
    before = sorted(outside.iterdir())
    text = STATEMENTS[name].format(
        outside=outside, data=data, address=address, web=f"http://{address}"
    )
    victim = data / "victim"
    victim.write_text("whole")
    params = {"param_p": f"{outside}/secret"} if "{p" in text else {}
    answer = http_client.post("/", content=text, params=params)
    assert answer.status_code >= 400, answer.text
    assert SECRET not in answer.text
    assert "inside\n" not in answer.text
    assert not paths
    assert sorted(outside.iterdir()) == before
    assert victim.read_text() == "whole"
    assert http_client.post("/", content="SELECT 1").text == "1\n"


WITHIN = {
    "scalar file": "SELECT file('{data}/secret')",
    "scalar file with a default": "SELECT file('{data}/secret', 'x')",
    "default in a structure": (
        "SELECT * FROM format(JSONEachRow, 'a Int8, b String DEFAULT file(\\'{data}/secret\\')',"
        " '{{\"a\": 1}}')"
    ),
    "structure put together": (
        "SELECT * FROM format(JSONEachRow, concat('a Int8, b String DEFAULT fi', "
        "'le(\\'{data}/secret\\')'), '{{\"a\": 1}}')"
    ),
    "a filter of the result": (
        "SELECT 1 SETTINGS additional_result_filter = "
        "'throwIf(1 NOT IN (SELECT * FROM file(\\'{data}/secret\\', LineAsString)))'"
    ),
    "a filter of a table": (
        "SELECT * FROM system.one SETTINGS additional_table_filters = "
        "{{'system.one': 'dummy NOT IN (SELECT * FROM file(\\'{data}/secret\\', LineAsString))'}}"
    ),
    "a value of a row": (
        "INSERT INTO FUNCTION null('a String') VALUES (throwIf(1, toString(file('{data}/secret'))))"
    ),
    "a query in a row": (
        "INSERT INTO FUNCTION null('a String') "
        "VALUES ((SELECT * FROM file('{data}/secret', LineAsString)))"
    ),
    "a value in a text": "SELECT * FROM format(Values, 'a String', '(file(\\'{data}/secret\\'))')",
    "a query in a text": (
        "SELECT * FROM format(Values, 'a String', "
        "'((SELECT * FROM file(\\'{data}/secret\\', LineAsString)))')"
    ),
    "a query in a text beside a file": (
        "SELECT * FROM file('beside', LineAsString) AS a, format(Values, 'a String', "
        "'((SELECT * FROM file(\\'{data}/secret\\', LineAsString)))') AS b"
    ),
    "expressions beside a file": (
        "SELECT * FROM file('beside', LineAsString) AS a, format(Values, 'a String', "
        "'((SELECT * FROM file(\\'{data}/secret\\', LineAsString)))') AS b "
        "SETTINGS input_format_values_interpret_expressions = 1"
    ),
    "a view of expressions": (
        "CREATE VIEW hidden AS SELECT * FROM format(Values, 'a String', "
        "'((SELECT * FROM file(\\'{data}/secret\\', LineAsString)))') "
        "SETTINGS input_format_values_interpret_expressions = 1"
    ),
    "a query in a file": "SELECT * FROM file('values', 'Values', 'a String')",
    "rows of input": (
        "INSERT INTO FUNCTION null('a String') SELECT throwIf(1, a) FROM input('a String') "
        "FORMAT Values ((SELECT * FROM file('{data}/secret', LineAsString)))"
    ),
    "a role": "SET ROLE files",
    "every role": "SET /* */ ROLE ALL",
    "the default roles": "SELECT 1 PARALLEL WITH SET ROLE DEFAULT",
    "a file by an escaped name": "SELECT * FROM `fi\\x6ce`('{data}/secret', 'LineAsString')",
    "a disk by an escaped name": (
        "CREATE TABLE escaped (a Int8) ENGINE = MergeTree ORDER BY a SETTINGS disk = `di\\x73k`("
        "type = object_storage, object_storage_type = local, metadata_type = plain, "
        "path = '{data}/out/')"
    ),
    "a view of a file": "SELECT * FROM seen",
    "another language": "SELECT 1 SETTINGS dialect = 'prql', allow_experimental_prql_dialect = 1",
    "a filter that asks a url": (
        "SELECT 1 SETTINGS additional_result_filter = "
        "'1 IN (SELECT * FROM url(\\'file://{data}/secret\\', LineAsString))'"
    ),
    "files of a folder": "SELECT content FROM filesystem('{data}')",
    "a template of rows": (
        "SELECT 1 AS x FORMAT Template SETTINGS format_template_row = '{data}/secret', "
        "format_template_resultset_format = '${{data}}'"
    ),
    "a schema that is written": (
        "SELECT 1 AS x FORMAT Protobuf SETTINGS format_protobuf_use_autogenerated_schema = 1, "
        "output_format_schema = '{data}/out'"
    ),
    "a file that is moved": (
        "SELECT * FROM file('beside', LineAsString) SETTINGS "
        "rename_files_after_processing = '../out'"
    ),
    "a file of errors": (
        "SELECT * FROM format(CSV, 'a UInt8', 'x') SETTINGS input_format_allow_errors_num = 9, "
        "input_format_record_errors_file_path = '{data}/out'"
    ),
    "a schema by query": (
        "SELECT * FROM file('beside', LineAsString) FORMAT Protobuf SETTINGS "
        "format_schema_source = 'query', format_schema = 'SELECT 1'"
    ),
    "an empty escape": (
        "SELECT * FROM file('beside', LineAsString) AS a, "
        "`fi\\Nle`('{data}/secret', LineAsString) AS b"
    ),
    "an engine of escapes": (
        "CREATE TABLE e1 (a String) ENGINE = `Fi\\Nle`('RawBLOB', '{data}/secret')"
    ),
    "a disk of escapes": (
        "CREATE TABLE e2 (a Int8) ENGINE = MergeTree ORDER BY a SETTINGS disk = `di\\Nsk`("
        "type = object_storage, object_storage_type = local, metadata_type = plain, "
        "path = '{data}/out/')"
    ),
    "a setting of escapes": (
        "SELECT * FROM file('beside', LineAsString) AS a, format(Values, 'a String', "
        "'((SELECT * FROM file(\\'{data}/secret\\', LineAsString)))') AS b "
        "SETTINGS `input_format_values_interpret_ex\\Npressions` = 1"
    ),
    "a name in curly quotes": (
        "SELECT * FROM file('beside', LineAsString) AS a, "
        "“file”('{data}/secret', LineAsString) AS b"
    ),
    "an engine in curly quotes": (
        "CREATE TABLE e3 (a String) ENGINE = “File”('RawBLOB', '{data}/secret')"
    ),
    "a folder in curly quotes": (
        "CREATE TABLE e4 (a Int8) ENGINE = “EmbeddedRocksDB”(0, '{data}/out') PRIMARY KEY a"
    ),
    "a blank of no width": (
        "SELECT * FROM file('beside', LineAsString) AS a, "
        "file\u200b('{data}/secret', LineAsString) AS b"
    ),
    "a blank of another line": "SELECT * FROM file\u0085('{data}/secret', LineAsString)",
    "an engine and a blank": (
        "CREATE TABLE e5 (a String) ENGINE = File\u2060('RawBLOB', '{data}/out')"
    ),
    "an outfile and a blank": (
        "EXPLAIN SYNTAX SELECT 1 INTO\u200bOUTFILE '{data}/out' FORMAT RawBLOB"
    ),
    "an infile and a blank": (
        "INSERT INTO FUNCTION null('a String') FROM\u200cINFILE '{data}/secret' FORMAT CSV"
    ),
    "a role and a blank": "SET\u200dROLE files",
    "a definer": (
        "CREATE VIEW e6 (a String) DEFINER = CURRENT_USER SQL SECURITY DEFINER AS "
        "SELECT * FROM format(Values, 'a String', '(1)')"
    ),
    "a view that refreshes": (
        "CREATE MATERIALIZED VIEW e7 REFRESH EVERY 1 SECOND ENGINE = Log AS "
        "SELECT enabledRoles() AS a"
    ),
    "a definer by a setting": "SELECT 1 SETTINGS default_normal_view_sql_security = 'DEFINER'",
    "iceberg inside": "SELECT * FROM icebergLocal('{data}/user_files/ic')",
    "an engine of iceberg": "CREATE TABLE e8 ENGINE = IcebergLocal('{data}/user_files/ic')",
    "a path by partition": (
        "INSERT INTO FUNCTION file('o{{_partition_id}}', RawBLOB, 'x String') "
        "PARTITION BY '/../../out' SELECT 'evil'"
    ),
    "delta in the data": "SELECT * FROM deltaLakeLocal('{data}/store')",
}


@pytest.mark.parametrize("name", WITHIN)
@pytest.mark.parametrize("session", [{}, {"session_id": "within"}], ids=["alone", "session"])
def test_a_text_within_a_text_does_not_read_the_data_s_own_files(
    http_client, server, name, session
):
    data = server[1] / "data"
    (data / "secret").write_text(SECRET)
    (data / "user_files" / "beside").write_text("1")
    (data / "user_files" / "values").write_text(
        f"((SELECT * FROM file('{data}/secret', LineAsString)))"
    )
    http_client.post(
        "/", content="CREATE OR REPLACE VIEW seen AS SELECT * FROM file('beside', One)"
    )
    text = WITHIN[name].format(data=data)
    answer = http_client.post("/", content=text.encode(), params=session)
    assert answer.status_code >= 400, answer.text
    assert SECRET not in answer.text
    assert answer.headers["X-ClickHouse-Exception-Code"] != "206", "an alias is missing"
    assert not (data / "out").exists()
    assert (data / "secret").read_text() == SECRET
    # The session's next statement does not inherit the rights of this one.
    text = "SELECT * FROM format(Values, 'a String', '((SELECT * FROM file(\\'beside\\', One)))')"
    answer = http_client.post("/", content=text, params=session)
    assert "READ ON FILE" in answer.text
    assert http_client.post("/", content="SELECT enabledRoles()", params=session).text == "[]\n"


@pytest.mark.parametrize(
    "structure",
    [
        "a String) ENGINE = File(RawBLOB, '{data}/secret'",
        "a String) PARALLEL WITH SET ROLE files PARALLEL WITH CREATE TEMPORARY TABLE b (a String",
        "a String) ENGINE = Memory; SELECT (1",
        "a String) ENGINE = Memory -- ",
        "a String /* ",
        "a String\u200b",
        "a String DEFAULT 'x",
    ],
)
def test_an_external_table_is_a_list_of_columns(http_client, server, structure):
    data = server[1] / "data"
    (data / "secret").write_text(SECRET)
    params = {"query": "SELECT * FROM ext", "ext_structure": structure.format(data=data)}
    answer = http_client.post("/", params=params, files={"ext": b"x\n"})
    assert answer.headers["X-ClickHouse-Exception-Code"] == "36", answer.text
    assert (data / "secret").read_text() == SECRET


def test_columns_may_have_the_names_of_clauses(http_client):
    text = (
        "SELECT 1 AS security, 2 AS definer, 3 AS refresh, 4 AS `fi\\x6ce`, "
        "'ENGINE = “File”' AS sql"
    )
    assert http_client.post("/", content=text.encode()).text == "1\t2\t3\t4\tENGINE = “File”\n"


@pytest.mark.parametrize(
    "name", ["../secret", "{data}/secret", "../secr*", "/proc/self/cwd/../secret"]
)
def test_a_table_s_name_is_no_file(http_client, server, name):
    data = server[1] / "data"
    (data / "secret").write_text(SECRET)
    path = name.format(data=data)
    statements = {
        "SELECT * FROM {p:Identifier}": {"param_p": path},
        "INSERT INTO {p:Identifier} SELECT 'x'": {"param_p": path},
        f"SELECT * FROM `{path}`": {},
        f"INSERT INTO `{path}` SELECT 'x'": {},
        f"SELECT * FROM loop('default', '{path}')": {},
    }
    for statement, params in statements.items():
        answer = http_client.post("/", content=statement, params=params)
        assert answer.headers["X-ClickHouse-Exception-Code"] == "60", answer.text
    assert (data / "secret").read_text() == SECRET


def test_values_may_look_like_paths_with_choices(http_client):
    for value in ("/*", "/api/{id}", "../page?x=1", '{"a": [1, .5]}', "a, .b", "//x/y", "/tmp/*"):
        params = {"param_v": value}
        answer = http_client.post("/", content="SELECT {v:String} FORMAT RawBLOB", params=params)
        assert answer.text == value
        text = f"SELECT '{value}' AS url FORMAT RawBLOB"
        assert http_client.post("/", content=text).text == value


@pytest.mark.skipif(not landlock.get_abi_version(), reason="the kernel offers no Landlock")
def test_the_engine_may_read_its_threads_statistics(http_client):
    """Otherwise every statement raises and drops several errors, a third of its work."""
    assert http_client.post("/", content="SELECT 1").text == "1\n"
    errors = "SELECT value FROM system.errors WHERE name = 'CANNOT_OPEN_FILE'"
    before = http_client.post("/", content=errors).text
    assert http_client.post("/", content="SELECT sum(number) FROM numbers(9)").text == "36\n"
    assert http_client.post("/", content=errors).text == before


@pytest.mark.skipif(not landlock.get_abi_version(), reason="the kernel offers no Landlock")
def test_what_is_named_is_reached_and_shown_and_no_other_variable(tmp_path, monkeypatch, web):
    monkeypatch.setenv("EXPORTED_BY_A_SHELL", SECRET)
    monkeypatch.setenv("FOUND_BY", "this")
    address, paths = web
    paths.clear()
    options = {"remote_hosts": [address], "shown_variables": ["FOUND_BY", "NOT_SET"]}
    account = Account(user="ann", password="a password")
    with launch(tmp_path / "data", account=account, **options) as server:
        process = Path("/proc", str(server.process.pid))
        files = [process / "environ", *process.glob("task/*/environ")]
        assert len(files) > 2
        assert {file.read_bytes().strip(b"\0") for file in files} == {b"FOUND_BY=this"}
        text = f"SELECT * FROM url('http://{address}/x', 'LineAsString')"
        answer = httpx.post(server.url, content=text, timeout=60, auth=("ann", "a password"))
        assert (answer.text, set(paths)) == ("inside\n", {"/x"})
    paths.clear()


@pytest.mark.skipif(not landlock.get_abi_version(), reason="the kernel offers no Landlock")
def test_files_inside_are_reached(http_client, server):
    inserted = "INSERT INTO FUNCTION file('in.csv', 'CSV', 'a Int8') SELECT 7"
    assert http_client.post("/", content=inserted).text == ""
    user_files, more = server[1] / "data" / "user_files", server[1] / "more"
    assert (user_files / "in.csv").read_text() == "7\n"
    (more / "other.csv").write_text("8\n")
    for path in ("in.csv", "./in.csv", user_files / "*.csv"):
        assert http_client.post("/", content=f"SELECT * FROM file('{path}')").text == "7\n"
    assert http_client.post("/", content=f"SELECT * FROM file('{more}/other.csv')").text == "8\n"
    inserted = "INSERT INTO FUNCTION null('a Int8') SELECT * FROM input('a Int8') FORMAT CSV 1"
    assert http_client.post("/", content=inserted).status_code == 200
    scalar = http_client.post("/", content="SELECT file('in.csv')")
    assert scalar.headers["X-ClickHouse-Exception-Code"] == "395"
    assert "file()" in scalar.text
    denied = http_client.post("/", content="SELECT * FROM file('/etc/passwd')")
    assert denied.headers["X-ClickHouse-Exception-Code"] == "291"
    assert str(user_files) in denied.text


def test_tables_and_columns_may_have_the_names_of_functions(http_client):
    for statement in (
        "CREATE TABLE default.url (url String, file String) ENGINE = Log",
        "INSERT INTO default.url (url, file) SELECT 'http://x/', '../status.txt'",
        "CREATE TABLE file (`/a/*` String, `/*` String) ENGINE = File('CSV')",
        "INSERT INTO file (`/a/*`, `/*`) SELECT url, file FROM url",
    ):
        answer = http_client.post("/", content=statement)
        assert answer.status_code == 200, answer.text
    for table in ("file", "default.url"):
        http_client.post("/", content=f"DROP TABLE {table}").raise_for_status()
