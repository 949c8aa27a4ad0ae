"""The job API takes the jobs of views and event triggers as those of indexes."""

from dataclasses import replace

import pytest

from iscp_dagster import Changes, Mirror, SourceTable, SpecUpdate, Trigger, View
from iscp_dagster.api.jobs import Jobs
from iscp_dagster.model.declared.linking.attach import attach_to_tables
from iscp_dagster.model.errors import ConfigError, WaitError
from iscp_dagster.model.jobs import JobID
from iscp_dagster.planning.job_specs import make_job_name, make_job_spec
from support.errors import raises_naming
from support.jobs.one_table import Clock, commit, finish, in_memory, orders

LARGE = JobID(db="shop", table="orders", job="large")


@pytest.fixture
def source(tmp_path):
    table = orders(tmp_path, indexes=[Mirror()])
    big = View("big", of=table, where="amount > 100")
    large = Trigger("large", on=big, match="amount > 500", priority=4)
    (source,) = attach_to_tables([table], [big], [large])
    commit(source, "eu")
    return source


@pytest.fixture
def jobs(source):
    return Jobs(deployment=in_memory(Clock()), sources=[source], cancel_runs=print)


@pytest.fixture
def registered(jobs, source):
    """Register a job of every index, view and trigger for tenant eu."""
    for consumer in source.consumers:
        jobs.register_job("eu", make_job_name(source, consumer), make_job_spec(source, consumer))


def test_a_trigger_s_job_has_the_declared_priority_until_it_is_given_another(jobs, registered):
    job = jobs.get_job("eu", LARGE)
    assert (job.spec.detail.consumer.type, job.priority) == ("trigger", 4)
    jobs.update_job_spec("eu", LARGE, SpecUpdate(priority=9))
    assert jobs.get_job("eu", LARGE).priority == 9


@pytest.mark.parametrize(
    ("name", "update", "values"),
    [
        ("large", SpecUpdate(type="mirror"), ["trigger", "'mirror'"]),
        ("large", SpecUpdate(columns=("id",)), ["trigger", "columns"]),
        ("large", SpecUpdate(options={"match": "x"}), ["trigger", "options"]),
        ("mirror", SpecUpdate(type="trigger"), ["large", "Trigger('mirror', ...)"]),
    ],
)
def test_a_trigger_s_job_does_what_is_declared_and_no_other_is_one(
    jobs, registered, name, update, values
):
    with raises_naming(ConfigError, f"Job shop.orders/{name}", *values):
        jobs.update_job_spec("eu", f"shop.orders/{name}", update)


def test_an_index_has_no_asset_that_a_trigger_has(source):
    other = SourceTable("shop.orders_large", key="id", path=source.path, indexes=[])
    alike = replace(source, triggers=[replace(source.triggers[0], name="large_x")])
    jobs = Jobs(deployment=in_memory(Clock()), sources=[alike, other], cancel_runs=print)
    index = Changes(name="x")
    with raises_naming(ConfigError, "shop.orders_large_x", "trigger shop.orders/large_x"):
        jobs.register_job("default", make_job_name(other, index), make_job_spec(other, index))


def test_a_wait_is_for_triggers_too(jobs, source, registered):
    for index in source.indexes:
        finish(jobs, source, "eu", make_job_name(source, index))
    with raises_naming(WaitError, "trigger 'large' of tenant 'eu'"):
        jobs.wait("shop.orders", 0, timeout=0)
    finish(jobs, source, "eu", LARGE)
    assert jobs.wait("shop.orders", 0, timeout=0) == 0
