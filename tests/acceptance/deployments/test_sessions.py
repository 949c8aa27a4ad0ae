"""Spark sessions: who gets one, and that their Python workers stay few over many runs."""

import asyncio
import errno
import os
import signal
import socket
import struct
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from ipaddress import ip_address
from urllib.parse import urlsplit

import psutil
import pytest

from iscp_dagster import Mirror
from iscp_dagster.delta.read_plans import ReadKind
from iscp_dagster.local.services.rpc import Rpc, RpcError
from iscp_dagster.local.services.settings import SPARK
from iscp_dagster.local.services.spark_health import SparkHealth
from iscp_dagster.local.spark.daemon import IDLE_SECONDS, PRELOADED
from iscp_dagster.model.errors import UnavailableError
from iscp_dagster.model.states import JobState
from iscp_dagster.spark.session import create_private_session, disconnect, get_shared_session
from iscp_dagster.sync.iteration.outcomes import RowDelivery
from support.errors import assert_names, raises_naming
from support.lake.delta_tables import Table, deployment_at, rows
from support.services.stack import running_stack, wait_for
from support.spark.fake_spark import NearSpark
from support.spark.workers import find_daemons

WARM_UP = SHORT = 2, 1
SOAK, VERIFIES = 1000, 3
GROWTH = 1.5
MIB = 2**20
TIME_ZONE = "spark.sql.session.timeZone"
DAEMONS = """
import os
from iscp_dagster.spark.session import get_shared_session
from support.spark.workers import find_daemons
print(find_daemons(get_shared_session(os.environ["SPARK_REMOTE"])))
"""


@pytest.fixture
def own_stack(tmp_path):
    """Run a Spark that only this worker uses: its Python processes are counted, or it is killed."""
    with running_stack(tmp_path / "home", (SPARK,)) as started:
        yield started


@pytest.fixture
def deployment(proxy, stack, tmp_path):
    return deployment_at(proxy.url, stack.spark_remote, tmp_path)


@pytest.fixture
def own_deployment(proxy, own_stack, tmp_path):
    return deployment_at(proxy.url, own_stack.spark_remote, tmp_path)


def python_processes(stack):
    """Return the daemons and workers of Spark's executors."""
    found = psutil.Process(stack.pid(SPARK)).children(recursive=True)
    return [each for each in found if "python" in each.name()]


def daemons(stack):
    python = python_processes(stack)
    pids = {each.pid for each in python}
    return [each for each in python if each.ppid() not in pids]


def resident(stack):
    """Return the MiB of all Python processes; one that has just ended counts as 0."""
    sizes = 0
    for each in python_processes(stack):
        try:
            sizes += each.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return sizes / MIB


def make_table(deployment):
    """Make a table that is written without Spark, whose part is to read it."""
    return Table.make(deployment, Mirror(), writer=NearSpark())


def work(table, iterations, verifies, every=lambda: None):
    """Run iterations and verifies, each with its own connection, like a process of its own."""
    tenants = [f"t{number}" for number in range(iterations)]
    table.sql("INSERT INTO {t} VALUES " + ", ".join(rows(1, tenant=each) for each in tenants))
    for tenant in tenants:
        disconnect()
        (outcome,) = table.run(table.iteration(tenant), f"run of {tenant}")
        assert isinstance(outcome, RowDelivery), outcome
        assert outcome.plan.kind is ReadKind.SNAPSHOT
        every()
    for _ in range(verifies):
        disconnect()
        assert all(each.agrees for each in table.verdicts())
        every()


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_a_thousand_iterations_leave_no_workers_behind(own_deployment, own_stack, record_property):
    work(make_table(own_deployment), *WARM_UP)
    most, held = len(daemons(own_stack)), resident(own_stack)
    seen = []
    work(
        make_table(own_deployment),
        SOAK,
        VERIFIES,
        lambda: seen.append((len(daemons(own_stack)), resident(own_stack))),
    )
    counts, sizes = zip(*seen, strict=True)
    record_property("daemons", f"{most}, at most {max(counts)}")
    record_property("MiB", f"{held:.0f}, at most {max(sizes):.0f}")
    assert max(counts) <= most
    assert max(sizes) <= held * GROWTH


def test_processes_iterations_and_verifies_share_one_session_and_its_workers(deployment, stack):
    shared = find_daemons(deployment.spark())
    assert len(shared) == 1
    found = subprocess.run(
        [sys.executable, "-c", DAEMONS],
        env={**stack.environment, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
        capture_output=True,
        text=True,
    )
    assert found.stdout == f"{shared}\n"
    # They cannot open a session of their own.
    work(make_table(replace(deployment, private_spark=None)), *SHORT)
    assert find_daemons(deployment.spark()) == shared


def test_a_session_that_the_server_closed_is_followed_by_another(stack):
    # With these settings, others do not share it.
    join = partial(get_shared_session, stack.spark_remote, {"spark.sql.shuffle.partitions": "7"})
    first = join()
    name = first.session_id
    first.stop()
    assert join().session_id == name, "it was left to the others"
    join().client.release_session()
    second = join()
    assert second.session_id != name
    assert second.range(3).count() == 3
    disconnect()
    assert join().session_id == second.session_id


def test_what_a_users_code_sets_in_its_session_nobody_else_sees(deployment, stack):
    before = deployment.spark().conf.get(TIME_ZONE)
    with deployment.open_private_session() as session:
        session.conf.set(TIME_ZONE, "Asia/Tokyo")
        session.range(1).createOrReplaceTempView("mine")
        assert deployment.spark().conf.get(TIME_ZONE) == before
        assert not deployment.spark().catalog.tableExists("mine")
    assert session.is_stopped


@pytest.mark.parametrize("remote", ["sc://localhost:{}", "sc://localhost:{}/;token=guessed"])
def test_whoever_lacks_the_token_is_refused(stack, remote):
    address = remote.format(port_of(stack))
    for session in (get_shared_session, create_private_session):
        with raises_naming(UnavailableError, f"localhost:{port_of(stack)}", "token") as refused:
            session(address)
        assert "guessed" not in str(refused.value)
    assert_names(asyncio.run(SparkHealth(address).find_problem(0)), "token")


async def test_a_spark_that_answers_runs_a_job_to_show_its_health(stack):
    health = SparkHealth(stack.spark_remote)
    for _ in range(3):
        assert await health.find_problem(0) == ""
    assert health.jobs == 1


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
@pytest.mark.parametrize("call", ["AnalyzePlan", "ExecutePlan", "AddArtifacts", "Config"])
def test_no_call_is_answered_without_the_token(stack, host, call):
    with raises_naming(RpcError, "token"):
        Rpc(f"{host}:{port_of(stack)}").call(f"/spark.connect.SparkConnectService/{call}", b"", 30)


def test_nobody_can_listen_where_localhost_leads_first(stack):
    assert "sc://localhost:" in stack.spark_remote
    with socket.socket(socket.AF_INET6) as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with raises_naming(OSError, f"Errno {errno.EADDRINUSE}"):
            other.bind(("::1", port_of(stack)))


def test_sparks_other_ports_are_this_machines_and_ask_for_a_secret(deployment, stack):
    deployment.spark().range(10).mapInArrow(lambda batches: batches, "id bigint").count()
    driver = psutil.Process(stack.pid(SPARK))
    for process in (driver, *driver.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            assert all(ip_address(ip).is_loopback for ip, _ in listening(process)), process
    others = {port for _, port in listening(driver)} - {port_of(stack)}
    assert others
    assert [port for port in others if b"SaslMessage" not in ask_as_a_stranger(port)] == []


def port_of(stack):
    return urlsplit(stack.service(SPARK).address).port


def listening(process):
    found = process.net_connections("inet")
    return [
        (each.laddr.ip.removeprefix("::ffff:"), each.laddr.port)
        for each in found
        if each.status == psutil.CONN_LISTEN
    ]


def ask_as_a_stranger(port):
    """Return the answer of Spark's own protocol to an unauthenticated request."""
    request, body = 3, b"a request"
    message = struct.pack(">bqi", request, 1, len(body)) + body
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(struct.pack(">q", 8 + len(message)) + message)
        return connection.recv(65_536)


def test_workers_begin_with_what_tasks_import(stack):
    def missing(batches, names=PRELOADED):
        import sys

        for batch in batches:
            absent = [name for name in names if name not in sys.modules]
            yield type(batch).from_pydict({"said": [" ".join(absent)] * batch.num_rows})

    # A new session, whose workers have imported nothing by themselves yet.
    session = create_private_session(stack.spark_remote)
    try:
        found = session.range(0, 2, 1, 2).mapInArrow(missing, "said string").collect()
    finally:
        session.stop()
    assert [row.said for row in found] == ["", ""]


@pytest.mark.soak
def test_a_private_sessions_workers_end_with_it(stack):
    session = create_private_session(stack.spark_remote)
    before = {each.pid for each in daemons(stack)}
    session.range(10).mapInArrow(lambda batches: batches, "id bigint").count()
    (mine,) = [each for each in daemons(stack) if each.pid not in before]
    session.stop()
    # Spark ends its workers a minute after their last task.
    wait_for(lambda: not mine.is_running(), 60 + 3 * IDLE_SECONDS, lambda: str(mine))


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore:.RETRIES_EXCEEDED")
def test_spark_is_killed_in_the_middle_of_an_iteration(own_deployment, proxy, own_stack):
    """Its Python workers go with it, and the next iteration uses the Spark that is started anew."""
    table = make_table(own_deployment)
    table.insert(1, 2)
    workers = python_processes(own_stack)
    proxy.hold()
    with ThreadPoolExecutor(1) as pool:
        outcomes = pool.submit(table.follow)
        wait_for(lambda: proxy.held, 60)
        os.kill(own_stack.pid(SPARK), signal.SIGKILL)
        proxy.release()
        with raises_naming(UnavailableError):
            outcomes.result()
    (job,) = table.jobs()
    assert (job.state, job.status.code) == (JobState.COMPLETED, UnavailableError.code)
    own_stack.await_restart(SPARK, 1)
    assert workers
    assert not any(each.is_running() for each in workers)
    table.materialize()
    table.check()
