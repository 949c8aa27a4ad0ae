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
from support.spark.fake_spark import near, served

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="a host has one loopback address only"
)


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


def keyed(deployment):
    """Make fifty rows to be read as a snapshot."""
    table = Table.make(deployment, Mirror())
    table.insert(*range(50))
    return table, ReadKind.SNAPSHOT


def append_only(deployment):
    """Make fifty more rows, for an index where only tokens prevent doubled rows."""
    table = Table.make(deployment, Mirror(append=True), key=())
    table.insert(0)
    table.follow()
    table.insert(*range(50))
    return table, ReadKind.TAIL


@pytest.fixture
def made(clickhouse_url, cluster, tmp_path):
    """Make a table without Spark; return it and how the cluster will read its due range."""

    def make(kind_of_table):
        with near() as session:
            table, kind = kind_of_table(deployment_at(clickhouse_url, session, tmp_path))
        deployment = deployment_at(clickhouse_url, cluster.remote, tmp_path)
        return replace(table, deployment=deployment), kind

    return make


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


def followed(table):
    """Follow the table; return the one delivery."""
    (outcome,) = table.follow()
    assert isinstance(outcome, RowDelivery), outcome
    return outcome


def test_two_attempts_of_a_task_write_its_chunks_once(made, proxy):
    table, kind = made(append_only)
    proxy.coming = [TWICE]
    slow = behind(proxy, table)
    outcome = followed(slow)
    assert (outcome.plan.kind, outcome.inserted) == (kind, 50)
    assert proxy.injected == [TWICE]
    # While the first attempt waited, the second wrote the same chunk under the same token.
    assert max(proxy.tokens.values()) == 2
    check(table)


def test_a_task_whose_executor_is_killed_writes_its_chunks_once(made, proxy, cluster):
    table, kind = made(keyed)
    proxy.coming = [TWICE]

    def kill():
        proxy.waits.wait(60)
        for process in cluster.executors():
            os.kill(process, signal.SIGKILL)

    killer = Thread(target=kill)
    killer.start()
    outcome = followed(behind(proxy, table))
    killer.join()
    assert (outcome.plan.kind, outcome.inserted) == (kind, 50)
    assert max(proxy.tokens.values()) >= 2
    check(table)


def test_a_large_tail_is_written_by_all_cores_and_replayed_alike_by_fewer(
    made, proxy, cluster, spark_remote, monkeypatch
):
    """The number of tasks is recorded with the batch: a smaller Spark forms the same chunks."""
    table, kind = made(append_only)
    wait_for(lambda: count_cores(get_shared_session(cluster.remote)) == len(HOSTS), 60)
    monkeypatch.setattr("iscp_dagster.sync.reading.reader.SMALL_BYTES", 1)
    large = behind(proxy, table)
    iteration = large.iteration("a")
    found = one_by_one(large.deployment, large.source, iteration, run_id="dies")
    written = next(found)
    found.close()
    assert isinstance(written, RowDelivery), written
    assert (written.plan.kind, written.inserted) == (kind, 50)
    large.deployment.log.recover({"dies"})
    (job,) = table.jobs()
    assert job.batch.layout["partitions"] == len(HOSTS)
    first = {token: count for token, count in proxy.tokens.items() if token}
    assert len(first) == len(HOSTS)
    disconnect()
    small = replace(large.deployment, spark=lambda: get_shared_session(spark_remote))
    assert count_cores(small.spark()) < len(HOSTS)
    followed(replace(large, deployment=small))
    again = {token: count for token, count in proxy.tokens.items() if token}
    assert again.keys() == first.keys()
    assert all(again[token] > first[token] for token in first)
    check(table)
