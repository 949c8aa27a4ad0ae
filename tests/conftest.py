"""Real services for the whole session: one ClickHouse, and one stack with Spark."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hypothesis import settings
from stackfixture import clean_environment, running_stack

# A machine that is busy with other tests is slow, not wrong.
settings.register_profile("iscp", deadline=None)
settings.load_profile("iscp")


@pytest.fixture(scope="session")
def clickhouse_url(tmp_path_factory):
    """The embedded ClickHouse alone; starts in about a second."""
    folder = tmp_path_factory.mktemp("clickhouse")
    command = [sys.executable, "-m", "iscp_dagster.clickhouse.embedded"]
    command += ["--path", str(folder / "data"), "--host", "127.0.0.1", "--port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=clean_environment(folder)
    ) as server:
        address = server.stdout.readline().split()[-1]
        yield f"http://{address}"
        server.terminate()
        server.stdout.close()


@pytest.fixture(scope="session")
def stack(tmp_path_factory):
    """ClickHouse and Spark, warm; one for all tests that do not kill it."""
    with running_stack(tmp_path_factory.mktemp("stack") / "home of tests") as running:
        yield running


@pytest.fixture(scope="session")
def spark_remote(request):
    """A Spark Connect server: the one that SPARK_REMOTE names, else the session's stack's."""
    return os.environ.get("SPARK_REMOTE") or request.getfixturevalue("stack").spark_remote
