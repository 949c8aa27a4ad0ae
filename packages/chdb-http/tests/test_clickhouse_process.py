"""The embedded server as a process: start, crash, end, memory, accounts."""

from __future__ import annotations

import concurrent.futures
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest

from chdb_http import Account, StartError, launch

# Each test starts and ends servers of its own, which takes seconds.
pytestmark = pytest.mark.slow

TOO_MANY = "TOO_MANY_SIMULTANEOUS_QUERIES"
SLOW = "SELECT sum(sleepEachRow(1)) FROM numbers(60) SETTINGS max_block_size = 1"
ACCOUNT = Account(user="ann", password="s3cret: ü")
COMMAND = [sys.executable, "-m", "chdb_http"]
MEGABYTE = 1 << 20


def ask(server, text, **options):
    response = httpx.post(server.url + "/", content=text, timeout=60, **options)
    assert response.status_code == 200, response.text
    return response.text


def wait_for(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline


def read_error(path, *arguments):
    """The error of a server that does not start with these arguments."""
    done = subprocess.run(
        [*COMMAND, "--path", str(path), "--port", "0", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    return line


def test_state_survives_a_restart(tmp_path):
    with launch(tmp_path / "a b") as server:
        ask(server, "CREATE DATABASE d")
        ask(server, "CREATE TABLE d.t (a UInt8) ENGINE = MergeTree ORDER BY a")
        ask(server, "INSERT INTO d.t VALUES (7)")
        assert server.stop() == 0
    with launch(tmp_path / "a b") as server:
        assert ask(server, "SELECT a FROM d.t") == "7\n"


def test_mutations_may_use_the_whole_pool_unless_the_configuration_sets_another_ratio(tmp_path):
    setting = "background_merges_mutations_concurrency_ratio"
    query = f"SELECT value FROM system.server_settings WHERE name = '{setting}'"
    with launch(tmp_path / "own") as server:
        assert ask(server, query) == "16\n"
    config = tmp_path / "config.xml"
    config.write_text(f"<clickhouse><{setting}>3</{setting}></clickhouse>")
    with launch(tmp_path / "named", config_file=config) as server:
        assert ask(server, query) == "3\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_while_statements_run(tmp_path, number):
    with launch(tmp_path) as server, concurrent.futures.ThreadPoolExecutor() as pool:
        answer = pool.submit(httpx.post, server.url + "/", content=SLOW, timeout=60)
        stream = pool.submit(read_slowly, server)
        running = "SELECT count() FROM system.processes"
        wait_for(lambda: int(ask(server, running)) >= 3)
        started = time.monotonic()
        server.process.send_signal(number)
        assert server.process.wait(15) == 0
        assert time.monotonic() - started < 10
        assert isinstance(answer.exception() or answer.result(), httpx.HTTPError | httpx.Response)
        assert isinstance(stream.exception(), httpx.HTTPError)


def read_slowly(server):
    with httpx.stream(
        "POST", server.url + "/", content="SELECT number FROM system.numbers", timeout=60
    ) as response:
        for _ in response.iter_raw(MEGABYTE):
            threading.Event().wait(0.05)


def test_a_second_server_on_the_same_data_does_not_start(tmp_path):
    with launch(tmp_path):
        with pytest.raises(StartError) as caught:
            launch(tmp_path, log=tmp_path.parent / "second.log")
        for text in (read_error(tmp_path), str(caught.value)):
            assert str(tmp_path) in text
            assert "--path" in text


def test_a_server_does_not_start_on_a_port_in_use(tmp_path):
    with launch(tmp_path / "one") as server:
        with pytest.raises(StartError) as caught:
            launch(tmp_path / "two", port=server.port, log=tmp_path / "two.log")
        assert f"{server.host}:{server.port}" in str(caught.value)
        assert "--port" in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        (["--user", "ann"], ["ann", "--password-env"]),
        (["--password-env", "EMPTY_PASSWORD"], ["--password-env", "EMPTY_PASSWORD"]),
        (["--config-file", "/no/such.xml"], ["/no/such.xml", "--config-file"]),
    ],
)
def test_a_server_does_not_start_with_invalid_arguments(tmp_path, arguments, values):
    error = read_error(tmp_path, *arguments)
    assert all(value in error for value in values)


def test_accounts(tmp_path):
    basic = httpx.BasicAuth(ACCOUNT.user.encode(), ACCOUNT.password.encode())
    right = {"user": ACCOUNT.user, "password": ACCOUNT.password}
    headers = {"X-ClickHouse-User": b"ann", "X-ClickHouse-Key": ACCOUNT.password.encode()}
    with launch(tmp_path, account=ACCOUNT) as server, httpx.Client(base_url=server.url) as http:
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


def post_until_accepted(url, query):
    """Post until the server accepts the query; its answer."""
    while True:
        response = httpx.post(url, content=query, timeout=60)
        if TOO_MANY not in response.text:
            return response


def test_the_number_of_concurrent_queries_is_bounded(tmp_path):
    with (
        launch(tmp_path, max_connections=2) as server,
        concurrent.futures.ThreadPoolExecutor() as pool,
    ):
        answers = [pool.submit(post_until_accepted, server.url + "/", SLOW) for _ in range(2)]
        wait_for(lambda: TOO_MANY in httpx.post(server.url + "/", content="SELECT 1").text)
        refused = httpx.post(server.url + "/", content="SELECT 1")
        assert (refused.status_code, TOO_MANY in refused.text) == (500, True)
        assert httpx.get(server.url + "/ping").text == "Ok.\n"
        ask(server, "KILL QUERY WHERE 1")
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
            wait_for(lambda: len(acknowledged) >= 100, 30)
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


def test_a_result_that_is_read_slowly_stays_out_of_memory(tmp_path):
    query = "SELECT number, repeat('x', 100) FROM numbers(10000000) FORMAT TSV"
    with launch(tmp_path) as server:
        ask(server, "SELECT number, repeat('x', 100) FROM numbers(300000) FORMAT Null")
        before, most, received = get_rss(server), 0, 0
        with httpx.stream("POST", server.url + "/", content=query, timeout=60) as response:
            for chunk in response.iter_raw(MEGABYTE):
                received += len(chunk)
                if received % (16 * MEGABYTE) < MEGABYTE:
                    threading.Event().wait(0.02)
                    most = max(most, get_rss(server))
                if received > 200 * MEGABYTE:
                    break
        assert most - before < 100 * MEGABYTE


def test_an_insert_streams_through(tmp_path):
    block = b"".join(b"%d\t%s\n" % (i, b"x" * 100) for i in range(10_000))

    def rows():
        yield b"INSERT INTO t FORMAT TSV\n"
        for _ in range(400):
            yield block

    # By default the engine gathers a million rows a block.
    small = {"min_insert_block_size_rows": "10000", "max_insert_block_size": "10000"}
    with launch(tmp_path) as server:
        ask(server, "CREATE TABLE t (a UInt64, s String) ENGINE = Null")
        head = b"INSERT INTO t FORMAT TSV\n"
        # It allocates its working memory, which takes more than a few blocks on a busy machine.
        ask(server, iter([head, *[block] * 100]), params=small)
        before, most = get_rss(server), 0
        stop = threading.Event()

        def watch():
            nonlocal most
            while not stop.wait(0.05):
                most = max(most, get_rss(server))

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            ask(server, rows(), params=small)
        finally:
            stop.set()
            watcher.join()
        assert most - before < 100 * MEGABYTE, "400 MB went through"


def test_the_password_is_not_on_the_command_line(tmp_path):
    with launch(tmp_path, account=ACCOUNT) as server:
        arguments = server.process.args
        assert isinstance(arguments, list)
        assert not any(ACCOUNT.password in str(argument) for argument in arguments)
        assert ACCOUNT.password not in repr(ACCOUNT)
    assert os.environ.get("CHDB_HTTP_PASSWORD") is None
