"""A newcomer's first hour, in a fresh clone with an empty HOME: the demo, then the quickstart.

What test_quickstart does in its own process, here all processes of a stack do, with webhooks. The
clone uses the Python that runs the tests. Its demo loads some of the distributions, with less than
a quarter of the rows.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys

import httpx
import pytest

from iscp_dagster.local.services.settings import DAGSTER, PARTS
from iscp_dagster.local.services.state import find_running_stack
from iscp_dagster.local.spark.server import JAVA_OPTIONS_VARIABLE
from iscp_dagster.local.stack.ports import find_free_port
from support.clients.document_commands import Reader, blocks_of, section
from support.paths import DOCS, ROOT
from support.services.stack import (
    QUICK,
    Stack,
    assert_nothing_left,
    clean_environment,
    free_ports,
    iscp,
)

pytestmark = [pytest.mark.soak, pytest.mark.timeout(2400)]
NOT_UP = 3
SMALL = ("clickhouse-connect", "jinja2", "pydantic", "rich", "typer")
LISTING = re.compile(r"^DISTRIBUTIONS = \([^)]+\)$", re.MULTILINE)


@pytest.fixture
def clone(tmp_path):
    """Copy the files that git tracks or would add."""
    folder = tmp_path / "a fresh clone"
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    found = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, found.stdout.split("\0")):
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    file = folder / "iscp_dagster" / "demo" / "load.py"
    file.write_text(LISTING.sub(f"DISTRIBUTIONS = {SMALL}", file.read_text()))
    return folder


@pytest.fixture
def environment(tmp_path, clone):
    """Return the environment of a shell in which nothing is fetched or set; end its stack."""
    environ = clean_environment(tmp_path / "unused") | free_ports()
    for name in ("ISCP_HOME", "ISCP_JARS", "VIRTUAL_ENV", "XDG_CACHE_HOME"):
        environ.pop(name, None)
    environ |= {
        "ISCP_DEMO_PORT": str(find_free_port()),
        # The demo has enough rows to gain from generated code, which other tests turn off.
        JAVA_OPTIONS_VARIABLE: QUICK,
        "HOME": str(tmp_path),
        "COLUMNS": "80",
        "PYTHONPATH": os.pathsep.join(map(str, (clone, *(clone / "packages").iterdir()))),
        "no_proxy": "127.0.0.1",
        "NO_PROXY": "127.0.0.1",
    }
    yield environ
    iscp(environ, clone, "down")


def test_the_demo_then_the_walk_as_written(clone, environment):
    assert iscp(environment, clone, "status").returncode == NOT_UP
    done = iscp(environment, clone, "demo", "--keep")
    assert done.returncode == 0, done.stdout + done.stderr
    number = 4 * len(SMALL)
    assert f"{number} partitions, " in done.stdout
    verified = [line for line in done.stdout.splitlines() if line.split()[-2:] == ["yes", "yes"]]
    assert len(verified) == number
    event_id, kind, name = done.stdout.partition("Webhooks, verified:")[2].splitlines()[2].split()
    assert (kind, name) == ("MATCH", "rich.progress.track")
    listed = iscp(environment, clone, "events", "list", "--json", "--limit", "1000")
    events = json.loads(listed.stdout)
    assert {each["state"] for each in events} == {"delivered"}
    (event,) = [each for each in events if each["event_id"] == event_id]
    assert event["key"] == '["rich","rich.progress.track"]'

    facts = json.loads(iscp(environment, clone, "status", "--json").stdout)
    services = {service["name"]: service for service in facts["services"]}
    assert set(services) == {part for parts in PARTS.values() for part in parts}
    assert {(each["condition"], each["note"]) for each in services.values()} == {("ready", "")}
    assert b"dagster_version" in httpx.get(services[DAGSTER]["address"] + "/server_info").content

    stack = Stack(home=clone / ".iscp", supervisor=find_running_stack(clone / ".iscp").supervisor)
    read_walk(clone, environment, stack)
    assert_nothing_left(stack.home)
    assert "Traceback" not in (stack.home / "logs" / "supervisor.log").read_text()
    assert "not up" in iscp(environment, clone, "down").stdout


def read_walk(clone, environment, stack):
    """Follow the quickstart with this machine's addresses and no proxy before them."""
    # Each block has a shell of its own, where a reader goes on in the same one.
    lines = iscp(environment, clone, "env").stdout.splitlines()
    shell = dict(shlex.split(line)[1].split("=", 1) for line in lines)
    python, desk = shlex.quote(sys.executable), find_free_port()
    reader = Reader(
        folder=clone,
        places={
            "./iscp": f"{python} -m iscp_dagster.cli.main",
            ".venv/bin/python": python,
            "/tmp/lake": str(clone / "lake"),
            "127.0.0.1:8754": f"127.0.0.1:{desk}",
            '("127.0.0.1", 8754)': f'("127.0.0.1", {desk})',
        },
        environment=environment | {name: shell[name] for name in ("CLICKHOUSE_URL", "DAGSTER_URL")},
        logs=lambda: stack.home.joinpath("logs", "dagster.log").read_text(errors="replace")[-4000:],
    )
    reader.do(blocks_of(section(DOCS / "quickstart.md", "Your own table")))
