"""The embedded stack from outside: up, status, down, and ends and losses of its processes."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from iscp_dagster.local.services.lock import HomeLocks
from iscp_dagster.local.services.settings import CLICKHOUSE, SERVICES, SPARK
from iscp_dagster.local.stack.environment import add_stack_variables
from support.errors import assert_names
from support.services.stack import (
    GONE_SECONDS,
    PARTS,
    assert_nothing_left,
    assert_runs,
    clean_environment,
    free_ports,
    iscp,
    query,
    running_stack,
    wait_for,
)

pytestmark = pytest.mark.timeout(900)


def command(home: Path, *arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
    return iscp(clean_environment(home) | extra, home.parent, *arguments)


def test_no_process_outlives_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    """For SIGINT see test_scheduling, and for `iscp down`, which sends SIGTERM, test_quickstart.

    Their stacks have Spark, too, which is left out here since its start takes longest.
    """
    home = tmp_path / "a home"
    services = tuple(name for name in SERVICES if name != SPARK)
    with running_stack(home, services, extra={"SPARK_REMOTE": "sc://127.0.0.1:1"}) as started:
        assert_runs(home, {*PARTS, "chdb_http"} - {"SparkConnectServer"})
        os.kill(started.supervisor, signal.SIGKILL)
        assert_nothing_left(home)
    log = (home / "up.log").read_text()
    assert "Traceback" not in log, log


def test_a_stack_started_by_a_script_in_the_background_still_hears_signals(tmp_path: Path) -> None:
    home = tmp_path / "home"
    code = f'"{sys.executable}" -m iscp_dagster.cli.main up --service clickhouse & echo $!; wait'
    with subprocess.Popen(
        ["sh", "-c", code],
        env=clean_environment(home) | free_ports(),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    ) as shell:
        supervisor = int(shell.stdout.readline())
        said = iter(shell.stdout.readline, "")
        assert any("Ctrl-C" in line for line in said)
        os.kill(supervisor, signal.SIGINT)
        shell.communicate(timeout=60)
    assert_nothing_left(home)


def test_a_port_that_was_asked_for_and_is_taken_is_one_line(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        done = command(tmp_path / "home", "up", "--dagster-port", port)
    assert done.returncode == 1
    assert_names(done.stderr, "iscp", port, "dagster")
    assert len(done.stderr.splitlines()) == 1


def test_the_usual_port_when_taken_gives_way_to_a_free_one(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):  # another program has it already
            held.enter_context(socket.create_server(("127.0.0.1", 8123)))
        up = command(home, "up", "--detach", "--service", "clickhouse")
    try:
        assert up.returncode == 0, up.stderr
        assert_names(up.stdout, "8123", "clickhouse")
        assert (
            query(add_stack_variables({"ISCP_HOME": str(home)})["CLICKHOUSE_URL"], "SELECT 1")
            == "1"
        )
    finally:
        command(home, "down")


def test_a_killed_supervisor_does_not_keep_the_next_from_coming_up(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with running_stack(home, (CLICKHOUSE,)) as first:
        query(first.clickhouse_url, "CREATE TABLE t (n Int64) ENGINE = MergeTree ORDER BY n")
        os.kill(first.supervisor, signal.SIGKILL)
        wait_for(lambda: not HomeLocks(home).is_supervised(), GONE_SECONDS)
        with running_stack(home, (CLICKHOUSE,)) as second:
            assert query(second.clickhouse_url, "EXISTS TABLE t") == "1"


def test_of_two_that_bring_a_stack_up_at_once_one_says_that_it_is_up_already(
    tmp_path: Path,
) -> None:
    home = tmp_path / "home"
    start = partial(command, home, "up", "--detach", "--service", "clickhouse", **free_ports())
    with ThreadPoolExecutor() as pool:
        both = [each.result() for each in [pool.submit(start), pool.submit(start)]]
    try:
        assert [each.returncode for each in both] == [0, 0], both
        assert sorted("already up" in each.stdout for each in both) == [False, True], both
        assert not any("pid=" in each.stdout + each.stderr for each in both), both
    finally:
        command(home, "down")


def test_a_service_that_cannot_start_is_said_with_the_end_of_its_log(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "clickhouse").parent.mkdir(parents=True)
    (home / "clickhouse").write_text("in the way")
    done = command(home, "up", "--service", "clickhouse", "--detach")
    assert done.returncode == 1
    assert_names(done.stderr, "iscp", "clickhouse", "status 1")
    assert_nothing_left(home)
