"""Garbage on the real engine: the rows of a dropped job are dropped once."""

import itertools
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from iscp_dagster import Mirror, SourceTable
from iscp_dagster.clickhouse.connect.barrier import Barrier
from iscp_dagster.clickhouse.connect.endpoint import ClickHouseEndpoint
from iscp_dagster.clickhouse.connect.failures import ClickHouseError
from iscp_dagster.clickhouse.tables.generations import IndexGenerations
from iscp_dagster.model.errors import IscpError
from iscp_dagster.model.jobs import JobID, NewJob
from iscp_dagster.planning.job_specs import make_job_specs
from iscp_dagster.upkeep.maintenance import JOB_RETENTION, delete_garbage, find_garbage
from support.errors import assert_names
from support.jobs.one_table import in_memory
from support.lake.row_writer import ANYWAY

NUMBERS = itertools.count()
TENANTS = ("eu", "us")
NOW = datetime(2026, 3, 4, tzinfo=timezone.utc)


class TwoTenants:
    """A declared index of two tenants, whose table holds a row of each."""

    def __init__(self, endpoint, folder):
        self.now = NOW
        self.database, path = f"garbage{next(NUMBERS)}", str(folder / "t")
        self.index = Mirror()
        self.source = SourceTable(
            f"{self.database}.t", key="id", tenant="tenant", path=path, indexes=[self.index]
        )
        self.name = JobID(db=self.database, table="t", job="mirror")
        rows = pa.table({"tenant": list(TENANTS), "id": [1, 1]})
        write_deltalake(path, rows, partition_by=["tenant"])
        self.deployment = replace(in_memory(lambda: self.now), endpoint=endpoint)
        self.register(*TENANTS)
        self.sql(f"CREATE DATABASE {self.database}")
        self.sql(
            f"CREATE TABLE {self.database}.t_mirror__rows "
            f"(tenant String, id Int64, {Barrier.create_initial(NOW).render_constraint('tenant')}) "
            "ENGINE = MergeTree PARTITION BY tenant ORDER BY id"
        )
        self.insert(*TENANTS)

    def sql(self, statement):
        client = self.deployment.endpoint.get_client()
        return client.query(statement, settings=ANYWAY).result_rows

    def register(self, *tenants):
        table_id = self.deployment.make_delta_log(self.source).get_table_id()
        (spec,) = make_job_specs(self.source, [self.index]).values()
        self.deployment.log.register_many(
            NewJob(tenant=tenant, name=self.name, table_id=table_id, spec=spec)
            for tenant in tenants
        )

    def insert(self, *tenants):
        values = ", ".join(f"('{tenant}', 1)" for tenant in tenants)
        self.sql(f"INSERT INTO {self.database}.t_mirror__rows VALUES {values}")

    def tenants(self):
        """Return the tenants that have rows in the table."""
        rows = self.sql(f"SELECT DISTINCT tenant FROM {self.database}.t_mirror__rows")
        return {tenant for (tenant,) in rows}

    def unregister(self, *tenants):
        for tenant in tenants:
            assert self.deployment.log.unregister(tenant, self.name)
        self.now += JOB_RETENTION + timedelta(seconds=1)

    def garbage(self, *, sources=None):
        """Return tenant and what is dropped of each job that is garbage."""
        garbage = find_garbage(self.deployment, self.declared(sources))
        return [(each.job.key.tenant, each.scope) for each in garbage]

    def collect(self, *, sources=None):
        """Collect, and return how many rows of the log were deleted."""
        declared = self.declared(sources)
        return delete_garbage(self.deployment, declared, find_garbage(self.deployment, declared))

    def declared(self, sources):
        return [self.source] if sources is None else sources

    def log_rows(self):
        """Return the tenants of the log's rows."""
        return [job.key.tenant for job in self.deployment.log.list_jobs(include_dropped=True)]


@pytest.fixture
def world(endpoint, tmp_path):
    world = TwoTenants(endpoint, tmp_path)
    yield world
    world.sql(f"DROP DATABASE {world.database}")


def test_what_is_young_not_declared_here_or_cannot_be_read_stays(world, tmp_path):
    assert timedelta(days=1) == JOB_RETENTION
    world.unregister("eu")
    world.now -= timedelta(seconds=2)
    assert (world.garbage(), world.collect()) == ([], 0)
    world.now += timedelta(seconds=2)
    assert world.garbage() == [("eu", "tenant")]
    assert (world.garbage(sources=[]), world.collect(sources=[])) == ([], 0)
    assert (world.log_rows(), world.tenants()) == (["eu", "us"], {"eu", "us"})
    # Whether the row must stay cannot be told.
    away = [replace(world.source, path=str(tmp_path / "unmounted"))]
    assert world.collect(sources=away) == 0
    assert world.log_rows() == ["eu", "us"]
    # A row that nothing keeps any more goes.
    assert world.collect() == 0
    without = [replace(world.source, indexes=[])]
    assert world.garbage(sources=without) == [("eu", "nothing")]
    assert world.collect(sources=without) == 1
    assert world.garbage(sources=without) == []
    assert (world.log_rows(), world.tenants()) == (["us"], {"us"})


def test_the_data_of_a_row_that_stays_is_dropped_once_for_each_registration(world):
    world.unregister("eu")
    assert world.garbage() == [("eu", "tenant")]
    assert world.collect() == 0
    assert (world.tenants(), world.log_rows()) == ({"us"}, ["eu", "us"])
    assert world.garbage() == []
    # These rows show that nothing is dropped a second time.
    world.insert("eu")
    assert world.collect() == 0
    assert (world.tenants(), world.log_rows()) == ({"eu", "us"}, ["eu", "us"])
    world.register("eu")
    assert world.garbage() == []
    world.unregister("eu")
    assert world.garbage() == [("eu", "tenant")]
    assert world.collect() == 0
    assert world.tenants() == {"us"}
    # The table goes with its last tenant, although the rows of the log stay.
    world.unregister("us")
    assert world.garbage() == [("us", "table")]
    assert world.collect() == 0
    assert world.sql(f"SHOW TABLES FROM {world.database}") == []
    assert (world.garbage(), world.log_rows()) == ([], ["eu", "us"])


def test_the_number_of_statements_does_not_depend_on_tenants(world, monkeypatch):
    """Nor is any tenant's data left, nor that of a tenant whose name is like another's."""
    calls, get_client = [], ClickHouseEndpoint.get_client

    class Counting:
        def __init__(self, client):
            self._client = client

        def __getattr__(self, name):
            if name in {"query", "command", "insert"}:
                calls.append(name)
            return getattr(self._client, name)

    counts = []
    for tenants in (["t1"], [f"it's {number}%" for number in range(40)]):
        world.register(*tenants)
        world.insert(*(tenant.replace("'", "''") for tenant in tenants))
        world.unregister(*tenants)
        calls.clear()
        with monkeypatch.context() as patched:
            patched.setattr(
                ClickHouseEndpoint, "get_client", lambda endpoint: Counting(get_client(endpoint))
            )
            assert world.collect() == 0
        counts.append(len(calls))
    assert counts[0] == counts[1]
    assert world.tenants() == set(TENANTS)
    assert world.garbage() == []


@pytest.mark.parametrize("error", [ClickHouseError, ValueError])
def test_one_whose_data_cannot_be_dropped_holds_up_no_other(world, monkeypatch, error):
    drop_tenants = IndexGenerations.drop_tenants

    def refuse_eu(data, column, tenants):
        if "eu" in tenants:
            raise error("eu is refused")
        drop_tenants(data, column, tenants)

    world.register("de")
    world.unregister("eu", "de")
    monkeypatch.setattr(IndexGenerations, "drop_tenants", refuse_eu)
    with pytest.raises(IscpError) as caught:
        world.collect()
    assert_names(str(caught.value), "eu is refused")
    assert [tenant for tenant, _ in world.garbage()] == ["eu"]
    monkeypatch.undo()
    assert world.collect() == 0
    assert world.tenants() == {"us"}
