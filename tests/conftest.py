"""Real services for the whole session: a ClickHouse for each worker, and one Spark for all."""

import asyncio
import gc
import inspect
import json
import os
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import chdb_http
from iscp_dagster.clickhouse.connect.endpoint import ClickHouseEndpoint
from iscp_dagster.local.stack.ports import find_free_port
from iscp_dagster.spark.session import disconnect
from sql_transactions.testing import make_database_factory, run_postgres
from support.clients import chromium
from support.paths import ROOT
from support.services import insert_gate
from support.services.clickhouse_servers import drop_new_databases, running_servers
from support.services.fault_proxy import faulty
from support.services.keeper import running_keeper
from support.services.object_store import LAKE, leading_to
from support.services.stack import Stack, running_stack
from support.spark.fake_spark import near
from support.workers.shared_resources import one_for_all
from support.workers.worker_order import Lanes, give_way, own_part_first, rank

# A test that runs slowly on a busy machine has not failed.
settings.register_profile("iscp", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("iscp")


@pytest.fixture(scope="session")
def migrations_read():
    """Read the migrations of Dagster's storages once, as a run server does."""
    from iscp_dagster.runs.alembic_cache import cache_migrations

    cache_migrations()


def pytest_configure(config):
    """Have each worker start collecting the suite at a different file."""
    whole = config.getini("testpaths")
    if "PYTEST_XDIST_WORKER" in os.environ and config.args == whole:
        files = [file for place in whole for file in (ROOT / place).rglob("test_*.py")]
        config.args = own_part_first(sorted(map(str, files)))


def pytest_collection_modifyitems(items):
    """Order the tests so that the longest begin first."""
    items.sort(key=lambda item: rank(item.nodeid))


def pytest_collection_finish():
    """Exempt what is loaded by now from later garbage collections."""
    gc.freeze()


def pytest_runtest_setup(item):
    """Let the longest lane go first."""
    give_way(item.nodeid)


def pytest_pyfunc_call(pyfuncitem):
    """Run a test that is a coroutine function, in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Give files that share a Spark to one worker."""
    return Lanes(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_terminal_summary(terminalreporter):
    """Print the properties that tests recorded, whichever worker ran them."""
    reports = [each for some in terminalreporter.stats.values() for each in some]
    for report in reports:
        if getattr(report, "when", None) == "teardown" and report.user_properties:
            told = ", ".join(f"{name} {value}" for name, value in report.user_properties)
            terminalreporter.line(f"{report.nodeid}: {told}")


@pytest.fixture(scope="session")
def clickhouse_url(tmp_path_factory):
    """Run the embedded ClickHouse alone; it starts in about a second."""
    folder = tmp_path_factory.mktemp("clickhouse")
    with chdb_http.launch(folder / "data", remote_hosts=[insert_gate.ADDRESS]) as server:
        yield server.url


@pytest.fixture(autouse=True)
def drop_databases(request):
    """Drop what a test makes in the worker's ClickHouse, whose threads look after each table."""
    if "clickhouse_url" not in request.fixturenames:
        yield
        return
    url = request.getfixturevalue("clickhouse_url")
    with drop_new_databases(ClickHouseEndpoint.parse(url)):
        yield


@pytest.fixture
def own_clickhouse_url(tmp_path):
    """Run a ClickHouse for one test, whose tables are named as those of other tests may be."""
    with running_servers(tmp_path, 1) as (server,):
        yield server.url


@pytest.fixture(scope="module")
def proxy(clickhouse_url):
    """Run a proxy before that ClickHouse, which fails the inserts that a test names."""
    with faulty(clickhouse_url) as server:
        yield server


@pytest.fixture
def browser(tmp_path):
    """Run a Chromium with one page; skip where there is none."""
    program = chromium.found()
    if program is None:
        pytest.skip(f"needs one of the programs {', '.join(chromium.NAMES)}")
    with chromium.running(program, tmp_path) as page:
        yield page


@pytest.fixture(scope="session")
def keeper(tmp_path_factory):
    """Run a ZooKeeper, and a ClickHouse with KeeperMap tables in it; they start in two seconds."""
    with running_keeper(tmp_path_factory.mktemp("keeper")) as running:
        yield running


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory):
    """Run a PostgreSQL that nobody kills, and give its URL."""
    with run_postgres(tmp_path_factory.mktemp("runtime")) as server:
        yield server.get_uri()


@pytest.fixture(scope="session")
def new_postgres(postgres_server):
    """Give a function that makes an empty database and returns its URL."""
    with make_database_factory(postgres_server) as make:
        yield make


@pytest.fixture(scope="session")
def postgres(new_postgres):
    """Return the URL of an empty PostgreSQL database, shared by tests that clean up."""
    return new_postgres()


@pytest.fixture(scope="session")
def of_all(tmp_path_factory):
    """Locate the stack that all workers share; it runs until none of them needs it."""

    @contextmanager
    def started():
        home, port = tmp_path_factory.mktemp("stack") / "home of tests", find_free_port()
        with running_stack(home, extra=leading_to(port) | {"ISCP_LAKE": LAKE}) as stack:
            told = {"home": str(home), "supervisor": stack.supervisor, "store_port": port}
            yield json.dumps(told)

    base = tmp_path_factory.getbasetemp()
    with one_for_all(base.parent if "PYTEST_XDIST_WORKER" in os.environ else base, started) as told:
        yield json.loads(told)
        disconnect()


@pytest.fixture(scope="session")
def stack(of_all):
    """Return ClickHouse and Spark, warm and with S3A, for all tests that do not kill them."""
    return Stack(home=Path(of_all["home"]), supervisor=of_all["supervisor"])


@pytest.fixture(scope="session")
def store_port(of_all):
    """Return the port at which that Spark looks for an object store."""
    return of_all["store_port"]


@pytest.fixture
def near_spark():
    """Stand in for Spark, in this process, in what iterations ask of it."""
    with near() as session:
        yield session


@pytest.fixture(scope="session")
def spark_remote(request):
    """Return the Spark Connect server that SPARK_REMOTE names, else that of the session's stack."""
    return os.environ.get("SPARK_REMOTE") or request.getfixturevalue("stack").spark_remote
