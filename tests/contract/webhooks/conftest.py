"""An empty outbox on SQLite and on PostgreSQL."""

import pytest

from iscp_dagster.joblog.sql.engine import open_engine
from iscp_dagster.joblog.sql.tables import METADATA
from iscp_dagster.webhooks.outbox import Outbox
from runtime_support.manual_clock import Watch


@pytest.fixture
def watch():
    return Watch(1_000)


@pytest.fixture(params=["sqlite", "postgresql"])
def outbox(request, tmp_path, watch):
    url = f"sqlite:///{tmp_path}/log.db"
    if request.param == "postgresql":
        url = request.getfixturevalue("postgres")
    made = Outbox(open_engine(url), clock=watch)
    made.ensure()
    yield made
    METADATA.drop_all(made.engine)
    made.engine.dispose()
