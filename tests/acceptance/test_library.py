"""The package in somebody's own Dagster project: a wheel, ten lines, `dagster dev`."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from stackfixture import clean_environment

from iscp_dagster.local.services.settings import repository
from iscp_dagster.local.stack.ports import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

DOCS = repository() / "docs" / "library.md"
STOP_SECONDS = 60


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A virtual environment with the wheel in it; all that it needs comes from this one."""
    folder = tmp_path_factory.mktemp("library")
    python = folder / "venv" / "bin" / "python"
    wheel = (*("wheel", "--no-deps", "--no-build-isolation", "-w"), str(folder), str(repository()))
    subprocess.run([sys.executable, "-m", "pip", "-q", *wheel], check=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    own = subprocess.run([python, "-c", ask], check=True, capture_output=True, text=True)
    # A path is all that is taken of the other environment: its .pth files, and so the project, not.
    Path(own.stdout.strip(), "others.pth").write_text(sysconfig.get_path("purelib"))
    (built,) = folder.glob("*.whl")
    install = ("--python", str(python), "install", "-q", "--no-deps", "--no-index", str(built))
    subprocess.run([sys.executable, "-m", "pip", *install], check=True)
    return python.parent


@pytest.fixture
def project(tmp_path, installed, clickhouse_url, spark_remote):
    """A folder with the ten lines of the docs, and the environment of its commands."""
    lines = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)[0]
    (tmp_path / "definitions.py").write_text(lines)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "dagster.yaml").write_text((repository() / "dagster.yaml").read_text())
    environment = clean_environment(tmp_path / "no stack") | {
        "PATH": f"{installed}:{os.environ['PATH']}",
        "DAGSTER_HOME": str(tmp_path / "home"),
        "CLICKHOUSE_URL": clickhouse_url,
        "SPARK_REMOTE": spark_remote,
        "ISCP_LOG_URL": f"sqlite:///{tmp_path / 'log.sqlite'}",
        "ISCP_LAKE": str(tmp_path / "lake"),
        "ISCP_ASSETS": "definitions",
    }
    return tmp_path, environment


def test_a_project_of_ten_lines_is_loaded_and_kept_in_step(project, installed):
    folder, environment = project

    def run(*command, seconds=120):
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        log = folder / "dagster.log"
        said = log.read_text()[-4000:] if log.exists() else ""
        assert done.returncode == 0, (done.stdout, done.stderr, said)
        return done.stdout

    where = "import iscp_dagster; print(iscp_dagster.__file__)"
    assert run(installed / "python", "-c", where).startswith(str(installed.parent))
    configuration = {"delta.enableChangeDataFeed": "true"}
    orders = pa.table({"id": pa.array(range(3), pa.int64()), "what": ["a", "b", "c"]})
    write_deltalake(folder / "lake" / "shop" / "orders", orders, configuration=configuration)
    command = ("dagster", "dev", "-m", "definitions", "-h", "127.0.0.1", "-p", str(free_port()))
    with (
        (folder / "dagster.log").open("w") as log,
        subprocess.Popen(
            [installed / "python", "-m", *command],
            cwd=folder,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as dagster,
    ):
        try:
            run("iscp", "wait", "shop.orders", "--timeout", "240", seconds=300)
            (job,) = json.loads(run("iscp", "job", "list", "--json"))
            assert (job["job"], job["state"]) == ("shop.orders/mirror", "completed")
            verified = json.loads(run("iscp", "verify", "--json"))
            assert [(each["agrees"], each["rows"]) for each in verified] == [(True, 3)]
        finally:
            dagster.send_signal(signal.SIGINT)
            try:
                dagster.wait(STOP_SECONDS)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(dagster.pid, signal.SIGKILL)
