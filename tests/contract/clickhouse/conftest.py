"""The embedded ClickHouse, as the tests of index tables address it."""

import pytest

from iscp_dagster.clickhouse.connect.endpoint import ClickHouseEndpoint


@pytest.fixture(scope="session")
def endpoint(clickhouse_url) -> ClickHouseEndpoint:
    return ClickHouseEndpoint.parse(clickhouse_url)
