"""The check of an index as Dagster gets it."""

import dagster as dg

from iscp_dagster import Mirror, SourceTable
from iscp_dagster.location.assets.checks import _build_evaluations
from iscp_dagster.model.errors import SourceError
from iscp_dagster.upkeep.verify_indexes import ComparisonFailure, IndexVerdict
from support.errors import assert_names

SOURCE = SourceTable("shop.orders", key="id", tenant="tenant", indexes=[Mirror()])


def test_a_tenant_that_could_not_be_compared_fails_beside_the_others():
    outcomes = [
        IndexVerdict(index="mirror", tenant="a", version=3, rows=2),
        ComparisonFailure(
            index="mirror", tenants=("b", "c"), error=SourceError("a file is lost"), as_of=3
        ),
    ]
    with dg.DagsterInstance.ephemeral() as instance:
        key = dg.AssetKey("mirror")
        evaluations = {
            each.partition: each
            for each in _build_evaluations(instance, SOURCE, key, ["a", "d"], outcomes)
        }
    results = {tenant: (each.passed, each.severity.name) for tenant, each in evaluations.items()}
    failed = (False, "ERROR")
    assert results == {"a": (True, "ERROR"), "b": failed, "c": failed, "d": (False, "WARN")}
    assert_names(evaluations["b"].description, "version 3", "a file is lost")
    assert evaluations["c"].description == evaluations["b"].description != ""
