"""People's own assets take the `spark` resource, from which the project takes its sessions."""

from __future__ import annotations

import re

import dagster as dg
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from iscp_dagster import Mirror, SourceTable, build_definitions, resources_from_environment
from iscp_dagster.location.resources.iscp import Iscp
from iscp_dagster.location.resources.spark import Spark
from support.jobs.one_table import name_deployment
from support.paths import ROOT

DOCS = (ROOT / "docs" / "library.md").read_text()
EXAMPLE = re.findall(r"```python\n(.*?)```", DOCS, re.DOTALL)[1]


@pytest.fixture
def environment(monkeypatch, tmp_path, near_spark):
    """Name a deployment whose Spark is a stand-in; return its lake."""
    name_deployment(monkeypatch, tmp_path)
    return tmp_path / "lake"


def materialize(definitions, key):
    """Materialize one asset as Dagster does; return the run's result."""
    with dg.DagsterInstance.ephemeral() as instance:
        job = definitions.resolve_implicit_global_asset_job_def()
        return job.execute_in_process(instance=instance, asset_selection=[dg.AssetKey(key)])


def test_the_documented_asset_reads_the_table_by_the_spark_resource(environment):
    rows = pa.table({"id": pa.array(range(7), pa.int64())})
    write_deltalake(str(environment / "shop" / "orders"), rows)
    namespace: dict[str, object] = {}
    exec(EXAMPLE, namespace)
    result = materialize(namespace["defs"], "counted_orders")
    (event,) = result.asset_materializations_for_node("counted_orders")
    assert event.metadata["orders"].value == 7


def test_deployments_take_their_sessions_from_the_same_resource(environment, monkeypatch):
    ended = []

    class Session:
        def stop(self):
            ended.append(self)

    shared, module = object(), "iscp_dagster.location.resources.spark"
    monkeypatch.setattr(f"{module}.create_private_session", lambda *_: Session())
    monkeypatch.setattr(f"{module}.get_shared_session", lambda *_: shared)
    sessions = []

    @dg.asset
    def own(spark: Spark, iscp: Iscp) -> None:
        sessions.append(spark.spark_session)
        sessions.extend([iscp.create_deployment().spark(), spark.open_shared_session()])

    orders = SourceTable("shop.orders", key="id", indexes=[Mirror()])
    resources = resources_from_environment()
    assert resources["iscp"].spark is resources["spark"]
    base = build_definitions([orders], resources)
    assert materialize(dg.Definitions.merge(base, dg.Definitions(assets=[own])), "own").success
    assert sessions[1:] == [shared, shared]
    # The asset's private session ended with the run.
    assert ended == sessions[:1]
