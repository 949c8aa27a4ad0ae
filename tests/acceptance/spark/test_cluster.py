"""On a Spark cluster tasks are as many as its cores, and run twice: by speculation, or after their
executor died."""

import os
import signal
import sys
from dataclasses import replace
from threading import Thread

import pytest

from iscp_dagster import Mirror
from iscp_dagster.clickhouse.connect.endpoint import ClickHouseEndpoint
from iscp_dagster.delta.read_plans import ReadKind
from iscp_dagster.spark.session import count_cores, disconnect, get_shared_session
from iscp_dagster.sync.iteration.outcomes import RowDelivery
from support.lake.delta_tables import Table, deployment_at, one_by_one
from support.services.fault_proxy import TWICE, faulty
from support.services.stack import wait_for
from support.spark.cluster import HOSTS, running_cluster
from support.spark.fake_spark import NearSpark, near, served


def on_a_cluster(test):
    """Mark a test as one that starts eight processes, on several loopback addresses."""
    one = pytest.mark.skipif(sys.platform != "linux", reason="a host has one loopback address only")
    return pytest.mark.soak(one(test))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    disconnect()
    with running_cluster(tmp_path_factory.mktemp("cluster")) as found:
        yield found
        disconnect()


@pytest.fixture
def proxy(clickhouse_url):
    with faulty(clickhouse_url) as server:
        yield server


def make_table(deployment):
    """Make fifty rows to be read, for an index where only tokens prevent doubled rows."""
    table = Table.make(deployment, Mirror(append=True), key=())
    table.insert(0)
    table.follow()
    table.insert(*range(50))
    return table


@pytest.fixture
def table(clickhouse_url, cluster, tmp_path):
    """Make a table without Spark, which the cluster will read."""
    with near() as session:
        table = make_table(deployment_at(clickhouse_url, session, tmp_path))
    return replace(table, deployment=deployment_at(clickhouse_url, cluster.remote, tmp_path))


def behind(proxy, table):
    """Return the table, with writers that go through the proxy."""
    return replace(
        table, deployment=replace(table.deployment, endpoint=ClickHouseEndpoint.parse(proxy.url))
    )


def check(table):
    """Check that it is in step with each row once, even before ClickHouse has merged anything."""
    with near() as session:
        seen = replace(table, deployment=served(table.deployment, session))
        assert [each for each in seen.verdicts() if not each.agrees] == []
        held = seen.sql("SELECT count(*) FROM {t}")[0][0]
    view = f"{table.source.database}.{table.source.table}_mirror"
    client = table.deployment.endpoint.get_client()
    assert client.query(f"SELECT count() FROM {view}").result_rows == [(held,)]
    assert client.query(f"SELECT count() FROM {view}__rows").result_rows == [(held,)]


def check_delivery(outcome):
    """Check that it is of all rows of the tail."""
    assert isinstance(outcome, RowDelivery), outcome
    assert (outcome.plan.kind, outcome.inserted) == (ReadKind.TAIL, 50)


@on_a_cluster
def test_two_attempts_of_a_task_write_its_chunks_once(table, proxy):
    proxy.coming = [TWICE]
    check_delivery(*behind(proxy, table).follow())
    assert proxy.injected == [TWICE]
    # While the first attempt waited, the second wrote the same chunk under the same token.
    assert max(proxy.tokens.values()) == 2
    check(table)


@on_a_cluster
def test_a_task_whose_executor_is_killed_writes_its_chunks_once(table, proxy, cluster):
    proxy.coming = [TWICE]

    def kill():
        proxy.waits.wait(60)
        for process in cluster.executors():
            os.kill(process, signal.SIGKILL)

    killer = Thread(target=kill)
    killer.start()
    outcomes = behind(proxy, table).follow()
    killer.join()
    check_delivery(*outcomes)
    assert max(proxy.tokens.values()) >= 2
    check(table)


@on_a_cluster
def test_a_large_tail_is_written_by_all_cores_and_replayed_alike_by_fewer(
    table, proxy, cluster, spark_remote, monkeypatch
):
    large = get_shared_session(cluster.remote)
    wait_for(lambda: count_cores(large) == len(HOSTS), 60)

    def reconnect():
        disconnect()
        return get_shared_session(spark_remote)

    check_replay(table, proxy, large, reconnect, monkeypatch)


def test_a_large_tail_is_replayed_alike_by_fewer_cores(deployment, proxy, monkeypatch):
    check_replay(make_table(deployment), proxy, NearSpark(cores=len(HOSTS)), NearSpark, monkeypatch)


def check_replay(table, proxy, large, make_small, monkeypatch):
    """The number of tasks is recorded with the batch: a smaller Spark forms the same chunks."""
    monkeypatch.setattr("iscp_dagster.sync.reading.reader.SMALL_BYTES", 1)
    table = behind(proxy, table)
    deployment = replace(table.deployment, spark=lambda: large)
    found = one_by_one(deployment, table.source, table.iteration("a"), run_id="dies")
    written = next(found)
    found.close()
    check_delivery(written)
    deployment.log.recover_run_jobs({"dies"})
    (job,) = table.jobs()
    assert job.batch.layout["partitions"] == len(HOSTS)
    first = {token: count for token, count in proxy.tokens.items() if token}
    assert len(first) == len(HOSTS)
    small = make_small()
    assert count_cores(small) < len(HOSTS)
    replace(table, deployment=replace(deployment, spark=lambda: small)).follow()
    again = {token: count for token, count in proxy.tokens.items() if token}
    assert again.keys() == first.keys()
    assert all(again[token] > first[token] for token in first)
    check(table)
