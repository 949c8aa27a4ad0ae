"""The service `Iscp` and the virtual object `Index`, invoked by HTTP through a real runtime."""

import re
import sys
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from typing import get_args

import pytest

from durable_invocations import service_app
from durable_invocations.client.errors import InvocationFailedError
from durable_invocations.runtime.retries import RetryPolicy
from iscp_dagster import Mirror
from iscp_dagster.api.jobs import Jobs
from iscp_dagster.joblog.sql.log import SqlLog
from iscp_dagster.jobservices import arguments
from iscp_dagster.jobservices.services import build_index_object, build_iscp_service
from iscp_dagster.jobservices.steps import Steps
from iscp_dagster.model.clock import get_utc_now
from iscp_dagster.model.errors import WaitError
from iscp_dagster.model.jobs import JobID
from runtime_support.endpoints.asgi_servers import uvicorn_of
from runtime_support.runtimes.live_runtime import running
from support.errors import assert_names, raises_naming
from support.jobs.one_table import commit, finish, in_memory, orders
from support.paths import DOCS
from support.services.stack import wait_for

PATIENT = RetryPolicy(initial=0.05, factor=1.0, cap=0.05, attempts=None)
MIRROR = "shop.orders/mirror"
ID = JobID(db="shop", table="orders", job="mirror")
EU = "eu/west"
SECONDS = 30


@pytest.fixture
def jobs(tmp_path):
    log = SqlLog(f"sqlite:///{tmp_path / 'log.sqlite'}")
    log.ensure()
    source = replace(orders(tmp_path), indexes=[Mirror()])
    commit(source, EU, "us")
    deployment = replace(in_memory(get_utc_now), log=log)
    return Jobs(deployment=deployment, sources=[source], cancel_runs=lambda _: None)


@contextmanager
def serve_jobs(jobs, port=0):
    steps = Steps(jobs=lambda: jobs)
    app = service_app(build_iscp_service(steps), build_index_object(steps))
    with uvicorn_of(app, port=port) as server:
        yield server


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    with running(tmp_path_factory.mktemp("runtime"), PATIENT) as runtime:
        yield runtime


@pytest.fixture
def client(live, jobs):
    with serve_jobs(jobs) as server:
        live.client.register(server.url, force=True)
        yield live.client


def call_in_vain(client, *call, **named):
    """Return the status and the reason with which a call fails."""
    with pytest.raises(InvocationFailedError) as failed:
        client.call(*call, **named)
    return failed.value.status, failed.value.reason


def test_a_job_is_registered_changed_paused_and_shown(client, jobs):
    job = {"job": MIRROR, "tenant": EU}
    for _ in range(2):
        answer = client.call("Iscp", "register", {**job, "spec": {"detail": {"priority": 3}}})
        assert answer == {**job, "registered": True}
    change = {"detail": {"priority": 7}}
    assert client.call("Iscp", "update", {**job, "spec": change}) == {**job, "changed": True}
    assert client.call("Iscp", "update", {**job, "spec": change}) == {**job, "changed": False}
    assert client.call("Iscp", "pause", job) == {**job, "changed": True}
    (status,) = client.call("Iscp", "status", job)
    assert (status["paused"], status["spec"]["detail"]["priority"]) == (True, 7)
    assert client.call("Iscp", "resume", job) == {**job, "changed": True}
    client.call("Iscp", "register", {"job": MIRROR, "tenant": "*"})
    statuses = client.call("Iscp", "status", {"job": MIRROR, "tenant": "*"})
    assert [status["tenant"] for status in statuses] == [EU, "us"]
    assert [job.key.tenant for job in jobs.list_jobs()] == [EU, "us"]


@pytest.mark.parametrize(
    "spec",
    [
        {"detail": {"consumer": {"type": "antigravity:geohash"}}},
        {"trigger": {"job_type": "antigravity:geohash"}},
    ],
    ids=["consumer", "trigger"],
)
def test_no_code_is_imported_because_a_request_names_it(client, jobs, spec):
    """Else everybody who reaches the runtime could have any module imported and object called."""
    client.call("Iscp", "register", {"job": MIRROR, "tenant": EU})
    spec = {"spec": spec}
    calls = [
        ("Iscp", {"job": "shop.orders/other", "tenant": EU, **spec}, {}),
        ("Iscp", {"job": MIRROR, "tenant": EU, **spec}, {}),
        ("Index", spec, {"key": f"{MIRROR}/{EU}"}),
    ]
    for service, argument, named in calls:
        for handler in ("register", "update"):
            status, reason = call_in_vain(client, service, handler, argument, **named)
            assert status == 400
            assert_names(reason, "antigravity:geohash")
    assert "antigravity" not in sys.modules
    (job,) = jobs.list_jobs()
    assert job.spec.detail.consumer.type == "mirror"


def test_an_index_is_named_by_its_key_also_of_a_tenant_with_a_slash(client, jobs):
    key = f"{MIRROR}/{EU}"
    named = {"tenant": EU, "job": MIRROR}
    assert client.call("Index", "register", key=key) == {**named, "registered": True}
    spec = {"spec": {"detail": {"priority": 2}}}
    assert client.call("Index", "update", spec, key=key) == {**named, "changed": True}
    assert client.call("Index", "pause", key=key) == {**named, "changed": True}
    assert client.call("Index", "resume", key=key) == {**named, "changed": True}
    status = client.call("Index", "status", key=key)
    assert (status["tenant"], status["spec"]["detail"]["priority"]) == (EU, 2)
    finish(jobs, jobs.sources[0], EU)
    assert client.call("Index", "wait", key=key) == 0


def test_a_wait_continues_after_its_service_was_down(live, jobs):
    with serve_jobs(jobs) as server:
        live.client.register(server.url, force=True)
        jobs.register_job("*", ID, jobs.get_default_spec(ID))
        for tenant in (EU, "us"):
            finish(jobs, jobs.sources[0], tenant)
        commit(jobs.sources[0], EU)
        sent = live.client.send("Iscp", "wait", {"table": "shop.orders"})
        wait_for(lambda: live.client.invocation(sent.id)["status"] == "suspended", SECONDS)
    port = int(server.url.rpartition(":")[2])
    wait_for(lambda: live.client.invocation(sent.id)["status"] == "backing off", SECONDS)
    finish(jobs, jobs.sources[0], EU)
    commit(jobs.sources[0], "us")
    with serve_jobs(jobs, port):
        # The version of the latest commit when the wait began.
        assert live.client.attach(sent.id, seconds=SECONDS) == 1


def test_a_wait_fails_at_its_timeout_or_for_a_paused_job(client, jobs):
    key = f"{MIRROR}/{EU}"
    client.call("Index", "register", key=key)
    status, reason = call_in_vain(client, "Index", "wait", {"timeout": 0.3}, key=key)
    assert status == 408
    assert_names(reason, "'mirror'", "'eu/west'")
    client.call("Index", "pause", key=key)
    status, reason = call_in_vain(client, "Iscp", "wait", {"table": "shop.orders", "tenant": EU})
    assert status == 409
    assert_names(reason, "iscp job resume")


def test_a_wait_for_one_index_ignores_the_others(client, jobs):
    other = replace(jobs.sources[0], indexes=[Mirror(), Mirror(name="second")])
    jobs = replace(jobs, sources=[other])
    jobs.register_job(EU, ID, jobs.get_default_spec(ID))
    finish(jobs, other, EU)
    assert jobs.wait("shop.orders", 0, EU, 0, "mirror") == 0
    steps = Steps(jobs=lambda: jobs)
    argument = arguments.WaitArgument(table="shop.orders", version=0, tenant=EU)
    assert_names(steps.find_lag(argument)[0], "'second'", "'eu/west'")
    jobs.unregister_job(EU, ID)
    with raises_naming(WaitError, "shop.orders", "iscp job register"):
        jobs.wait("shop.orders", 0, EU, 0, "mirror")


@pytest.mark.parametrize(
    ("call", "key", "status", "values"),
    [
        (("Iscp", "pause", {"job": MIRROR, "tenant": "jp"}), None, 404, [MIRROR, "jp"]),
        (("Iscp", "status", {"job": "mirror"}), None, 400, ["'mirror'"]),
        (("Iscp", "pause", {"job": MIRROR, "tenants": "eu"}), None, 400, ["tenants"]),
        (("Iscp", "register", {"job": MIRROR, "spec": {"x": 1}}), None, 400, ["'x'"]),
        (("Iscp", "wait", {"table": "shop.lost"}), None, 400, ["'shop.lost'"]),
        (("Iscp", "wait", {"table": "shop.orders", "timeout": 3e5}), None, 400, ["timeout"]),
        (("Index", "wait", {"timeout": -1}), f"{MIRROR}/us", 400, ["timeout"]),
        (("Index", "pause"), MIRROR, 400, [MIRROR, "database.table/job/tenant"]),
        (("Index", "status"), f"{MIRROR}/*", 400, [f"{MIRROR}/*", "database.table/job/tenant"]),
    ],
)
def test_an_impossible_call_fails_at_once(client, call, key, status, values):
    found_status, reason = call_in_vain(client, *call, key=key)
    assert found_status == status, reason
    assert_names(reason, *values)


def test_the_page_names_every_handler_and_every_field():
    page = (DOCS / "service-consumers.md").read_text(encoding="utf-8")
    steps = Steps(jobs=lambda: pytest.fail("opened"))
    lines = page[page.index("| handler |") :].split("\n\n")[0].splitlines()[2:]
    rows = [line.strip("|").split("|") for line in lines]
    listed = {name: row for row in rows for name in re.findall(r"`(\w+)`", row[0])}
    for column, service in ((1, build_iscp_service(steps)), (2, build_index_object(steps))):
        assert service.handlers.keys() == listed.keys()
        for name, handler in service.handlers.items():
            hint = handler.input.hint if handler.input else None
            kinds = [kind for kind in (hint, *get_args(hint)) if is_dataclass(kind)]
            names = {*re.findall(r"`(\w+)`", listed[name][column])} - {"iscp"}
            assert names == {field.name for kind in kinds for field in fields(kind)}, name
