"""The stack as its user has it: up, status, the quickstart's walk as it stands, down, up again."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import urllib.request
from pathlib import Path

import httpx
import pytest
from places import DOCS
from stackfixture import (
    COMPILED,
    Stack,
    assert_in_files_of_their_own,
    assert_nothing_left,
    clean_environment,
    commands_of,
    copied_project,
    free_ports,
    iscp,
    processes_of,
    query,
    running_stack,
)
from walk import Reader, blocks_of, section

from iscp_dagster.local.services import credentials
from iscp_dagster.local.services.settings import CLICKHOUSE, DAGSTER, PARTS
from iscp_dagster.local.services.state import running_stack as current

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
NOT_UP = 3
EXTRA = {"ISCP_SCAN_SECONDS": "1", "no_proxy": "127.0.0.1", "NO_PROXY": "127.0.0.1"}


def walk():
    return blocks_of(section(DOCS / "quickstart.md", "Your own table"))


def reader(project, lake, stack):
    """In a copy of the project, with this machine's addresses."""
    python = shlex.quote(sys.executable)
    return Reader(
        folder=project,
        places={
            "./iscp": f"{python} -m iscp_dagster.cli.main",
            ".venv/bin/python": python,
            "http://127.0.0.1:8123": stack.service(CLICKHOUSE).address,
            "http://127.0.0.1:3000": stack.dagster_url,
            "/tmp/lake": str(lake),
        },
        environment=environment(project),
        logs=lambda: stack.home.joinpath("logs", "dagster.log").read_text(errors="replace")[-4000:],
    )


def environment(folder):
    """A shell in the copy: its code is imported, and no proxy stands before this machine."""
    here = COMPILED | EXTRA | {"PYTHONPATH": str(folder)}
    return clean_environment(folder / ".iscp", os.environ) | here


@pytest.fixture
def project(tmp_path):
    """A copy of the project, without what was declared beside it."""
    return copied_project(tmp_path / "a project")


def command(project: Path, *arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
    return iscp(environment(project) | extra, project, *arguments)


def shell(project: Path) -> dict[str, str]:
    """The variables of `iscp env`."""
    lines = command(project, "env").stdout.splitlines()
    return dict(shlex.split(line)[1].split("=", 1) for line in lines)


def assert_kept_secret(project: Path, facts: object) -> None:
    """The secrets are in files of their owner's, in environments, and nowhere else."""
    shown = json.loads(command(project, "status", "--show-password", "--json").stdout)
    secrets = {shown["clickhouse_password"], shown["spark_token"]}
    assert not any(secret in json.dumps(facts) for secret in secrets)
    assert shown["clickhouse_password"] in shell(project)["CLICKHOUSE_URL"]
    assert shell(project)["SPARK_REMOTE"].endswith(f"/;token={shown['spark_token']}")
    for told in commands_of(processes_of(project / ".iscp")):
        assert not any(secret in told for secret in secrets), told
    assert_in_files_of_their_own(project, secrets)


def assert_up(project: Path, ports: dict[str, str]) -> None:
    status = command(project, "status", "--json")
    assert status.returncode == 0
    facts = json.loads(status.stdout)
    services = {service["name"]: service for service in facts["services"]}
    assert set(services) == {part for parts in PARTS.values() for part in parts}
    assert {service["condition"] for service in services.values()} == {"ready"}
    assert all(service["note"] == "" for service in services.values()), services
    assert all(Path(service["log"]).is_file() for service in services.values())
    assert services[CLICKHOUSE]["address"].endswith(ports["ISCP_CLICKHOUSE_PORT"])
    with urllib.request.urlopen(services[DAGSTER]["address"] + "/server_info") as answer:
        assert b"dagster_version" in answer.read()
    assert httpx.post(services[CLICKHOUSE]["address"], content="SELECT 1").status_code == 401
    assert_kept_secret(project, facts)
    again = command(project, "up")
    assert again.returncode == 0
    assert "up already" in again.stdout
    for service in services.values():
        assert service["address"] in again.stdout


def test_the_walk_declares_asks_changes_and_verifies():
    blocks = walk()
    assert "assets/tickets.py" in [block.title for block in blocks]
    declaration = next(block.text for block in blocks if block.title == "assets/tickets.py")
    assert len(declaration.strip().splitlines()) <= 10
    outputs = [block for block in blocks if block.language == "text"]
    assert len(outputs) >= 7
    assert blocks[-1].text.strip() == "./iscp down"


def test_up_status_the_walk_as_written_down_and_up_again(project, tmp_path):
    home, ports = project / ".iscp", free_ports()
    assert command(project, "status").returncode == NOT_UP
    assert json.loads(command(project, "status", "--json").stdout)["condition"] == "down"
    up = command(project, "up", "--detach", **ports)
    assert up.returncode == 0, up.stdout + up.stderr
    try:
        assert_up(project, ports)
        url = shell(project)["CLICKHOUSE_URL"]
        query(url, "CREATE TABLE kept (n Int64) ENGINE = MergeTree ORDER BY n")
        query(url, "INSERT INTO kept VALUES (42)")
        stack = Stack(home=home, supervisor=current(home).supervisor)
        reader(project, tmp_path / "lake", stack).do(walk())
    finally:
        # Of a walk that did not come to its end, which is the same.
        command(project, "down")
    assert_nothing_left(home)
    held = credentials.read(home)
    assert_in_files_of_their_own(project, {held.password, held.spark_token})
    assert command(project, "status").returncode == NOT_UP
    assert "not up" in command(project, "down").stdout
    with running_stack(home, (CLICKHOUSE,)) as second:
        assert query(second.clickhouse_url, "SELECT n FROM kept") == "42"
