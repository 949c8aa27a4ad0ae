"""On a Spark cluster tasks run twice: by speculation, or after their executor died."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from threading import Thread

import pytest
from faultproxy import TWICE, faulty
from nearspark import near, served
from sparkcluster import running_cluster
from tables import Table, deployment_at

from iscp_dagster import Mirror
from iscp_dagster.clickhouse.connect.endpoint import Endpoint
from iscp_dagster.delta.feed import ReadKind
from iscp_dagster.spark.session import disconnect
from iscp_dagster.sync.publish import Delivery

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(sys.platform != "linux", reason="a host has one loopback address only"),
]


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


@pytest.fixture(params=[keyed, append_only], ids=lambda make: make.__name__)
def due(request, clickhouse_url, cluster, tmp_path):
    """Make a table without Spark; return it and how the cluster will read its due range."""
    with near() as session:
        table, kind = request.param(deployment_at(clickhouse_url, session, tmp_path))
    return replace(table, deployment=deployment_at(clickhouse_url, cluster.remote, tmp_path)), kind


def behind(proxy, table):
    """Return the table, with writers that go through the proxy."""
    return replace(table, deployment=replace(table.deployment, endpoint=Endpoint.parse(proxy.url)))


def check(table):
    """Check that it is in step with each row once, even before ClickHouse has merged anything."""
    with near() as session:
        seen = replace(table, deployment=served(table.deployment, session))
        assert [each for each in seen.verdicts() if not each.agrees] == []
        held = seen.sql("SELECT count(*) FROM {t}")[0][0]
    view = f"{table.source.database}.{table.source.table}_mirror"
    client = table.deployment.endpoint.client()
    assert client.query(f"SELECT count() FROM {view}").result_rows == [(held,)]
    assert client.query(f"SELECT count() FROM {view}__rows").result_rows == [(held,)]


def followed(table):
    """Follow the table; return the one delivery."""
    (outcome,) = table.follow()
    assert isinstance(outcome, Delivery), outcome
    return outcome


def test_two_attempts_of_a_task_write_its_chunks_once(due, proxy):
    table, kind = due
    proxy.coming = [TWICE]
    slow = behind(proxy, table)
    outcome = followed(slow)
    assert (outcome.plan.kind, outcome.inserted) == (kind, 50)
    assert proxy.injected == [TWICE]
    # While the first attempt waited, the second wrote the same chunk under the same token.
    assert max(proxy.tokens.values()) == 2
    check(table)


def test_a_task_whose_executor_is_killed_writes_its_chunks_once(due, proxy, cluster):
    table, kind = due
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
