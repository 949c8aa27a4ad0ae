"""Other people's clients and audits, and a served table for them."""

import pytest

from support.clients import npm
from support.clients.trades_server import serving_trades


@pytest.fixture(scope="session")
def packages(tmp_path_factory):
    """Install the packages of npm; skip where they cannot be had."""
    return npm.install_packages(tmp_path_factory.mktemp("npm"))


@pytest.fixture
def trades(clickhouse_url, tmp_path):
    with serving_trades(clickhouse_url, tmp_path) as served:
        yield served
