"""Tenants that appear while a trigger is there, as the runner registers them."""

from dataclasses import replace

import pytest

from iscp_dagster import Trigger
from iscp_dagster.location.assets.iterations import register_jobs
from iscp_dagster.model.moment import START
from iscp_dagster.planning.runner import Runner
from support.jobs.log_rows import carry_out
from support.jobs.one_table import commit


@pytest.fixture
def source(source):
    return replace(source, triggers=[Trigger("alert", on=source, match="id > 0")])


def begins(deployment, name="alert"):
    """Return where the jobs of that name stand, by tenant."""
    jobs = [job for job in deployment.log.list_jobs() if job.key.job_name == name]
    return {job.key.tenant: job.watermark.version for job in jobs}


def look(runner, deployment, cursor=None, *, run=True):
    found = runner.look(cursor)
    if run:
        carry_out(deployment, found)
    return found.cursor


def test_tenants_that_were_there_first_begin_with_a_snapshot(deployment, source):
    commit(source, "eu", "us")
    look(Runner(deployment, [source]), deployment, run=False)
    assert begins(deployment) == {"eu": START.version, "us": START.version}


def test_a_tenant_that_a_look_finds_later_begins_before_its_first_commit(deployment, source):
    commit(source, "eu")
    runner = Runner(deployment, [source])
    cursor = look(runner, deployment)
    commit(source, "eu")
    commit(source, "asia")
    commit(source, "asia")
    found = runner.look(cursor)
    # Moved in memory over a commit of another tenant.
    assert begins(deployment)["asia"] == 1
    assert begins(deployment, "mirror")["asia"] == START.version
    ranges = {
        (each.iteration.from_.version, each.iteration.to.version)
        for each in found.dispatches
        if ("asia", "alert") in {(key.tenant, key.job_name) for key in each.iteration.jobs}
    }
    assert ranges == {(1, 3)}


def test_the_indexes_of_such_a_tenant_are_built_from_its_latest_rows_at_once(deployment, source):
    """They do not wait at the trigger's beginning, to catch up one by one."""
    commit(source, "eu")
    runner = Runner(deployment, [source])
    cursor = look(runner, deployment)
    commit(source, "asia")
    commit(source, "asia")
    found = runner.look(cursor)
    planned = {
        (key.job_name, each.iteration.from_.version, each.iteration.to.version)
        for each in found.dispatches
        for key in each.iteration.jobs
        if key.tenant == "asia"
    }
    indexes = {(each.name, START.version, 2) for each in source.indexes}
    assert planned == {*indexes, ("alert", 0, 2)}
    carry_out(deployment, found)
    assert not runner.look(found.cursor).dispatches


def test_a_tenant_that_appeared_while_no_runner_looked_does_so_too(deployment, source):
    commit(source, "eu")
    look(Runner(deployment, [source]), deployment)
    commit(source, "asia")
    look(Runner(deployment, [source]), deployment, run=False)
    assert begins(deployment) == {"eu": 0, "asia": 0}


def test_tenants_that_were_there_before_a_trigger_was_declared_are_no_newcomers(deployment, source):
    commit(source, "eu")
    look(Runner(deployment, [replace(source, triggers=[])]), deployment)
    commit(source, "asia")
    look(Runner(deployment, [source]), deployment, run=False)
    assert begins(deployment) == dict.fromkeys(["eu", "asia"], START.version)


def test_a_job_that_was_unregistered_or_stands_stays_as_it_is(deployment, source):
    commit(source, "eu", "us")
    runner = Runner(deployment, [source])
    cursor = look(runner, deployment)
    name = next(job.name for job in deployment.log.list_jobs() if job.key.job_name == "alert")
    deployment.log.unregister("us", name)
    commit(source, "eu", "us")
    look(runner, deployment, cursor)
    assert begins(deployment) == {"eu": 1}


def test_a_tenant_with_rows_at_that_version_begins_with_a_snapshot(deployment, source):
    commit(source, "eu", "us")
    look(Runner(deployment, [source]), deployment)
    # As a person may materialize one tenant of a table that no runner looks at.
    us = [job for job in deployment.log.list_jobs() if job.key.tenant == "us"]
    for name in {job.name for job in us}:
        deployment.log.unregister("us", name)
    deployment.log.delete_dropped(
        [j for j in deployment.log.list_jobs(include_dropped=True) if j.drop_at]
    )
    look(Runner(deployment, [source]), deployment, run=False)
    assert begins(deployment) == {"eu": 0, "us": START.version}


def test_a_table_without_tenants_has_no_newcomers(deployment, source):
    plain = replace(source, tenant=None)
    plain = replace(plain, triggers=[Trigger("alert", on=plain, match="id > 0")])
    commit(source, "eu")
    look(Runner(deployment, [plain]), deployment, run=False)
    assert begins(deployment) == {"default": START.version}


def test_a_newcomer_that_a_person_materializes_before_a_look_begins_there_too(deployment, source):
    commit(source, "eu")
    look(Runner(deployment, [source]), deployment)
    commit(source, "asia")
    table_id = deployment.make_delta_log(source).get_table_id()
    register_jobs(deployment, source, table_id, ["eu", "asia"], source.consumers)
    assert begins(deployment) == {"eu": 0, "asia": 0}
    assert begins(deployment, "mirror")["asia"] == START.version


def test_a_trigger_that_a_person_registers_tenant_by_tenant_has_no_newcomers(deployment, source):
    (alert,) = source.triggers
    source = replace(source, triggers=[replace(alert, auto_register=False)])
    commit(source, "eu")
    table_id = deployment.make_delta_log(source).get_table_id()
    register_jobs(deployment, source, table_id, ["eu"], source.consumers)
    look(Runner(deployment, [source]), deployment)
    commit(source, "asia")
    register_jobs(deployment, source, table_id, ["asia"], source.consumers)
    assert begins(deployment)["asia"] == START.version
