"""Deployments of real services: with the stand-in for Spark, and with Spark itself."""

import pytest
from tables import deployment_at


@pytest.fixture
def deployment(clickhouse_url, near_spark, tmp_path):
    """Return a deployment for tests around Spark: claims, tokens, staging, fences."""
    return deployment_at(clickhouse_url, near_spark, tmp_path)


@pytest.fixture
def spark_deployment(clickhouse_url, spark_remote, tmp_path):
    """Return a deployment for tests of what Spark does, or Delta in it."""
    return deployment_at(clickhouse_url, spark_remote, tmp_path)
