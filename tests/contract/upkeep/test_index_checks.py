"""The check of an index as Dagster gets it."""

import dagster as dg

from iscp_dagster.location.assets.checks import _build_evaluations
from iscp_dagster.model.errors import SourceError
from iscp_dagster.upkeep.verify import ComparisonFailure, IndexVerdict


def test_a_tenant_that_could_not_be_compared_fails_beside_the_others():
    found = [
        IndexVerdict(index="mirror", tenant="a", version=3, rows=2),
        ComparisonFailure(
            index="mirror", tenants=("b", "c"), error=SourceError("a file is lost"), as_of=3
        ),
    ]
    with dg.DagsterInstance.ephemeral() as instance:
        told = list(_build_evaluations(instance, dg.AssetKey("mirror"), ["a", "d"], found))
    assert {each.partition: each.passed for each in told} == {
        "a": True,
        "b": False,
        "c": False,
        "d": False,
    }
    described = {each.partition: (each.severity.name, each.description) for each in told}
    failed = ("ERROR", "Could not be compared: as of version 3, a file is lost")
    assert described["b"] == described["c"] == failed
    assert described["d"] == ("WARN", "Nothing of this tenant is built yet.")
