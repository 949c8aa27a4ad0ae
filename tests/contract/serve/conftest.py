"""One shop for the tests that only read it, and a changes index with its log for subscriptions."""

import pytest

from iscp_dagster.clickhouse.connect.endpoint import ClickHouseEndpoint
from iscp_dagster.joblog.sql.log import SqlLog
from support.lake.shop_indexes import Shop
from support.live.changes_index import ImageTable, reach, register
from support.live.subscription_server import serving


@pytest.fixture(scope="session")
def shop(clickhouse_url):
    shop = Shop(ClickHouseEndpoint.parse(clickhouse_url), database="shop")
    for index in shop.indexes:
        shop.build(index)
    return shop


@pytest.fixture(scope="session")
def shop_client(shop, tmp_path_factory):
    return shop.client(tmp_path_factory.mktemp("tokens") / "tokens.json")


class ChangesTable:
    """The rows of a changes index and the ISCP log of its jobs, with the newest version."""

    def __init__(self, log, images):
        self.log, self.images, self.version = log, images, 10

    def serve(self, **options):
        return serving(self.log, self.images.endpoint, **options)

    def change(self, tenant, *changes):
        """Write one commit of (key, operation, before, after), and confirm it."""
        self.version += 1
        self.images.write(
            tenant, [(self.version, number, *each) for number, each in enumerate(changes)]
        )
        reach(self.log, self.version, tenant)


@pytest.fixture(scope="session")
def images(clickhouse_url):
    return ImageTable(ClickHouseEndpoint.parse(clickhouse_url), "live")


@pytest.fixture
def table(images, tmp_path):
    """Two tenants at version 10, with three rows each."""
    log = SqlLog(f"sqlite:///{tmp_path}/log.db")
    log.ensure()
    register(log, "acme", "globex")
    for tenant in ("acme", "globex"):
        images.begin(tenant, 10, [(key, key * 10) for key in (1, 2, 3)])
    reach(log, 10, "acme", "globex")
    yield ChangesTable(log, images)
    log.engine.dispose()
