"""The examples of docs/service-consumers.md, carried out."""

import json
import re

import pytest

from durable_invocations import InvocationFailedError, service_app, testing
from iscp_dagster.api.jobs import Jobs
from iscp_dagster.jobservices.services import build_index_object, build_iscp_service
from iscp_dagster.jobservices.steps import Steps
from iscp_dagster.model.declared.linking.attach import Declarations
from iscp_dagster.serviceconsumers.runtime_client import RuntimeClient
from runtime_support.runtimes.live_runtime import running
from support.errors import raises_naming
from support.lake.delta_tables import Table, deployment_at
from support.paths import DOCS
from support.services.stack import wait_for

PAGE = (DOCS / "service-consumers.md").read_text(encoding="utf-8")
SECONDS = 60
ROWS = "CREATE TABLE {t} (customer STRING, id BIGINT, item STRING) USING delta"
FEED = "TBLPROPERTIES (delta.enableChangeDataFeed = true, delta.enableInCommitTimestamps = true)"


def run_block(title, **changes):
    """Run the page's code of that title, with texts replaced; return its names."""
    (code,) = re.findall(rf'^```python title="{title}"\n(.*?)^```$', PAGE, re.MULTILINE | re.DOTALL)
    for old, new in changes.items():
        assert old in code
        code = code.replace(old, str(new))
    names = {}
    exec(compile(code, title, "exec"), names)
    return names


@pytest.fixture
def live(tmp_path):
    with running(tmp_path) as runtime:
        yield runtime


@pytest.fixture
def orders(live, own_clickhouse_url, near_spark, tmp_path):
    """Make the example's table, and serve its handler."""
    booked = {"/tmp/booked.txt": tmp_path / "booked.txt"}
    url = live.serve(run_block("orders_service.py", **booked)["app"])
    placed = {"http://127.0.0.1:9080": url, "/tmp/lake/orders": tmp_path / "lake" / "orders"}
    declared = run_block("assets/orders.py", **placed)
    (source,) = Declarations.of(declared.values()).build_tables()
    services = {"open_runtime": lambda: RuntimeClient(live.client)}
    deployment = deployment_at(own_clickhouse_url, near_spark, tmp_path, **services)
    table = Table(deployment, source)
    table.sql(f"{ROWS} PARTITIONED BY (customer) {FEED}")
    return table


def insert(table, customer, *ids):
    values = ", ".join(f"('{customer}', {id_}, 'toner')" for id_ in ids)
    table.sql(f"INSERT INTO {{t}} VALUES {values}")


def test_each_order_is_booked_once(orders, tmp_path):
    insert(orders, "acme", 1, 2)
    insert(orders, "globex", 1)
    orders.follow()
    orders.sql("DELETE FROM {t} WHERE customer = 'acme' AND id = 2")
    orders.follow()
    assert sorted((tmp_path / "booked.txt").read_text().splitlines()) == [
        "acme 1 upsert",
        "acme 2 delete",
        "acme 2 upsert",
        "globex 1 upsert",
    ]
    names = {job.key.job_name for job in orders.jobs()}
    assert names == {"mirror", "orders_on_changes"}


def test_a_test_calls_the_handler_with_the_object_that_the_page_shows(tmp_path):
    (batch,) = re.findall(r"^```json\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    booked = {"/tmp/booked.txt": tmp_path / "booked.txt"}
    with testing.running(run_block("orders_service.py", **booked)["orders"]) as client:
        assert client.call("Orders", "on_changes", json.loads(batch), seconds=SECONDS) == 2
    assert (tmp_path / "booked.txt").read_text() == "acme 1 upsert\nacme 2 delete\n"


def test_handlers_register_a_job_wait_verify_pause_and_resume(orders, live):
    insert(orders, "acme", 1, 2)
    jobs = Jobs(deployment=orders.deployment, sources=[orders.source], cancel_runs=lambda _: None)
    steps = Steps(jobs=lambda: jobs)
    for app in (
        service_app(build_iscp_service(steps), build_index_object(steps)),
        run_block("onboarding.py")["app"],
        run_block("nightly.py")["app"],
    ):
        live.client.register(live.serve(app))
    sent = live.client.send("Onboarding", "begin", "acme")
    wait_for(orders.jobs, SECONDS)
    orders.follow()
    assert live.client.attach(sent.id, seconds=SECONDS) == {"version": 1, "agrees": True}
    mirror = {"job": "shop.orders/mirror", "tenant": "acme"}
    report = live.client.call("Iscp", "verify", {"index": ["shop.orders"], "tenant": "acme"})
    (index,) = report["indexes"]
    assert (report["agrees"], index["index"], index["rows"]) == (True, "shop.orders/mirror", 2)
    (job,) = live.client.call("Iscp", "status", mirror)
    assert (job["state"], job["watermark"]["version"]) == ("completed", 1)
    assert live.client.call("Nightly", "check", "shop.orders/mirror/acme", seconds=SECONDS) is True
    (job,) = live.client.call("Iscp", "status", mirror)
    assert not job["paused"]
    with raises_naming(InvocationFailedError, "shop.orders/other"):
        live.client.call("Nightly", "check", "shop.orders/other/acme", seconds=SECONDS)
