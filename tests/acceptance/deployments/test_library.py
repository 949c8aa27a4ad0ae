"""The package in a user's Dagster project: a wheel, and ten lines of Python or YAML."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from contextlib import suppress

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from iscp_dagster.local.services.settings import get_repository
from iscp_dagster.local.stack.ports import find_free_port
from support.errors import assert_names
from support.lake.row_writer import ANYWAY
from support.services.stack import clean_environment, query
from support.services.wheels import install_wheels

pytestmark = pytest.mark.timeout(1_200)

DOCS = (get_repository() / "docs" / "library.md").read_text(encoding="utf-8")
STOP_SECONDS = 60


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Make a virtual environment with the wheels, Dagster's own tools, and no extra."""
    folder = tmp_path_factory.mktemp("library")
    return install_wheels(folder, "iscp_dagster", "dagster-webserver", "dagster-dg-cli")


def example(language, number=0):
    return re.findall(rf"```{language}\n(.*?)```", DOCS, re.DOTALL)[number]


@pytest.fixture
def run(tmp_path, installed):
    """Run a command in a project's folder with these settings; return its output."""
    (tmp_path / "home").mkdir()
    instance = (get_repository() / "dagster.yaml").read_text() + example(
        'yaml title="dagster.yaml"'
    )
    (tmp_path / "home" / "dagster.yaml").write_text(instance)
    environment = clean_environment(tmp_path / "no stack") | {
        "PATH": f"{installed}:{os.environ['PATH']}",
        "DAGSTER_HOME": str(tmp_path / "home"),
        "DAGSTER_DISABLE_TELEMETRY": "yes",
        "ISCP_LOG_URL": f"sqlite:///{tmp_path / 'log.sqlite'}",
        "ISCP_LAKE": str(tmp_path / "lake"),
        "CLICKHOUSE_URL": "http://127.0.0.1:1",
        "SPARK_REMOTE": "sc://127.0.0.1:1",
    }
    # Else it could lead to the project's code instead of the wheels.
    environment.pop("PYTHONPATH", None)

    def run(*command, seconds=300, code=0):
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        log = tmp_path / "dagster.log"
        end = log.read_text()[-4000:] if log.exists() else ""
        assert done.returncode == code, (done.stdout, done.stderr, end)
        return done.stdout or done.stderr

    run.environment = environment
    return run


def test_a_project_of_ten_lines_is_loaded_and_kept_in_step(
    tmp_path, installed, run, own_clickhouse_url, spark_remote
):
    (tmp_path / "definitions.py").write_text(example("python"))
    run.environment |= {
        "CLICKHOUSE_URL": own_clickhouse_url,
        "SPARK_REMOTE": spark_remote,
        "ISCP_ASSETS": "definitions",
    }
    where = "import iscp_dagster; print(iscp_dagster.__file__)"
    assert run(installed / "python", "-c", where).startswith(str(installed.parent))
    configuration = {"delta.enableChangeDataFeed": "true"}
    orders = pa.table({"id": pa.array(range(3), pa.int64()), "what": ["a", "b", "c"]})
    write_deltalake(tmp_path / "lake" / "shop" / "orders", orders, configuration=configuration)
    address = ("-h", "127.0.0.1", "-p", str(find_free_port()))
    with (
        (tmp_path / "dagster.log").open("w") as log,
        subprocess.Popen(
            [installed / "python", "-m", "dagster", "dev", "-m", "definitions", *address],
            cwd=tmp_path,
            env=run.environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as dagster,
    ):
        try:
            run("iscp", "wait", "shop.orders", "--timeout", "540", seconds=600)
            (job,) = json.loads(run("iscp", "job", "list", "--json"))
            assert (job["job"], job["state"]) == ("shop.orders/mirror", "completed")
            verified = json.loads(run("iscp", "verify", "--json"))
            assert [(each["agrees"], each["rows"]) for each in verified] == [(True, 3)]
            tamper(own_clickhouse_url, "shop.orders_mirror__rows", "'other' AS what", "id = 1")
            assert_names(run("iscp", "verify", code=1), "shop.orders/mirror", "id = 1", "what")
        finally:
            dagster.send_signal(signal.SIGINT)
            try:
                dagster.wait(STOP_SECONDS)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(dagster.pid, signal.SIGKILL)


def tamper(clickhouse_url, table, change, where):
    """Write rows of an index again, with a change."""
    query(
        clickhouse_url,
        f"INSERT INTO {table} SETTINGS log_comment = '{ANYWAY['log_comment']}' "
        f"SELECT * REPLACE ({change}) FROM {table} FINAL WHERE {where}",
    )


def test_without_extras_a_command_says_which_it_needs(run):
    assert_names(run("iscp", "up", code=1), "'iscp_dagster[local]'")
    postgres = "postgresql://iscp@127.0.0.1/log"
    run.environment |= {"ISCP_LOG_URL": postgres, "ISCP_ASSETS": "json"}
    assert_names(run("iscp", "job", "list", code=1), "'iscp_dagster[postgres]'")


PROJECT = """
[tool.dg]
directory_type = "project"

[tool.dg.project]
root_module = "my_project"
"""
DG = """
import json, sys
from dagster_dg_cli.cli import ENV_PREFIX, cli

first, *others = json.loads(sys.argv[1])
cli(first, auto_envvar_prefix=ENV_PREFIX, standalone_mode=not others)
for words in others:
    print(end="\\0", flush=True)
    cli(words, auto_envvar_prefix=ENV_PREFIX)
"""
"""Runs commands of `dg`, since each process of its own takes seconds; prints NUL between two."""
DEFINITIONS = """\
from pathlib import Path

import dagster as dg


@dg.definitions
def defs():
    return dg.load_from_defs_folder(path_within_project=Path(__file__).parent)
"""


def test_a_table_in_yaml_is_made_checked_and_listed_by_dg(tmp_path, installed, run):
    package = tmp_path / "my_project"
    for folder in (package, package / "defs"):
        folder.mkdir()
        (folder / "__init__.py").touch()
    (package / "definitions.py").write_text(DEFINITIONS)
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    run.environment |= {"PYTHONPATH": str(tmp_path), "PYTHONWARNINGS": "ignore"}

    def dg(*commands, **options):
        return run(installed / "python", "-c", DG, json.dumps(commands), **options)

    _, _, scaffold, listed = (example("bash", number) for number in range(4))
    dg(shlex.split(scaffold)[1:])
    file = package / "defs" / "orders" / "defs.yaml"
    assert file.read_text() == (
        "type: iscp_dagster.SourceTableComponent\n\n"
        "attributes:\n  name: shop.orders\n  key: id\n  indexes:\n    - kind: mirror\n"
    )
    file.write_text(example("yaml"))
    checked, listing = dg(["check", "defs"], ["list", "defs", "--json"]).split("\0")
    assert "All definitions loaded successfully" in checked
    found = json.loads(listing)
    keys = {kind: [each.get("asset_key") or each["name"] for each in found[kind]] for kind in found}
    assert sorted(keys["assets"]) == ["shop/orders", "shop/orders_mirror", "shop/orders_text"]
    assert sorted(keys["sensors"]) == ["iscp_news", "iscp_runner"]
    assert sorted(keys["resources"]) == ["clickhouse", "iscp", "spark"]
    assert run("env", *shlex.split(listed)) == "no jobs\n"
    file.write_text(example("yaml").replace("key: id", "key: 1"))
    refused = dg(["check", "yaml"], code=1)
    assert_names(refused, f"{file}:5", "iscp_dagster.SourceTableComponent", "attributes.key 1")


def test_this_repository_is_a_project_of_dg_too():
    words = ("list", "defs", "--json", "--target-path", get_repository())
    environment = clean_environment(get_repository()) | {"DAGSTER_DISABLE_TELEMETRY": "yes"}
    command = [sys.executable, "-m", "dagster_dg_cli.cli", *words]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    found = json.loads(done.stdout)
    assert sorted(each["name"] for each in found["sensors"]) == ["iscp_news", "iscp_runner"]
    assert "docs/symbols" in [each["asset_key"] for each in found["assets"]]
