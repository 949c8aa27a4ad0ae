"""The embedded server as a process: start, crash, end, memory, accounts."""

from __future__ import annotations

import concurrent.futures
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import httpx
import pytest

from chdb_http import Account, StartError, launch
from chdb_http.__main__ import main

# Each test starts and ends servers of its own, which takes seconds.
pytestmark = pytest.mark.slow

TOO_MANY = "TOO_MANY_SIMULTANEOUS_QUERIES"
SLOW = "SELECT sum(sleepEachRow(1)) FROM numbers(60) SETTINGS max_block_size = 1"
ACCOUNT = Account(user="ann", password="s3cret: ü")
MEGABYTE = 1 << 20


def ask(server, text, **options):
    response = httpx.post(server.url + "/", content=text, timeout=60, **options)
    assert response.status_code == 200, response.text
    return response.text


def wait_for(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        # Without a pause the questions would be the load.
        threading.Event().wait(0.02)


def test_a_server_keeps_its_state_and_shares_neither_data_nor_port(tmp_path):
    ratio = "background_merges_mutations_concurrency_ratio"
    query = f"SELECT value FROM system.server_settings WHERE name = '{ratio}'"
    log = tmp_path / "refused.log"
    with launch(tmp_path / "a b") as server:
        ask(server, "CREATE DATABASE d")
        ask(server, "CREATE TABLE d.t (a UInt8) ENGINE = MergeTree ORDER BY a")
        ask(server, "INSERT INTO d.t VALUES (7)")
        assert ask(server, query) == "16\n", "mutations may use the whole pool"
        for options, values in (
            ({"path": tmp_path / "a b"}, [str(tmp_path / "a b"), "--path"]),
            (
                {"path": tmp_path / "two", "port": server.port},
                [f"{server.host}:{server.port}", "--port"],
            ),
        ):
            with pytest.raises(StartError) as caught:
                launch(**options, log=log)
            assert all(value in str(caught.value) for value in values)
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(15) == server.stop() == 0
    config = tmp_path / "config.xml"
    config.write_text(f"<clickhouse><{ratio}>3</{ratio}></clickhouse>")
    with launch(tmp_path / "a b", config_file=config) as server:
        assert ask(server, "SELECT a FROM d.t") == "7\n"
        assert ask(server, query) == "3\n"


@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        (["--user", "ann"], ["ann", "--password-env"]),
        (["--password-env", "EMPTY_PASSWORD"], ["--password-env", "EMPTY_PASSWORD"]),
        (["--remote-host", "http://x/"], ["'http://x/'", "name:port"]),
    ],
)
def test_a_server_does_not_start_with_invalid_arguments(tmp_path, capsys, arguments, values):
    assert main(["--path", str(tmp_path), "--port", "0", *arguments]) == 1
    output = capsys.readouterr()
    (line,) = output.err.splitlines()
    assert output.out == ""
    assert all(value in line for value in values)


def test_a_server_does_not_start_without_its_configuration(tmp_path):
    with pytest.raises(StartError) as caught:
        launch(tmp_path, config_file=Path("/no/such.xml"), log=tmp_path / "refused.log")
    assert all(value in str(caught.value) for value in ("/no/such.xml", "--config-file"))


def read_slowly(server):
    with httpx.stream(
        "POST", server.url + "/", content="SELECT number FROM system.numbers", timeout=60
    ) as response:
        for _ in response.iter_raw(MEGABYTE):
            threading.Event().wait(0.05)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """Run a server with an account, for two statements at once."""
    folder = tmp_path_factory.mktemp("guarded")
    with launch(folder, account=ACCOUNT, max_connections=2) as server:
        yield server


def test_accounts(guarded):
    basic = httpx.BasicAuth(ACCOUNT.user.encode(), ACCOUNT.password.encode())
    right = {"user": ACCOUNT.user, "password": ACCOUNT.password}
    headers = {"X-ClickHouse-User": b"ann", "X-ClickHouse-Key": ACCOUNT.password.encode()}
    with httpx.Client(base_url=guarded.url) as http:
        assert http.get("/ping").text == "Ok.\n"
        assert http.post("/", content="SELECT 1", auth=basic).text == "1\n"
        assert http.post("/", content="SELECT 1", params=right).text == "1\n"
        assert http.post("/", content="SELECT 1", headers=headers).text == "1\n"
        for wrong in ({**right, "password": "x"}, {**right, "user": "bob"}, {"user": "ann"}):
            answer = http.post("/", content="SELECT 1", params=wrong)
            assert answer.status_code == 403
            assert answer.headers["X-ClickHouse-Exception-Code"] == "516"
            assert "AUTHENTICATION_FAILED" in answer.text
            assert ACCOUNT.password not in answer.text
        nobody = http.post("/", content="SELECT 1")
        assert nobody.status_code == 401
        assert nobody.headers["WWW-Authenticate"].startswith("Basic ")
        bad = http.post("/", content="SELECT 1", headers={"Authorization": "Basic ?"})
        assert bad.status_code == 403
    assert not any(ACCOUNT.password in str(argument) for argument in guarded.process.args)
    assert ACCOUNT.password not in repr(ACCOUNT)
    assert os.environ.get("CHDB_HTTP_PASSWORD") is None


def test_the_number_of_concurrent_queries_is_bounded(guarded):
    def post(query):
        right = {"user": ACCOUNT.user, "password": ACCOUNT.password}
        return httpx.post(guarded.url, content=query, params=right, timeout=60)

    def post_until_accepted(query):
        while TOO_MANY in (response := post(query)).text:
            threading.Event().wait(0.02)
        return response

    with concurrent.futures.ThreadPoolExecutor() as pool:
        answers = [pool.submit(post_until_accepted, SLOW) for _ in range(2)]
        wait_for(lambda: TOO_MANY in post("SELECT 1").text)
        refused = post("SELECT 1")
        assert (refused.status_code, TOO_MANY in refused.text) == (500, True)
        assert httpx.get(guarded.url + "/ping").text == "Ok.\n"
        assert post("KILL QUERY WHERE 1").status_code == 200
        assert {answer.result().status_code for answer in answers} == {500}


def test_acknowledged_inserts_survive_a_kill(tmp_path):
    """Four clients insert until SIGKILL; then every acknowledged batch is complete."""
    acknowledged: list[str] = []
    with launch(tmp_path) as server:
        ask(server, "CREATE TABLE t (batch String, a UInt64) ENGINE = MergeTree ORDER BY a")
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            clients = [
                pool.submit(insert_until_it_fails, server, n, acknowledged) for n in range(4)
            ]
            wait_for(lambda: len(acknowledged) >= 40, 30)
            server.kill()
            concurrent.futures.wait(clients)
    with launch(tmp_path) as server:
        rows = ask(server, "SELECT batch, count(), uniqExact(a) FROM t GROUP BY batch").splitlines()
    counts = {row.split("\t")[0]: row.split("\t")[1:] for row in rows}
    assert set(acknowledged) <= set(counts)
    assert all(count == ["1000", "1000"] for count in counts.values())


def insert_until_it_fails(server, client, acknowledged):
    with httpx.Client(base_url=server.url, timeout=30) as http:
        for batch in range(100_000):
            name = f"{client}-{batch}"
            rows = "".join(f"{name}\t{i}\n" for i in range(1000))
            try:
                done = http.post("/", content=f"INSERT INTO t FORMAT TSV\n{rows}")
            except httpx.HTTPError:
                return
            assert done.status_code == 200, done.text
            acknowledged.append(name)


def get_rss(server):
    status = Path(f"/proc/{server.process.pid}/status")
    if not status.exists():
        return (
            int(subprocess.check_output(["ps", "-o", "get_rss=", str(server.process.pid)])) * 1024
        )
    return int(status.read_text().split("VmRSS:")[1].split()[0]) * 1024


def test_streams_stay_out_of_memory_and_a_signal_ends_them(tmp_path):
    with launch(tmp_path) as server:
        check_slow_reading(server)
        check_long_insert(server)
        end_while_statements_run(server)


def check_slow_reading(server):
    query = "SELECT number, repeat('x', 100) FROM numbers(10000000) FORMAT TSV"
    ask(server, "SELECT number, repeat('x', 100) FROM numbers(300000) FORMAT Null")
    before, most, received = get_rss(server), 0, 0
    with httpx.stream("POST", server.url + "/", content=query, timeout=60) as response:
        for chunk in response.iter_raw(MEGABYTE):
            received += len(chunk)
            if received % (16 * MEGABYTE) < MEGABYTE:
                threading.Event().wait(0.02)
                most = max(most, get_rss(server))
            if received > 70 * MEGABYTE:
                break
    assert most - before < 100 * MEGABYTE


def check_long_insert(server):
    block = b"".join(b"%d\t%s\n" % (i, b"x" * 1_000) for i in range(1_000))
    head = b"INSERT INTO t FORMAT TSV\n"
    # By default the engine gathers a million rows a block.
    small = {"min_insert_block_size_rows": "1000", "max_insert_block_size": "1000"}
    ask(server, "CREATE TABLE t (a UInt64, s String) ENGINE = Null")
    # It allocates its working memory, which takes more than a few blocks on a busy machine.
    ask(server, iter([head, *[block] * 60]), params=small)
    before, most = get_rss(server), 0
    stop = threading.Event()

    def watch():
        nonlocal most
        while not stop.wait(0.05):
            most = max(most, get_rss(server))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        ask(server, iter([head, *[block] * 300]), params=small)
    finally:
        stop.set()
        watcher.join()
    assert most - before < 150 * MEGABYTE, "300 MB went through"


def end_while_statements_run(server):
    with concurrent.futures.ThreadPoolExecutor() as pool:
        answer = pool.submit(httpx.post, server.url + "/", content=SLOW, timeout=60)
        stream = pool.submit(read_slowly, server)
        running = "SELECT count() FROM system.processes"
        wait_for(lambda: int(ask(server, running)) >= 3)
        started = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(15) == 0
        assert time.monotonic() - started < 10
        assert isinstance(answer.exception() or answer.result(), httpx.HTTPError | httpx.Response)
        assert isinstance(stream.exception(), httpx.HTTPError)
