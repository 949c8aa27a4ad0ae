"""The maximum number of tenants and runs, in a Dagster with SQLite storage."""

import sqlite3
import sys

import pytest
import sqlalchemy as sa
from dagster import DagsterInstance, DagsterRun

from iscp_dagster import Mirror, SourceTable
from iscp_dagster.location.names import get_partitions_name
from iscp_dagster.location.sensor.runner import add_partitions
from iscp_dagster.runs.run_names import DISPATCH_TAG, find_runs

SOURCE = SourceTable("shop.orders", key="id", tenant="region", indexes=[Mirror()])
MANY = [f"number {number}" for number in range(40_000)]
SQLITES_OWN = 32_766
"""SQLite's default limit on values in one statement."""


@pytest.fixture
def instance(tmp_path):
    def limit(connection, _):
        if isinstance(connection, sqlite3.Connection) and sys.version_info >= (3, 11):
            connection.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, SQLITES_OWN)

    sa.event.listen(sa.pool.Pool, "connect", limit)
    quiet = {"telemetry": {"enabled": False}}
    with DagsterInstance.local_temp(str(tmp_path), overrides=quiet) as instance:
        yield instance
    sa.event.remove(sa.pool.Pool, "connect", limit)


def test_forty_thousand_tenants_become_partitions_once(instance):
    for tenants in (MANY, [*MANY, "another"]):
        add_partitions(instance, [SOURCE], {SOURCE.name: tenants})
        partitions = instance.get_dynamic_partitions(get_partitions_name(SOURCE))
        assert sorted(partitions) == sorted(tenants)


def test_two_runs_are_found_by_forty_thousand_names(instance):
    for run_id, tags in ((MANY[1], {}), ("another", {DISPATCH_TAG: MANY[-1]})):
        instance.add_run(DagsterRun(job_name="sync_shop_orders", run_id=run_id, tags=tags))
    assert {run.run_id for run in find_runs(instance, MANY)} == {MANY[1], "another"}
