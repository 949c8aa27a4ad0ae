"""One shop for the tests of the GraphQL server that only read it, and a log for subscriptions."""

import pytest

from iscp_dagster.clickhouse.connect.endpoint import Endpoint
from iscp_dagster.joblog.sql.log import SqlLog
from support.lake.shop_indexes import Shop


@pytest.fixture(scope="session")
def shop(clickhouse_url):
    made = Shop(Endpoint.parse(clickhouse_url), database="shop")
    for index in made.indexes:
        made.build(index)
    return made


@pytest.fixture(scope="session")
def shop_client(shop, tmp_path_factory):
    return shop.client(tmp_path_factory.mktemp("tokens") / "tokens.json")


@pytest.fixture
def log(tmp_path):
    made = SqlLog(f"sqlite:///{tmp_path}/log.db")
    made.ensure()
    yield made
    made.engine.dispose()
