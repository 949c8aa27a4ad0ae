"""The job API takes the jobs of views and event triggers as those of indexes."""

from dataclasses import replace

import pytest

from iscp_dagster import Changes, Mirror, SourceTable, SpecUpdate, Trigger, View
from iscp_dagster.api.jobs import Jobs
from iscp_dagster.api.waiting import CommitWait
from iscp_dagster.model.declared.linking.attach import attach_to_tables
from iscp_dagster.model.errors import ConfigError, WaitError
from iscp_dagster.model.jobs import JobID
from iscp_dagster.planning.declared import make_job_spec, name_of
from support.jobs.one_table import Clock, commit, finish, in_memory

LARGE = JobID(db="shop", table="orders", job="large")


@pytest.fixture
def source(tmp_path):
    table = SourceTable(
        "shop.orders", key="id", tenant="region", path=str(tmp_path / "orders"), indexes=[Mirror()]
    )
    big = View("big", of=table, where="amount > 100")
    (made,) = attach_to_tables(
        [table], [big], [Trigger("large", on=big, match="amount > 500", priority=4)]
    )
    commit(made, "eu")
    return made


@pytest.fixture
def jobs(source):
    return Jobs(deployment=in_memory(Clock()), sources=[source], cancel_runs=print)


def registered(jobs, source, *tenants):
    for each in source.consumers:
        for tenant in tenants:
            jobs.register_job(tenant, name_of(source, each), make_job_spec(source, each))


def test_a_trigger_s_job_lives_as_an_index_s_does(jobs, source):
    registered(jobs, source, "eu")
    job = jobs.get_job("eu", LARGE)
    assert (job.spec.detail.consumer.type, job.priority) == ("trigger", 4)
    jobs.update_job_spec("eu", LARGE, SpecUpdate(priority=9))
    assert jobs.get_job("eu", LARGE).priority == 9
    jobs.pause_job("eu", LARGE)
    assert jobs.get_job("eu", LARGE).paused_at is not None
    jobs.resume_job("eu", LARGE)
    jobs.unregister_job("eu", LARGE)
    assert LARGE not in {job.name for job in jobs.list_jobs("eu")}


@pytest.mark.parametrize(
    ("update", "said"),
    [
        (SpecUpdate(type="mirror"), r"a trigger of that name is declared, and the job would be of"),
        (
            SpecUpdate(columns=("id",)),
            r"a trigger's columns and options are those of its decl",
        ),
        (SpecUpdate(options={"match": "x"}), r"a trigger's columns and options are those of its"),
    ],
)
def test_a_trigger_s_job_does_what_is_declared_and_nothing_else(jobs, source, update, said):
    registered(jobs, source, "eu")
    with pytest.raises(ConfigError, match=rf"shop\.orders/large: {said}"):
        jobs.update_job_spec("eu", LARGE, update)


def test_an_index_does_not_become_a_trigger(jobs, source):
    registered(jobs, source, "eu")
    mirror = name_of(source, source.get_index("mirror"))
    with pytest.raises(ConfigError, match=r"no trigger of that name is declared .*: large\)"):
        jobs.update_job_spec("eu", mirror, SpecUpdate(type="trigger"))


def test_an_index_has_no_asset_that_a_trigger_has(source):
    other = SourceTable("shop.orders_large", key="id", path=source.path, indexes=[])
    alike = replace(source, triggers=[replace(source.triggers[0], name="large_x")])
    jobs = Jobs(deployment=in_memory(Clock()), sources=[alike, other], cancel_runs=print)
    index = Changes(name="x")
    with pytest.raises(ConfigError, match=r"orders_large_x already belongs to trigger shop"):
        jobs.register_job("default", name_of(other, index), make_job_spec(other, index))


def test_a_wait_is_for_triggers_too(jobs, source):
    registered(jobs, source, "eu")
    for each in source.indexes:
        finish(jobs, source, "eu", name_of(source, each))
    wait = CommitWait(
        deployment=jobs.deployment, source=source, tenant=None, sleep=print, monotonic=lambda: 0.0
    )
    with pytest.raises(WaitError, match=r"the trigger 'large' of tenant 'eu' is not built yet"):
        wait.wait_for_version(0, timeout=0)
    finish(jobs, source, "eu", LARGE)
    assert wait.wait_for_version(0, timeout=0) == 0
