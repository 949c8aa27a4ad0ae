"""Deployments of real services: with the stand-in for Spark, and with Spark itself."""

from functools import cache

import pytest

from iscp_dagster.spark.session import create_private_session
from support.lake.delta_tables import deployment_at
from support.lake.golden_histories import WRITER_SETTINGS, KeptSpark

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


@pytest.fixture
def kept_spark(request, tmp_path):
    """Give a writer for tables that only Spark can write: what it did once, from an archive.

    `ISCP_WRITE_HISTORIES=1` has Spark do it and writes the archive, named as the test.
    """

    @cache
    def connect():
        return create_private_session(request.getfixturevalue("spark_remote"), WRITER_SETTINGS)

    name = f"{request.path.stem}/{request.node.name}"
    session = KeptSpark(name, connect, tmp_path / "kept")
    yield session
    session.close()
