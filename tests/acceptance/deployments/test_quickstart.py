"""A newcomer's first hour, in a fresh clone with an empty HOME: the demo, then the quickstart.

The clone has the files of the work tree that git tracks or would add. It uses the Python that runs
the tests, which the launcher has set up: another set-up would show nothing new. Its demo loads half
of the distributions, with less than a quarter of the rows.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from iscp_dagster.joblog.sql.log import SqlLog
from iscp_dagster.local.services import credentials
from iscp_dagster.local.services.settings import CLICKHOUSE, DAGSTER, PARTS
from iscp_dagster.local.services.state import find_running_stack as current
from iscp_dagster.local.spark.server import JAVA_OPTIONS_VARIABLE
from iscp_dagster.local.stack.ports import find_free_port
from iscp_dagster.model.moment import START
from support.clients.document_commands import Reader, blocks_of, section
from support.paths import DOCS, ROOT
from support.services.stack import (
    QUICK,
    Stack,
    assert_in_files_of_their_own,
    assert_nothing_left,
    clean_environment,
    commands_of,
    free_ports,
    iscp,
    processes_of,
    query,
    running_stack,
)

pytestmark = pytest.mark.timeout(2400)
NOT_UP = 3
SMALL = ("clickhouse-connect", "jinja2", "pydantic", "rich", "typer")
PARTITIONS = 4 * len(SMALL)
FEWEST_ROWS = 3 * 5_000
NO_PROXY = {"no_proxy": "127.0.0.1", "NO_PROXY": "127.0.0.1"}


@dataclass(frozen=True, kw_only=True)
class Newcomer:
    """A newcomer's clone and shell, and the output of the demo."""

    clone: Path
    environment: Mapping[str, str]
    demo: subprocess.CompletedProcess[str]

    @property
    def home(self) -> Path:
        return self.clone / ".iscp"

    def iscp(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return iscp(self.environment, self.clone, *arguments)

    def shell(self) -> dict[str, str]:
        """Return the variables of `iscp env`."""
        lines = self.iscp("env").stdout.splitlines()
        return dict(shlex.split(line)[1].split("=", 1) for line in lines)


def cloned(folder: Path) -> Path:
    """Copy the files that git tracks or would add into `folder`."""
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    found = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=False)
    if found.returncode:
        pytest.skip(f"needs git and a repository to clone: {found.stderr.strip()}")
    for name in filter(None, found.stdout.split("\0")):
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


def choose_small_distributions(clone: Path) -> None:
    """Have the clone's demo load these distributions only."""
    file = clone / "iscp_dagster" / "demo" / "load.py"
    listing = re.compile(r"^DISTRIBUTIONS = \([^)]+\)$", re.MULTILINE)
    text, number = listing.subn(f"DISTRIBUTIONS = {SMALL}", file.read_text())
    assert number == 1
    file.write_text(text)


def with_nothing_fetched(home: Path, clone: Path) -> dict[str, str]:
    environ = clean_environment(home / "unused") | free_ports()
    for name in ("ISCP_HOME", "ISCP_JARS", "PYTHONPATH", "VIRTUAL_ENV", "XDG_CACHE_HOME"):
        environ.pop(name, None)
    environ["ISCP_DEMO_PORT"] = str(find_free_port())
    # The demo has enough rows to gain from generated code, which other tests turn off.
    environ[JAVA_OPTIONS_VARIABLE] = QUICK
    path = os.pathsep.join(map(str, (clone, *(clone / "packages").iterdir())))
    return environ | {"HOME": str(home), "COLUMNS": "80", "PYTHONPATH": path}


@pytest.fixture(scope="module")
def newcomer(tmp_path_factory):
    """Run the demo in a clone whose stack was down; its stack stays up."""
    clone = cloned(tmp_path_factory.mktemp("a fresh clone"))
    choose_small_distributions(clone)
    environ = with_nothing_fetched(tmp_path_factory.mktemp("home"), clone)
    assert iscp(environ, clone, "status").returncode == NOT_UP
    assert json.loads(iscp(environ, clone, "status", "--json").stdout)["condition"] == "down"
    try:
        done = iscp(environ, clone, "demo", "--keep")
        yield Newcomer(clone=clone, environment=environ, demo=done)
    finally:
        iscp(environ, clone, "down")


def test_every_partition_of_every_index_is_in_step_and_verified(newcomer):
    done = newcomer.demo
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line for line in done.stdout.splitlines() if line.rstrip().endswith("yes")]
    assert len(rows) == PARTITIONS, done.stdout
    assert all(line.split()[-2:] == ["yes", "yes"] for line in rows)
    total = re.search(rf"{PARTITIONS} partitions, ([\d,]+) rows compared", done.stdout)
    assert total, done.stdout
    assert int(total[1].replace(",", "")) >= FEWEST_ROWS


def test_the_change_reached_every_distribution_but_one(newcomer):
    every = SqlLog(f"sqlite:///{newcomer.home / 'iscp_log.sqlite'}").list_jobs()
    jobs = [job for job in every if job.key.job_name in {"mirror", "text", "vector"}]
    assert len(jobs) == 3 * len(SMALL)
    untouched = SMALL[-1]
    for job in jobs:
        if job.key.tenant == untouched:
            # It moves in memory until the hourly flush, which may happen during the demo.
            assert job.status.from_ == START, job
            assert job.watermark.version in {1, 2}, job
        else:
            assert job.watermark.version == 2, job
            assert job.status.from_.version == 1, job
            assert job.status.counts["deleted"] > 0, job
    changed = [job for job in jobs if job.status.counts["inserted"] and job.status.from_ != START]
    assert len({job.key.tenant for job in changed}) > len(SMALL) // 2


def test_the_trigger_told_a_verified_receiver_what_became_deprecated(newcomer):
    lines = newcomer.demo.stdout.partition("Webhooks, verified:")[2].splitlines()
    event_id, kind, name = lines[2].split()
    assert (kind, name) == ("MATCH", "rich.progress.track")
    assert lines[3].startswith("and "), "no other began to"
    events = json.loads(newcomer.iscp("events", "list", "--json", "--limit", "1000").stdout)
    assert {each["state"] for each in events} == {"delivered"}
    ceased = [each["event_type"] for each in events].count("UNMATCH")
    assert re.search(rf"and {ceased:,} UNMATCH", newcomer.demo.stdout)
    assert ceased > 0
    (event,) = [each for each in events if each["event_id"] == event_id]
    assert event["key"] == '["rich","rich.progress.track"]'


METADATA = """{ assetOrError(assetKey: {path: ["docs", "symbols_deprecated"]}) { ... on Asset {
    assetMaterializations(limit: 1) { metadataEntries {
        label ... on IntMetadataEntry { intValue } ... on TextMetadataEntry { text } } } } } }"""


def test_the_triggers_asset_shows_what_became_of_its_events(newcomer):
    url = f"{newcomer.shell()['DAGSTER_URL']}/graphql"
    asset = httpx.post(url, json={"query": METADATA}).json()["data"]["assetOrError"]
    (materialization,) = asset["assetMaterializations"]
    shown = {
        each["label"]: each.get("intValue", each.get("text"))
        for each in materialization["metadataEntries"]
    }
    assert {"matches", "unmatches", "active", "events_pending"} <= set(shown)
    assert shown["events_delivered"] + shown["events_pending"] > 0
    assert (shown["events_dead"], shown["endpoints"]) == (0, "receiver active")


@pytest.mark.parametrize(("title", "number"), [("Words:", 2), ("Meaning:", 5), ("SQL:", 5)])
def test_each_search_finds_something(newcomer, title, number):
    after = newcomer.demo.stdout.partition(title)[2].splitlines()
    assert all(line.strip() for line in after[2 : 2 + number])


def test_it_fits_eighty_columns(newcomer):
    shown = newcomer.demo.stdout.splitlines()
    lines = [line for line in shown if str(newcomer.clone) not in line]
    assert max(map(len, lines)) <= 80, max(lines, key=len)


def walk():
    return blocks_of(section(DOCS / "quickstart.md", "Your own table"))


def test_the_walk_declares_asks_changes_and_verifies():
    blocks = walk()
    assert "assets/tickets.py" in [block.title for block in blocks]
    declaration = next(block.text for block in blocks if block.title == "assets/tickets.py")
    assert len(declaration.strip().splitlines()) <= 10
    outputs = [block for block in blocks if block.language == "text"]
    assert len(outputs) >= 7
    assert blocks[-1].text.strip() == "./iscp down"


def test_after_the_demo_the_walk_as_written_then_down_and_up_again(newcomer, tmp_path):
    home = newcomer.home
    assert_up(newcomer)
    url = newcomer.shell()["CLICKHOUSE_URL"]
    query(url, "CREATE TABLE kept (n Int64) ENGINE = MergeTree ORDER BY n")
    query(url, "INSERT INTO kept VALUES (42)")
    stack = Stack(home=home, supervisor=current(home).supervisor)
    reader(newcomer, tmp_path / "lake", stack).do(walk())
    assert_nothing_left(home)
    assert "Traceback" not in (home / "logs" / "supervisor.log").read_text()
    secrets = credentials.read(home)
    values = {secrets.password, secrets.spark_token, secrets.webhook}
    assert_in_files_of_their_own(newcomer.clone, values)
    assert newcomer.iscp("status").returncode == NOT_UP
    assert "not up" in newcomer.iscp("down").stdout
    with running_stack(home, (CLICKHOUSE,)) as second:
        assert query(second.clickhouse_url, "SELECT n FROM kept") == "42"


def reader(newcomer, lake, stack):
    """Return a reader in the clone, with this machine's addresses and no proxy before them."""
    python, desk = shlex.quote(sys.executable), find_free_port()
    # Each block has a shell of its own, where a reader goes on in the same one.
    shell = newcomer.shell()
    addresses = {name: shell[name] for name in ("CLICKHOUSE_URL", "DAGSTER_URL")}
    return Reader(
        folder=newcomer.clone,
        places={
            "./iscp": f"{python} -m iscp_dagster.cli.main",
            ".venv/bin/python": python,
            "/tmp/lake": str(lake),
            "127.0.0.1:8754": f"127.0.0.1:{desk}",
            '("127.0.0.1", 8754)': f'("127.0.0.1", {desk})',
        },
        environment={**newcomer.environment, **addresses, **NO_PROXY},
        logs=lambda: stack.home.joinpath("logs", "dagster.log").read_text(errors="replace")[-4000:],
    )


def assert_up(newcomer):
    status = newcomer.iscp("status", "--json")
    assert status.returncode == 0
    facts = json.loads(status.stdout)
    services = {service["name"]: service for service in facts["services"]}
    assert set(services) == {part for parts in PARTS.values() for part in parts}
    assert {service["condition"] for service in services.values()} == {"ready"}
    assert all(service["note"] == "" for service in services.values()), services
    assert all(Path(service["log"]).is_file() for service in services.values())
    clickhouse = newcomer.environment["ISCP_CLICKHOUSE_PORT"]
    assert services[CLICKHOUSE]["address"].endswith(clickhouse)
    with urllib.request.urlopen(services[DAGSTER]["address"] + "/server_info") as answer:
        assert b"dagster_version" in answer.read()
    assert httpx.post(services[CLICKHOUSE]["address"], content="SELECT 1").status_code == 401
    assert_kept_secret(newcomer, facts)
    again = newcomer.iscp("up")
    assert again.returncode == 0
    assert "already up" in again.stdout
    for service in services.values():
        assert service["address"] in again.stdout


def assert_kept_secret(newcomer, facts):
    """Check that secrets are only in environments and in files that only their owner reads."""
    shown = json.loads(newcomer.iscp("status", "--show-password", "--json").stdout)
    secrets = {shown["clickhouse_password"], shown["spark_token"], shown["webhook_secret"]}
    assert not any(secret in json.dumps(facts) for secret in secrets)
    assert shown["clickhouse_password"] in newcomer.shell()["CLICKHOUSE_URL"]
    assert newcomer.shell()["SPARK_REMOTE"].endswith(f"/;token={shown['spark_token']}")
    for command in commands_of(processes_of(newcomer.home)):
        assert not any(secret in command for secret in secrets), command
    assert_in_files_of_their_own(newcomer.clone, secrets)
