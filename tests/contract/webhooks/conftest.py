"""An empty outbox on SQLite and on PostgreSQL, and an endpoint for processes of `iscp send`."""

import os

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
    outbox = Outbox(open_engine(url), clock=watch)
    outbox.ensure_log_tables()
    yield outbox
    METADATA.drop_all(outbox.engine)
    outbox.engine.dispose()


@pytest.fixture
def declare_endpoint(tmp_path):
    """Give a function that declares the endpoint `alerts`, and returns options for `iscp send`."""

    def declare(url, log_url, **options):
        values = {"url": url, "secrets": ["ALERTS_SECRET"], "allow": ["127.0.0.1/32"], **options}
        (tmp_path / "declared_endpoints.py").write_text(
            f"from iscp_dagster import Endpoint\n\nalerts = Endpoint('alerts', **{values!r})\n"
        )
        variables = {name: text for name, text in os.environ.items() if name[:5] != "ISCP_"}
        variables |= {"ISCP_ASSETS": "declared_endpoints", "ISCP_LOG_URL": log_url}
        return {"cwd": tmp_path, "env": variables}

    return declare
