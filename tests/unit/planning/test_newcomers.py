"""Tenants that appear while a trigger is there, as the runner registers them."""

from dataclasses import replace

import pytest

from iscp_dagster import Trigger
from iscp_dagster.location.assets.iterations import replace_registrations
from iscp_dagster.model.moment import START
from support.jobs.log_rows import carry_out
from support.jobs.one_table import commit


@pytest.fixture
def source(source):
    return replace(source, triggers=[Trigger("alert", on=source, match="id > 0")])


def list_versions(deployment, name="alert"):
    """Return the watermark's version of each job of that name, by tenant."""
    jobs = [job for job in deployment.log.list_jobs() if job.key.job_name == name]
    return {job.key.tenant: job.watermark.version for job in jobs}


def test_a_tenant_that_a_later_look_finds_begins_before_its_first_commit(deployment, source, begin):
    """Its indexes are built from its latest rows, and do not wait at the trigger's beginning."""
    sensor = begin(source, "eu")
    commit(source, "eu")
    commit(source, "asia")
    commit(source, "asia")
    look = sensor.look()
    # Moved in memory over a commit of another tenant.
    assert list_versions(deployment)["asia"] == 1
    assert list_versions(deployment, "mirror")["asia"] == START.version
    planned = {
        (key.job_name, each.iteration.from_.version, each.iteration.to.version)
        for each in look.dispatches
        for key in each.iteration.jobs
        if key.tenant == "asia"
    }
    indexes = {(each.name, START.version, 3) for each in source.indexes}
    assert planned == {*indexes, ("alert", 1, 3)}
    carry_out(deployment, look)
    assert not sensor.look().dispatches


@pytest.mark.parametrize("found_by", ["a new runner", "a person"])
def test_so_does_a_tenant_that_a_runner_did_not_find(deployment, source, begin, found_by):
    sensor = begin(source, "eu")
    commit(source, "asia")
    if found_by == "a person":
        register(deployment, source, "eu", "asia")
    else:
        sensor.restart()
        sensor.cursor = None
        sensor.look()
    assert list_versions(deployment) == {"eu": 0, "asia": 0}
    assert list_versions(deployment, "mirror")["asia"] == START.version


def test_tenants_before_a_triggers_declaration_are_no_newcomers(deployment, source, begin, start):
    begin(replace(source, triggers=[]), "eu")
    commit(source, "asia")
    start(source).look()
    assert list_versions(deployment) == dict.fromkeys(["eu", "asia"], START.version)


def test_a_job_that_is_unregistered_or_in_step_stays_as_it_is(deployment, source, begin):
    sensor = begin(source, "eu", "us")
    name = next(job.name for job in deployment.log.list_jobs() if job.key.job_name == "alert")
    deployment.log.unregister("us", name)
    commit(source, "eu", "us")
    sensor.synchronize()
    assert list_versions(deployment) == {"eu": 1}


def test_a_tenant_with_rows_at_that_version_begins_with_a_snapshot(
    deployment, source, begin, start
):
    begin(source, "eu", "us")
    # As a person may materialize one tenant of a table that no runner looks at.
    us = [job for job in deployment.log.list_jobs() if job.key.tenant == "us"]
    for name in {job.name for job in us}:
        deployment.log.unregister("us", name)
    jobs = deployment.log.list_jobs(include_dropped=True)
    deployment.log.delete_dropped([job for job in jobs if job.drop_at])
    start(source).look()
    assert list_versions(deployment) == {"eu": 0, "us": START.version}


def test_a_table_without_tenants_has_no_newcomers(deployment, source, start):
    plain = replace(source, tenant=None)
    plain = replace(plain, triggers=[Trigger("alert", on=plain, match="id > 0")])
    commit(source, "eu")
    start(plain).look()
    assert list_versions(deployment) == {"default": START.version}


def register(deployment, source, *tenants):
    """Register the jobs of these tenants, as when a person materializes them."""
    table_id = deployment.make_delta_log(source).get_table_id()
    replace_registrations(deployment, source, table_id, tenants, source.consumers)


def test_a_trigger_that_a_person_registers_by_tenant_has_no_newcomers(deployment, source, start):
    (alert,) = source.triggers
    source = replace(source, triggers=[replace(alert, auto_register=False)])
    commit(source, "eu")
    register(deployment, source, "eu")
    start(source).synchronize()
    commit(source, "asia")
    register(deployment, source, "asia")
    assert list_versions(deployment)["asia"] == START.version
