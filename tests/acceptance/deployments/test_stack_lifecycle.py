"""The embedded stack from outside: up, status, down, and ends and losses of its processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import httpx
import pytest

from iscp_dagster.local.services.settings import CLICKHOUSE, GRAPHQL, INVOCATIONS, SERVICES, SPARK
from iscp_dagster.local.services.state import Condition, ServiceState
from iscp_dagster.local.services.state import find_running_stack as state_of
from iscp_dagster.local.stack.environment import get_shell_variables
from support.clients.cli import CommandLine
from support.errors import assert_names
from support.services.stack import (
    PARTS,
    assert_nothing_left,
    assert_runs,
    clean_environment,
    commands_of,
    free_ports,
    iscp,
    processes_of,
    query,
    running_stack,
    wait_for,
)

pytestmark = pytest.mark.timeout(900)

LIGHT = (CLICKHOUSE, GRAPHQL, INVOCATIONS)


def command(home: Path, *arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
    return iscp(clean_environment(home) | extra, home.parent, *arguments)


@pytest.fixture(scope="module")
def ups(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Bring a stack up by two commands at once, with the usual port of ClickHouse taken.

    Return their outputs; the last test ends the stack.
    """
    home = tmp_path_factory.mktemp("stack") / "a home"
    ports = free_ports()
    del ports["ISCP_CLICKHOUSE_PORT"]
    options = [part for name in LIGHT for part in ("--service", name)]
    start = partial(command, home, "up", "--detach", *options, **ports)
    with ExitStack() as held:
        with suppress(OSError):  # another program has it already
            held.enter_context(socket.create_server(("127.0.0.1", 8123)))
        with ThreadPoolExecutor() as pool:
            both = [each.result() for each in [pool.submit(start), pool.submit(start)]]
    try:
        assert [each.returncode for each in both] == [0, 0], both
        yield [str(home), *(each.stdout + each.stderr for each in both)]
    finally:
        command(home, "down")


@pytest.fixture
def home(ups: list[str], monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the stack's home, where this process's commands look for it, too."""
    for name, value in clean_environment(Path(ups[0])).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("COLUMNS", "80")
    return Path(ups[0])


@pytest.fixture
def command_line(capsys, monkeypatch) -> CommandLine:
    return CommandLine(capsys, monkeypatch)


def test_of_two_ups_at_once_one_says_that_it_is_up_already_and_one_that_a_port_was_taken(
    ups: list[str],
) -> None:
    outputs = sorted(ups[1:], key=lambda text: "already up" in text)
    assert ["already up" in text for text in outputs] == [False, True], outputs
    assert_names(outputs[0], "8123", "clickhouse")
    assert not any("pid=" in text for text in outputs), outputs


def test_secrets_are_only_in_environments_and_in_files_for_their_owner(home, command_line) -> None:
    shown = command_line.read_json("status", "--show-password")
    facts = command_line.read_json("status")
    services = {service["name"]: service for service in facts["services"]}
    assert services.keys() == set(LIGHT)
    for service in services.values():
        assert (service["condition"], service["note"]) == ("ready", ""), service
        assert Path(service["log"]).is_file()
    address = services[CLICKHOUSE]["address"]
    assert httpx.post(address, content="SELECT 1", trust_env=False).status_code == 401
    secrets = {shown["clickhouse_password"], shown["webhook_secret"]}
    assert not any(secret in json.dumps(facts) for secret in secrets)
    assert shown["clickhouse_password"] in shell_variable(home, "CLICKHOUSE_URL")
    for text in commands_of(processes_of(home)):
        assert not any(secret in text for secret in secrets), text
    assert min(map(len, secrets)) > 20
    names = {"clickhouse.password", "netrc", "spark.token", "webhook.secret"}
    for file in (path for path in home.rglob("*") if path.is_file()):
        if any(secret.encode() in file.read_bytes() for secret in secrets):
            assert file.name in names, file
            assert file.stat().st_mode & 0o077 == 0


def shell_variable(home: Path, name: str) -> str:
    """Return what `iscp env` sets the variable to."""
    return get_shell_variables({"ISCP_HOME": str(home)})[name]


def post(url: str, content: object, **headers: str) -> tuple[int, str]:
    answer = httpx.post(url, json=content, headers=headers, trust_env=False)
    return answer.status_code, answer.text


def kill_and_await(home: Path, name: str) -> None:
    """Kill a service, and wait until the stack has it up again."""

    def service() -> ServiceState:
        return state_of(home).get_service(name)

    first = service().pid
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: service().pid not in {None, first}, 60)
    wait_for(lambda: service().condition is Condition.READY, 60)
    assert service().restarts == 1


def test_the_stack_keeps_the_graphql_server_up(home: Path) -> None:
    url = shell_variable(home, "ISCP_GRAPHQL_URL")
    assert url == state_of(home).get_service(GRAPHQL).address
    tables = {"query": "{ _tables }"}
    assert post(url, tables) == (200, '{"data":{"_tables":[]}}')
    assert post(url, tables, Origin="https://elsewhere.example")[0] == 403
    kill_and_await(home, GRAPHQL)
    assert post(url, tables)[0] == 200


def test_the_stack_keeps_the_runtime_of_invocations_up(home: Path, command_line) -> None:
    """It serves the stack's own services, whose handlers it invokes after a restart, too."""
    url = shell_variable(home, "ISCP_INVOCATIONS_URL")
    assert url == state_of(home).get_service(INVOCATIONS).address
    nobody = {"job": "shop.nothing/none", "tenant": "a"}
    for _ in range(2):
        # The own services are registered once the server answers.
        wait_for(lambda: "status" in post(f"{url}/Iscp/nothing", nobody)[1], 60)
        status, answer = post(f"{url}/Iscp/status", nobody)
        assert (status, json.loads(answer)["code"]) == (404, 404), answer
        assert_names(json.loads(answer)["message"], "'shop.nothing'")
        if state_of(home).get_service(INVOCATIONS).restarts == 0:
            kill_and_await(home, INVOCATIONS)
    assert post(f"{url}/Iscp/status", nobody, Origin="https://elsewhere.example")[0] == 403
    deployed = command_line.read_json("invocations", "deploy")
    assert [each["id"] for each in deployed] == ["dp_iscp"]
    listed = command_line.read_json("invocations", "list")
    assert [(each["target"], each["status"]) for each in listed] == [
        ("Iscp/status", "completed")
    ] * 2


def test_no_process_outlives_a_killed_supervisor_and_the_next_stack_hears_signals(
    home: Path,
) -> None:
    """The next one is started by a script in the background, where Python ignores SIGINT."""
    query(
        shell_variable(home, "CLICKHOUSE_URL"),
        "CREATE TABLE t (n Int64) ENGINE = MergeTree ORDER BY n",
    )
    assert_runs(home, {"chdb_http", "serve --patient", "invocations serve --follow"})
    os.kill(state_of(home).supervisor, signal.SIGKILL)
    assert_nothing_left(home)
    for log in (home / "logs").glob("*.log"):
        assert "Traceback" not in log.read_text(), log
    code = f'"{sys.executable}" -m iscp_dagster.cli.main up --service clickhouse & echo $!; wait'
    with subprocess.Popen(
        ["sh", "-c", code],
        env=clean_environment(home) | free_ports(),
        cwd=home,
        stdout=subprocess.PIPE,
        text=True,
    ) as shell:
        supervisor = int(shell.stdout.readline())
        said = iter(shell.stdout.readline, "")
        assert any("Ctrl-C" in line for line in said)
        assert query(shell_variable(home, "CLICKHOUSE_URL"), "EXISTS TABLE t") == "1"
        os.kill(supervisor, signal.SIGINT)
        shell.communicate(timeout=60)
    assert_nothing_left(home)


def test_a_service_that_cannot_start_is_said_and_one_that_can_runs_until_it_is_brought_down(
    tmp_path: Path,
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    up = ("up", "--detach", "--service", CLICKHOUSE)
    (home / "clickhouse").write_text("in the way")
    done = command(home, *up)
    assert done.returncode == 1
    assert_names(done.stderr, "iscp", "clickhouse", "status 1")
    assert_nothing_left(home)
    (home / "clickhouse").unlink()
    done = command(home, *up, **free_ports())
    assert done.returncode == 0, done.stderr
    assert query(shell_variable(home, "CLICKHOUSE_URL"), "SELECT 1") == "1"
    assert command(home, "down").returncode == 0
    assert_nothing_left(home)
    assert "not up" in command(home, "down").stdout


@pytest.mark.soak
def test_no_process_of_dagster_outlives_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    home = tmp_path / "a home"
    services = tuple(name for name in SERVICES if name != SPARK)
    with running_stack(home, services, extra={"SPARK_REMOTE": "sc://127.0.0.1:1"}) as started:
        assert_runs(home, {*PARTS, "chdb_http"} - {"SparkConnectServer"})
        os.kill(started.supervisor, signal.SIGKILL)
        assert_nothing_left(home)
    log = (home / "up.log").read_text()
    assert "Traceback" not in log, log
