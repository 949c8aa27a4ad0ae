"""Real services for the whole session: a ClickHouse for each worker, and one Spark for all."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa
from hypothesis import settings
from keeperfixture import running_keeper
from lanes import Lanes, rank
from nearspark import near
from objectstore import LAKE, leading_to
from postgresfixture import driven, running_postgres
from stackfixture import Stack, clean_environment, running_stack
from together import one_for_all

from iscp_dagster.local.stack.ports import free_port
from iscp_dagster.spark.session import disconnect

# A machine that is busy with other tests is slow, not wrong.
settings.register_profile("iscp", deadline=None)
settings.load_profile("iscp")


def pytest_collection_modifyitems(items):
    """Let those begin first that take longest."""
    items.sort(key=lambda item: rank(item.nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Files that share a Spark go to one worker."""
    return Lanes(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_terminal_summary(terminalreporter):
    """Print what tests have recorded of themselves, whichever worker ran them."""
    reports = [each for some in terminalreporter.stats.values() for each in some]
    for report in reports:
        if getattr(report, "when", None) == "teardown" and report.user_properties:
            told = ", ".join(f"{name} {value}" for name, value in report.user_properties)
            terminalreporter.line(f"{report.nodeid}: {told}")


@pytest.fixture(scope="session")
def clickhouse_url(tmp_path_factory):
    """The embedded ClickHouse alone; starts in about a second."""
    folder = tmp_path_factory.mktemp("clickhouse")
    command = [sys.executable, "-m", "iscp_dagster.local.clickhouse"]
    command += ["--path", str(folder / "data"), "--host", "127.0.0.1", "--port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=clean_environment(folder)
    ) as server:
        address = server.stdout.readline().split()[-1]
        yield f"http://{address}"
        server.terminate()
        server.stdout.close()


@pytest.fixture(scope="session")
def keeper(tmp_path_factory):
    """A ZooKeeper, and a ClickHouse whose KeeperMap tables live in it; starts in two seconds."""
    with running_keeper(tmp_path_factory.mktemp("keeper")) as running:
        yield running


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory):
    """The URL of a PostgreSQL that nobody kills."""
    with running_postgres(tmp_path_factory.mktemp("runtime")) as server:
        yield server.get_uri()


@pytest.fixture(scope="session")
def new_postgres(postgres_server):
    """Makes a database with nothing in it, and gives its URL."""
    numbers = itertools.count()
    admin = sa.create_engine(driven(postgres_server), isolation_level="AUTOCOMMIT")

    def make():
        name = f"tests_{next(numbers)}"
        with admin.connect() as connection:
            connection.execute(sa.text(f"CREATE DATABASE {name}"))
        url = sa.make_url(postgres_server).set(database=name)
        return url.render_as_string(hide_password=False)

    yield make
    admin.dispose()


@pytest.fixture(scope="session")
def postgres(new_postgres):
    """The URL of a PostgreSQL database with nothing in it, shared by those that clean up."""
    return new_postgres()


@pytest.fixture(scope="session")
def of_all(tmp_path_factory):
    """Where the stack of all workers is, which runs until none of them needs it."""

    @contextmanager
    def started():
        home, port = tmp_path_factory.mktemp("stack") / "home of tests", free_port()
        with running_stack(home, extra=leading_to(port) | {"ISCP_LAKE": LAKE}) as stack:
            told = {"home": str(home), "supervisor": stack.supervisor, "store_port": port}
            yield json.dumps(told)

    base = tmp_path_factory.getbasetemp()
    with one_for_all(base.parent if "PYTEST_XDIST_WORKER" in os.environ else base, started) as told:
        yield json.loads(told)
        disconnect()


@pytest.fixture(scope="session")
def stack(of_all):
    """ClickHouse and Spark, warm and with S3A; one for all tests that do not kill it."""
    return Stack(home=Path(of_all["home"]), supervisor=of_all["supervisor"])


@pytest.fixture(scope="session")
def store_port(of_all):
    """Where that Spark looks for an object store."""
    return of_all["store_port"]


@pytest.fixture
def near_spark():
    """What iterations ask of Spark, done here."""
    with near() as session:
        yield session


@pytest.fixture(scope="session")
def spark_remote(request):
    """A Spark Connect server: the one that SPARK_REMOTE names, else the session's stack's."""
    return os.environ.get("SPARK_REMOTE") or request.getfixturevalue("stack").spark_remote
