"""The package in a user's Dagster project: ten lines of Python or YAML.

For `dagster dev` with such a project see test_own_dagster; for the wheels, test_production.
"""

import json
import re
import runpy
import shlex
import sys
import warnings

import dagster as dg
import pyarrow as pa
import pytest
from dagster_dg_cli.cli import ENV_PREFIX, cli
from deltalake import write_deltalake

from support.clients.cli import CommandLine
from support.errors import assert_names
from support.jobs.one_table import FEED, name_deployment
from support.jobs.sensor_ticks import Ticks
from support.lake.row_writer import ANYWAY
from support.paths import DOCS, ROOT
from support.services.stack import query

PAGE = (DOCS / "library.md").read_text(encoding="utf-8")


def example(language, number=0):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)[number]


@pytest.fixture
def command_line(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    return CommandLine(capsys, monkeypatch)


def test_ten_lines_of_python_keep_a_table_in_step(
    tmp_path, own_clickhouse_url, near_spark, migrations_read, monkeypatch, command_line
):
    name_deployment(monkeypatch, tmp_path)
    monkeypatch.setenv("CLICKHOUSE_URL", own_clickhouse_url)
    monkeypatch.setenv("ISCP_ASSETS", "definitions")
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("get_shared_session", "create_private_session"):
        monkeypatch.setattr(f"iscp_dagster.api.environment.{name}", lambda _: near_spark)
    (tmp_path / "definitions.py").write_text(example("python"))
    settings = (ROOT / "dagster.yaml").read_text() + example('yaml title="dagster.yaml"')
    (tmp_path / "dagster.yaml").write_text(settings)
    orders = pa.table({"id": pa.array(range(3), pa.int64()), "what": ["a", "b", "c"]})
    write_deltalake(tmp_path / "lake" / "shop" / "orders", orders, configuration=FEED)

    defs = runpy.run_path(str(tmp_path / "definitions.py"))["defs"]
    with dg.DagsterInstance.get() as instance:
        (request,) = Ticks(defs, instance)().run_requests
        job = defs.resolve_job_def(request.job_name)
        job.execute_in_process(instance=instance, tags=dict(request.tags))
    command_line.capsys.readouterr()
    (listed,) = command_line.read_json("job", "list")
    assert (listed["job"], listed["state"]) == ("shop.orders/mirror", "completed")
    verified = command_line.read_json("verify")
    assert [(each["agrees"], each["rows"]) for each in verified] == [(True, 3)]
    query(
        own_clickhouse_url,
        f"INSERT INTO shop.orders_mirror__rows SETTINGS log_comment = '{ANYWAY['log_comment']}' "
        "SELECT * REPLACE ('other' AS what) FROM shop.orders_mirror__rows FINAL WHERE id = 1",
    )
    assert_names(command_line.read_failure("verify"), "shop.orders/mirror", "id = 1", "what")


PYPROJECT = """
[tool.dg]
directory_type = "project"

[tool.dg.project]
root_module = "my_project"
"""
DEFINITIONS = """\
from pathlib import Path

import dagster as dg


@dg.definitions
def defs():
    return dg.load_from_defs_folder(path_within_project=Path(__file__).parent)
"""


@pytest.fixture
def call_dg(capsys, monkeypatch):
    """Give a function that runs a command of `dg` in this process and returns its output."""
    monkeypatch.setenv("DAGSTER_DISABLE_TELEMETRY", "yes")

    def call(*words, code=0):
        with pytest.raises(SystemExit) as ended, warnings.catch_warnings(action="ignore"):
            cli([*map(str, words)], auto_envvar_prefix=ENV_PREFIX)
        output = capsys.readouterr()
        assert ended.value.code == code, output
        return output.out or output.err

    yield call
    # Other tests run it as a module of its own.
    sys.modules.pop("iscp_dagster.definitions", None)


def test_a_table_in_yaml_is_made_checked_and_listed_by_dg(
    tmp_path, call_dg, command_line, monkeypatch
):
    name_deployment(monkeypatch, tmp_path)
    package = tmp_path / "my_project"
    for folder in (package, package / "defs"):
        folder.mkdir()
        (folder / "__init__.py").touch()
    (package / "definitions.py").write_text(DEFINITIONS)
    (tmp_path / "pyproject.toml").write_text(PYPROJECT)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)

    _, _, scaffold, listed = (example("bash", number) for number in range(4))
    call_dg(*shlex.split(scaffold)[1:])
    file = package / "defs" / "orders" / "defs.yaml"
    assert file.read_text() == (
        "type: iscp_dagster.SourceTableComponent\n\n"
        "attributes:\n  name: shop.orders\n  key: id\n  indexes:\n    - kind: mirror\n"
    )
    file.write_text(example("yaml"))
    assert "All definitions loaded successfully" in call_dg("check", "defs")
    found = json.loads(call_dg("list", "defs", "--json"))
    keys = {kind: [each.get("asset_key") or each["name"] for each in found[kind]] for kind in found}
    assert sorted(keys["assets"]) == ["shop/orders", "shop/orders_mirror", "shop/orders_text"]
    assert sorted(keys["sensors"]) == ["iscp_news", "iscp_runner"]
    assert sorted(keys["resources"]) == ["clickhouse", "iscp", "spark"]
    setting, _, *words = shlex.split(listed)
    monkeypatch.setenv(*setting.split("="))
    assert command_line(*words) == (0, "no jobs\n")
    file.write_text(example("yaml").replace("key: id", "key: 1"))
    refused = call_dg("check", "yaml", code=1)
    assert_names(refused, f"{file}:5", "iscp_dagster.SourceTableComponent", "attributes.key 1")


def test_this_repository_is_a_project_of_dg_too(call_dg):
    found = json.loads(call_dg("list", "defs", "--json", "--target-path", ROOT))
    assert sorted(each["name"] for each in found["sensors"]) == ["iscp_news", "iscp_runner"]
    assert "docs/symbols" in [each["asset_key"] for each in found["assets"]]
