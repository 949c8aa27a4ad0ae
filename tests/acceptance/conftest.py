"""Deployments of real services: with the stand-in for Spark, and with Spark itself."""

import pytest

from support.lake.delta_tables import deployment_at

SLOW = {"deployments", "events", "histories", "iterations", "location", "spark"}
"""The folders whose tests need the stack or a Spark."""


def pytest_itemcollected(item):
    """Mark their tests, and give ten minutes to those that name no time of their own."""
    if item.path.parent.name in SLOW:
        item.add_marker("slow")
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture
def deployment(clickhouse_url, near_spark, tmp_path):
    """Return a deployment for tests around Spark: claims, tokens, staging, fences."""
    return deployment_at(clickhouse_url, near_spark, tmp_path)


@pytest.fixture
def spark_deployment(clickhouse_url, spark_remote, tmp_path):
    """Return a deployment for tests of what Spark does, or Delta in it."""
    return deployment_at(clickhouse_url, spark_remote, tmp_path)
