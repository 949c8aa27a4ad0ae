"""The job API over real Delta logs, with the ISCP log in memory and in SQLite; no Spark."""

import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from dagster import DagsterInstance, DagsterRun, DagsterRunStatus
from dagster._core.remote_origin import (
    RegisteredCodeLocationOrigin,
    RemoteJobOrigin,
    RemoteRepositoryOrigin,
)
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType

import iscp_dagster
from iscp_dagster import FullText, Mirror, SourceTable
from iscp_dagster.api.jobs import Jobs, open_jobs, to_spec_update
from iscp_dagster.api.names import format_command
from iscp_dagster.delta.log.commits import commit_name
from iscp_dagster.joblog.sql.engine import open_engine
from iscp_dagster.joblog.sql.log import SqlLog
from iscp_dagster.joblog.updates import SpecUpdate
from iscp_dagster.model.errors import ConfigError, FenceError, NoSuchJobError, WaitError
from iscp_dagster.model.jobs import JobID
from iscp_dagster.model.moment import START
from iscp_dagster.model.specs import ConsumerInfo, IterationDetail, JobSpec, TriggerSpec
from iscp_dagster.model.states import Event, JobState
from iscp_dagster.planning.runner import Runner
from iscp_dagster.runs.cancel import cancel_runs
from iscp_dagster.runs.known_runs import DISPATCH_TAG
from iscp_dagster.upkeep.position import read_positions
from support.jobs.log_rows import complete, fail
from support.jobs.one_table import (
    FEED,
    Clock,
    begin,
    commit,
    due,
    finish,
    in_memory,
    name_deployment,
)
from support.paths import ROOT

MIRROR = JobID(db="shop", table="orders", job="mirror")
OTHER = JobID(db="shop", table="orders", job="other")
SYMBOLS = JobID(db="docs", table="symbols", job="mirror")
OWN = f"{__name__}:Parquet"


class Parquet:
    """A user's own consumer."""


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def source(tmp_path):
    return SourceTable(
        "shop.orders", key="id", tenant="region", path=str(tmp_path / "orders"), indexes=[Mirror()]
    )


@pytest.fixture
def log(tmp_path, clock):
    log = SqlLog(f"sqlite:///{tmp_path / 'log.sqlite'}", clock=clock)
    log.ensure()
    return log


@pytest.fixture
def canceled():
    return []


@pytest.fixture
def jobs(source, log, clock, canceled):
    return Jobs(
        deployment=replace(in_memory(clock), log=log),
        sources=[source],
        cancel_runs=canceled.append,
        sleep=clock.sleep,
        monotonic=clock.monotonic,
    )


def registered(jobs, source, *tenants):
    """Commit a row for each tenant, and register its mirror."""
    commit(source, *tenants)
    for tenant in tenants:
        jobs.register_job(tenant, MIRROR, spec())


def stands(jobs, source, *tenants):
    """Commit a row for each tenant, and register the mirror of every tenant."""
    commit(source, *tenants)
    jobs.register_job("*", MIRROR, spec())


def recreate(source, *tenants):
    shutil.rmtree(source.path)
    commit(source, *tenants)


def spec(job=MIRROR, *, kind="mirror", priority=None, **trigger):
    consumer = ConsumerInfo(type=kind, db=job.db, table=job.table, job=job.job)
    asked = {} if priority is None else {"priority": priority}
    detail = IterationDetail(**asked, consumer=consumer)
    return JobSpec(trigger=TriggerSpec(**trigger), detail=detail)


def fails(jobs, source, code, message="no", tenant="eu", name=MIRROR):
    fail(jobs.deployment.log, begin(jobs, source, tenant, name), code, message)


def tenants(jobs, name=MIRROR):
    return [each.key.tenant for each in jobs.list_jobs() if each.name == name]


# Registering.


def test_registering_is_true_when_created_and_false_when_it_exists(jobs, source):
    commit(source, "eu")
    assert jobs.register_job("eu", MIRROR, spec()) is True
    assert jobs.register_job("eu", MIRROR, spec(priority=9)) is False
    (job,) = jobs.list_jobs()
    assert (job.key.tenant, job.name, job.priority) == ("eu", MIRROR, 0)
    assert job.key.table_id == jobs.deployment.make_delta_log(source).get_table_id()


def test_a_view_has_one_index(jobs, source):
    commit(source, "eu")
    path = f"{source.path}_by"
    longer = replace(source, name="shop.orders_by", path=path, indexes=[Mirror(name="day")])
    commit(longer, "eu")
    both = replace(jobs, sources=[source, longer])
    day = JobID(db="shop", table="orders", job="by_day")
    with pytest.raises(
        ConfigError, match=r"shop\.orders_by_day already belongs to index shop.orders_by/day"
    ):
        both.register_job("eu", day, spec(day))
    with pytest.raises(
        ConfigError, match=r"shop\.orders_by already belongs to source table shop.orders_by"
    ):
        both.register_job("eu", replace(day, job="by"), spec(replace(day, job="by")))
    assert both.register_job("eu", day, spec(day, kind=OWN))
    with pytest.raises(ConfigError, match=r"orders_by_day already belongs to index shop.orders_by"):
        both.update_job_spec("eu", day, SpecUpdate(type="mirror"))
    # The data of a dropped job that is not declared still exists.
    week = JobID(db="shop", table="orders_by", job="week")
    both.register_job("eu", week, spec(week))
    both.unregister_job("eu", week)
    other = JobID(db="shop", table="orders", job="by_week")
    with pytest.raises(ConfigError, match="or unregister that one's jobs and collect them"):
        both.register_job("eu", other, spec(other))


def test_a_dropped_name_registered_again_is_a_new_job(jobs, source):
    registered(jobs, source, "eu")
    first = jobs.get_job("eu", MIRROR).registration
    assert jobs.unregister_job("eu", MIRROR) is True
    assert jobs.register_job("eu", MIRROR, spec()) is True
    assert jobs.get_job("eu", MIRROR).registration != first


@pytest.mark.parametrize(
    ("name", "wanted", "said"),
    [
        (
            JobID(db="shop", table="ordrs", job="mirror"),
            None,
            r"Job shop\.ordrs/mirror: .*'shop\.ordrs' is not declared; there are: shop\.orders",
        ),
        (MIRROR, spec(job_type="eager"), r"Job shop\.orders/mirror: .*trigger 'eager' is unknown"),
        (MIRROR, spec(job_type="periodic"), r"Job shop\.orders/mirror: .*interval None"),
        (MIRROR, spec(OTHER), r"Job shop\.orders/mirror: .*to another job, shop\.orders/other"),
        (
            MIRROR,
            spec(kind="mirorr"),
            r"Job shop\.orders/mirror: .*'mirorr' is unknown; use one of mirror, text, vector",
        ),
    ],
)
def test_what_could_never_run_is_refused_naming_job_and_remedy(jobs, source, name, wanted, said):
    commit(source, "eu")
    for tenant in ("eu", "*"):
        with pytest.raises(ConfigError, match=said):
            jobs.register_job(tenant, name, wanted or spec(name))
    assert jobs.list_jobs() == []
    assert dict(jobs.deployment.log.list_standing()) == {}


@pytest.mark.parametrize("kind", ["mirror", OWN])
@pytest.mark.parametrize("tenant", ["eu", "*"])
def test_a_column_that_the_source_lacks_is_refused_by_name(jobs, source, tenant, kind):
    commit(source, "eu")
    said = r"Job shop\.orders/other: .*the source has no column 'dco'; it has: id, region"
    wanted = SpecUpdate(columns=("dco",)).apply_to(spec(OTHER, kind=kind))
    with pytest.raises(ConfigError, match=said):
        jobs.register_job(tenant, OTHER, wanted)
    assert jobs.list_jobs() == []
    jobs.register_job(tenant, OTHER, spec(OTHER, kind=kind))
    with pytest.raises(ConfigError, match=said):
        jobs.update_job_spec(tenant, OTHER, SpecUpdate(columns=("dco",)))
    assert jobs.get_job("eu", OTHER).spec == spec(OTHER, kind=kind)


def test_a_key_that_is_no_plain_value_is_refused_by_name(jobs, source):
    rows = pa.table({"id": [[1, 2]], "region": ["eu"]})
    write_deltalake(source.path, rows, partition_by=["region"], configuration=FEED)
    with pytest.raises(ConfigError, match=r"key column 'id' of .* is of type array<long>"):
        jobs.register_job("eu", MIRROR, spec())
    assert jobs.list_jobs() == []


def test_a_job_whose_column_went_may_still_be_changed_otherwise(jobs, source):
    commit(source, "eu")
    id_ = jobs.deployment.make_delta_log(source).get_table_id()
    lacking = SpecUpdate(columns=("gone",)).apply_to(spec())
    jobs.deployment.log.register("eu", MIRROR, id_, lacking)
    assert jobs.update_job_spec("eu", MIRROR, SpecUpdate(priority=3)) is True
    assert jobs.get_job("eu", MIRROR).priority == 3


def test_a_consumer_may_be_an_import_path_of_what_there_is(jobs, source):
    commit(source, "eu")
    said = "Job shop.orders/other: The consumer type 'no.such:Thing' cannot be imported: No module"
    with pytest.raises(ConfigError, match=said):
        jobs.register_job("eu", OTHER, spec(OTHER, kind="no.such:Thing"))
    assert jobs.register_job("eu", OTHER, spec(OTHER, kind=OWN))
    with pytest.raises(ConfigError, match=said):
        jobs.update_job_spec("eu", OTHER, SpecUpdate(type="no.such:Thing"))


def test_a_job_whose_consumer_went_may_still_be_changed_otherwise(jobs, source):
    commit(source, "eu")
    id_ = jobs.deployment.make_delta_log(source).get_table_id()
    jobs.deployment.log.register("eu", OTHER, id_, spec(OTHER, kind="no.such:Thing"))
    assert jobs.update_job_spec("eu", OTHER, SpecUpdate(priority=3)) is True


def test_a_schedule_that_its_trigger_would_ignore_is_refused(jobs, source):
    commit(source, "eu")
    for trigger in ("default", "greedy"):
        wanted = spec(job_type=trigger, schedule={"interval": "1h"})
        with pytest.raises(ConfigError, match=f"{trigger}' has no schedule, and would ignore int"):
            jobs.register_job("eu", MIRROR, wanted)
    jobs.register_job("eu", MIRROR, spec(job_type="periodic", schedule={"interval": "1h"}))
    with pytest.raises(ConfigError, match="takes only interval and share, and would ignore intv"):
        jobs.update_job_spec("eu", MIRROR, SpecUpdate(schedule={"interval": "1h", "intv": "2h"}))
    # What an update leaves out stays.
    assert jobs.update_job_spec("eu", MIRROR, SpecUpdate(job_type="greedy"))
    with pytest.raises(ConfigError, match="has no schedule"):
        jobs.update_job_spec("eu", MIRROR, SpecUpdate(schedule={"interval": "2h"}))


def test_a_tenant_of_all_is_every_tenant_of_the_table(jobs, source):
    commit(source, "eu", "us")
    assert jobs.register_job("*", OTHER, spec(OTHER)) is True
    assert tenants(jobs, OTHER) == ["eu", "us"]
    assert jobs.register_job("*", OTHER, spec(OTHER)) is False


def test_a_tenant_of_all_includes_tenants_that_appear_later(jobs, source):
    commit(source, "eu")
    runner = Runner(jobs.deployment, [source])
    cursor = runner.look(None).cursor
    jobs.register_job("*", OTHER, spec(OTHER))
    commit(source, "us")
    runner.look(cursor)
    assert tenants(jobs, OTHER) == ["eu", "us"]


def test_registering_for_all_is_news_before_there_is_a_tenant(jobs, source):
    commit(source)
    assert jobs.register_job("*", OTHER, spec(OTHER)) is True
    assert jobs.register_job("*", OTHER, spec(OTHER)) is False
    assert tenants(jobs, OTHER) == []


def test_registering_for_all_again_fills_the_gaps(jobs, source):
    commit(source, "eu")
    jobs.register_job("*", OTHER, spec(OTHER))
    commit(source, "us")
    assert jobs.register_job("*", OTHER, spec(OTHER)) is True
    assert tenants(jobs, OTHER) == ["eu", "us"]


def test_registering_on_a_recreated_table_unregisters_the_job_of_the_earlier_one(jobs, source):
    registered(jobs, source, "eu", "us")
    earlier = jobs.get_job("eu", MIRROR)
    recreate(source, "eu", "us")
    assert jobs.register_job("eu", MIRROR, spec()) is True
    present = jobs.deployment.make_delta_log(source).get_table_id()
    (job,) = jobs.list_jobs("eu")
    assert (job.key.table_id, job.watermark) == (present, START)
    (left,) = jobs.list_jobs("us")
    assert left.key.table_id == earlier.key.table_id != present


def test_registering_for_all_on_a_recreated_table_leaves_no_earlier_job(jobs, source):
    stands(jobs, source, "eu", "us")
    recreate(source, "eu")
    assert jobs.register_job("*", MIRROR, spec()) is True
    # One that the new table lacks is built from it too, so that its old rows cease to be served.
    assert tenants(jobs, MIRROR) == ["eu", "us"]
    present = jobs.deployment.make_delta_log(source).get_table_id()
    assert {job.key.table_id for job in jobs.list_jobs()} == {present}


def test_registering_for_all_on_a_recreated_table_without_rows_leaves_no_earlier_job(jobs, source):
    stands(jobs, source, "eu")
    recreate(source)
    assert jobs.register_job("*", MIRROR, spec()) is True
    (job,) = jobs.list_jobs()
    assert (job.key.tenant, job.watermark) == ("eu", START)
    assert job.key.table_id == jobs.deployment.make_delta_log(source).get_table_id()


# Unregistering.


def test_unregistering_is_true_once_and_its_run_loses_the_job(jobs, source):
    registered(jobs, source, "eu", "us")
    claim = begin(jobs, source)
    assert jobs.unregister_job("eu", MIRROR) is True
    assert jobs.unregister_job("eu", MIRROR) is False
    assert tenants(jobs) == ["us"]
    with pytest.raises(FenceError):
        complete(jobs.deployment.log, claim, claim.range.to, {})


@pytest.mark.parametrize("tenant", ["default", "*"])
def test_unregistering_a_job_that_there_never_was_names_those_there_are(jobs, source, tenant):
    registered(jobs, source, "eu")
    with pytest.raises(NoSuchJobError, match=r"no job shop\.orders/other of"):
        jobs.unregister_job(tenant, OTHER)
    if tenant != "*":
        with pytest.raises(NoSuchJobError, match=r"of tenant 'default'; its tenants are: eu\. Na"):
            jobs.unregister_job(tenant, MIRROR)
    assert tenants(jobs) == ["eu"]


def test_unregistering_for_all_takes_back_what_stands(jobs, source):
    commit(source, "eu", "us")
    jobs.register_job("*", OTHER, spec(OTHER))
    jobs.register_job("eu", MIRROR, spec())
    assert jobs.unregister_job("*", OTHER) is True
    assert jobs.unregister_job("*", OTHER) is False
    assert tenants(jobs, OTHER) == []
    assert tenants(jobs, MIRROR) == ["eu"]
    assert dict(jobs.deployment.log.list_standing()) == {}


# Updating.


@pytest.mark.parametrize("update", [SpecUpdate(job_type="greedy"), spec(job_type="greedy")])
def test_an_update_merges_and_what_is_empty_keeps_its_value(jobs, source, update):
    commit(source, "eu")
    jobs.register_job("eu", MIRROR, spec(priority=3, independent=True))
    assert jobs.update_job_spec("eu", MIRROR, update) is True
    now = jobs.get_job("eu", MIRROR).spec
    assert now == spec(priority=3, independent=True, job_type="greedy")
    assert jobs.update_job_spec("eu", MIRROR, update) is False


def test_all_that_a_whole_spec_states_is_taken_on():
    wanted = replace(
        spec(priority=2),
        detail=IterationDetail(
            consumer=ConsumerInfo(
                type="text",
                db="shop",
                table="orders",
                job="mirror",
                columns=("doc",),
                options={"text": ["doc"]},
            ),
            max_versions=4,
            max_bytes=5,
        ),
    )
    other = spec(job_type="periodic", schedule={"interval": "1h"}, independent=True)
    new = to_spec_update(wanted).apply_to(other)
    consumer = replace(wanted.detail.consumer, generation=1)
    assert new.detail == replace(wanted.detail, consumer=consumer)
    # No field of its trigger was given.
    assert new.trigger == other.trigger
    greedy = replace(wanted, trigger=TriggerSpec(job_type="greedy"))
    assert to_spec_update(greedy).apply_to(other).trigger == replace(
        other.trigger, job_type="greedy"
    )
    assert to_spec_update(other).apply_to(wanted).trigger == other.trigger


def test_a_default_that_is_given_is_a_value_and_no_empty_field():
    info = {"type": "mirror", "db": "shop", "table": "orders", "job": "mirror"}
    held = JobSpec(
        trigger=TriggerSpec(job_type="periodic", schedule={"interval": "1h"}, independent=True),
        detail=IterationDetail(
            priority=7,
            max_versions=4,
            max_bytes=5,
            consumer=ConsumerInfo(**info, columns=("doc",), options={"types": {"doc": "String"}}),
        ),
    )
    nothing = JobSpec(detail=IterationDetail(consumer=ConsumerInfo(**info)))
    assert to_spec_update(nothing).apply_to(held) == held
    plain = JobSpec(
        trigger=TriggerSpec(job_type="default", schedule={}, independent=False),
        detail=IterationDetail(
            priority=0,
            max_versions=0,
            max_bytes=0,
            consumer=ConsumerInfo(**info, columns=(), options={}),
        ),
    )
    assert plain == nothing
    for given in (plain, JobSpec.from_json(nothing.to_json())):
        another = replace(plain.detail.consumer, generation=1)
        wanted = replace(plain, detail=replace(plain.detail, consumer=another))
        assert to_spec_update(given).apply_to(held) == wanted
    only = {"trigger": {"job_type": "default"}, "detail": {"priority": 0, "consumer": info}}
    some = to_spec_update(JobSpec.from_json(only)).apply_to(held)
    assert some.trigger == replace(held.trigger, job_type="default")
    assert some.detail == replace(held.detail, priority=0)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (SpecUpdate(job_type="eager"), "'eager' is unknown"),
        (SpecUpdate(type="mirorr"), "'mirorr' is unknown"),
        (SpecUpdate(max_bytes=-1), "max_bytes -1 is below 0"),
        (spec(OTHER), "to another job, shop.orders/other"),
    ],
)
def test_an_update_to_what_could_never_run_changes_nothing(jobs, source, change, said):
    stands(jobs, source, "eu")
    for tenant in ("eu", "*"):
        with pytest.raises(ConfigError, match=f"Job shop.orders/mirror: .*{said}"):
            jobs.update_job_spec(tenant, MIRROR, change)
    assert jobs.get_job("eu", MIRROR).spec == spec()
    assert jobs.deployment.log.list_standing()[MIRROR] == spec()


def test_an_interrupting_update_cancels_the_run_and_the_next_iteration_is_of_the_new_spec(
    jobs, source, canceled
):
    registered(jobs, source, "eu", "us")
    claim = begin(jobs, source, run="run 1")
    begin(jobs, source, "us", run="run 2")
    assert jobs.update_job_spec("eu", MIRROR, SpecUpdate(priority=5), interrupt=True) is True
    assert canceled == [{"run 1"}]
    job = jobs.get_job("eu", MIRROR)
    assert (job.state, job.priority) == (JobState.CANCELED, 5)
    with pytest.raises(FenceError):
        complete(jobs.deployment.log, claim, claim.range.to, {})
    assert jobs.get_job("us", MIRROR).state is JobState.RUNNING


def test_an_interrupting_update_cancels_what_is_queued(jobs, source, canceled):
    registered(jobs, source, "eu")
    jobs.deployment.log.enqueue(due(jobs, source, "eu", MIRROR), "dispatch 1")
    assert jobs.update_job_spec("eu", MIRROR, SpecUpdate(), interrupt=True) is True
    assert canceled == [{"dispatch 1"}]
    assert jobs.get_job("eu", MIRROR).state is JobState.CANCELED


def test_an_update_leaves_the_current_iteration_alone(jobs, source, canceled):
    registered(jobs, source, "eu")
    claim = begin(jobs, source)
    assert jobs.update_job_spec("eu", MIRROR, SpecUpdate(priority=5))
    complete(jobs.deployment.log, claim, claim.range.to, {})
    assert (jobs.get_job("eu", MIRROR).watermark.version, canceled) == (0, [])


def test_an_update_for_all_changes_every_tenants_job_and_those_of_later_tenants(jobs, source):
    commit(source, "eu", "us")
    jobs.register_job("*", OTHER, spec(OTHER))
    jobs.register_job("us", MIRROR, spec())
    assert jobs.update_job_spec("*", OTHER, SpecUpdate(priority=5)) is True
    assert jobs.update_job_spec("*", OTHER, SpecUpdate(priority=5)) is False
    commit(source, "xx")
    Runner(jobs.deployment, [source]).look(None)
    found = {each.key.tenant: each.priority for each in jobs.list_jobs() if each.name == OTHER}
    assert found == {"eu": 5, "us": 5, "xx": 5}
    assert jobs.get_job("us", MIRROR).priority == 0


def test_an_update_plans_a_job_in_error_again_but_not_one_whose_table_is_gone(jobs, source):
    stands(jobs, source, "eu", "us")
    log = jobs.deployment.log
    fails(jobs, source, 10_300)
    change = SpecUpdate(priority=4)
    assert jobs.update_job_spec("eu", MIRROR, change)
    assert jobs.get_job("eu", MIRROR).state is JobState.COMPLETED
    (us,) = jobs.list_jobs("us")
    log.mark_stranded(us.key.table_id, 10_220, "gone")
    assert jobs.update_job_spec("us", MIRROR, change)
    assert jobs.get_job("us", MIRROR).state is JobState.ERROR


def test_what_is_registered_for_all_goes_before_what_is_declared(jobs, source):
    commit(source, "eu")
    runner = Runner(jobs.deployment, [source])
    cursor = runner.look(None).cursor
    assert jobs.update_job_spec("*", MIRROR, SpecUpdate(priority=7))
    commit(source, "us")
    runner.look(cursor)
    assert {job.spec.detail.priority for job in jobs.list_jobs()} == {7}
    assert jobs.list_templates()[MIRROR].detail.priority == 7


@pytest.mark.parametrize(
    "call",
    [
        lambda jobs, tenant: jobs.update_job_spec(tenant, OTHER, SpecUpdate(priority=1)),
        lambda jobs, tenant: jobs.pause_job(tenant, OTHER),
        lambda jobs, tenant: jobs.resume_job(tenant, OTHER),
        lambda jobs, tenant: jobs.repair_job(tenant, OTHER),
        lambda jobs, tenant: jobs.get_job_status(tenant, OTHER),
        lambda jobs, tenant: jobs.unregister_job(tenant, OTHER),
        lambda jobs, tenant: jobs.rebuild_job(tenant, OTHER),
    ],
    ids=["update", "pause", "resume", "repair", "status", "unregister", "rebuild"],
)
def test_a_job_that_there_is_not_is_named_with_those_there_are(jobs, source, call):
    registered(jobs, source, "eu")
    said = r"no job shop\.orders/other of tenant 'eu'; its jobs on that table: mirror\. .*iscp job"
    with pytest.raises(NoSuchJobError, match=said):
        call(jobs, "eu")
    with pytest.raises(NoSuchJobError, match="of any tenant"):
        call(jobs, "*")


# Pausing, repairing.


def test_a_job_is_paused_and_resumed_by_itself(jobs, source):
    registered(jobs, source, "eu", "us")
    assert jobs.pause_job("eu", MIRROR) is True
    assert jobs.pause_job("eu", MIRROR) is False
    look = Runner(jobs.deployment, [source]).look(None)
    assert [set(each.iteration.tenants) for each in look.dispatches] == [{"us"}]
    assert jobs.resume_job("eu", MIRROR) is True
    assert jobs.resume_job("eu", MIRROR) is False
    look = Runner(jobs.deployment, [source]).look(None)
    assert [set(each.iteration.tenants) for each in look.dispatches] == [{"eu"}]


def test_every_tenants_job_is_paused_at_once(jobs, source):
    stands(jobs, source, "eu", "us")
    jobs.pause_job("eu", MIRROR)
    assert jobs.pause_job("*", MIRROR) is True
    assert all(each.paused_at for each in jobs.list_jobs())
    assert jobs.resume_job("*", MIRROR) is True
    assert not any(each.paused_at for each in jobs.list_jobs())


def test_a_job_in_error_is_repaired_and_no_other(jobs, source):
    stands(jobs, source, "eu", "us")
    fails(jobs, source, 10_000)
    begin(jobs, source, "us")
    assert jobs.repair_job("*", MIRROR) is True
    assert jobs.get_job("eu", MIRROR).state is JobState.COMPLETED
    assert jobs.get_job("us", MIRROR).state is JobState.RUNNING
    assert jobs.repair_job("eu", MIRROR) is False


def test_a_repaired_job_goes_to_the_commit_that_repaired_its_rows(jobs, source):
    """Not to where the table's other jobs stand, which may be before it."""
    commit(source, "eu")
    for name in (MIRROR, OTHER):
        jobs.register_job("eu", name, spec(name))
        finish(jobs, source, name=name)
    commit(source, "eu")
    finish(jobs, source, name=OTHER)
    fails(jobs, source, 10_000)
    commit(source, "eu")
    assert jobs.repair_job("eu", MIRROR) is True
    (dispatch,) = Runner(jobs.deployment, [source]).look(None).dispatches
    assert [key.job_name for key in dispatch.iteration.jobs] == ["mirror"]
    assert (dispatch.iteration.from_.version, dispatch.iteration.to.version) == (0, 2)


def test_a_job_whose_table_is_gone_is_to_be_registered_again_not_repaired(jobs, source):
    registered(jobs, source, "eu")
    recreate(source, "eu")
    Runner(jobs.deployment, [source]).look(None)
    with pytest.raises(ConfigError, match=r"iscp job register shop\.orders/mirror --tenant eu"):
        jobs.repair_job("eu", MIRROR)
    assert jobs.get_job("eu", MIRROR).state is JobState.ERROR


# Looking.


def test_the_status_is_of_the_latest_iteration(jobs, source, clock):
    registered(jobs, source, "eu")
    assert jobs.get_job_status("eu", MIRROR).start_at is None
    claim = begin(jobs, source)
    started = clock.now
    clock.sleep(2)
    fail(jobs.deployment.log, claim, 10_000, "disk full")
    status = jobs.get_job_status("eu", MIRROR)
    assert (status.from_, status.to.version) == (START, 0)
    assert (status.start_at, status.end_at) == (started, clock.now)
    assert (status.code, status.message) == (10_000, "disk full")


def test_the_status_is_of_the_job_registered_last_when_an_earlier_tables_is_left(
    jobs, source, clock
):
    commit(source, "eu")
    for table_id in ("b", "c", "a"):
        clock.sleep(1)
        jobs.deployment.log.register("eu", MIRROR, table_id, spec())
    assert jobs.get_job("eu", MIRROR).key.table_id == "a"


def test_the_count_of_a_state_is_its_jobs_with_their_status(jobs, source):
    stands(jobs, source, "eu", "us")
    fails(jobs, source, 10_007, tenant="us")
    ((tenant, name, status),) = jobs.get_job_count(JobState.ERROR)
    assert (tenant, name, status.code) == ("us", MIRROR, 10_007)
    assert [each[0] for each in jobs.get_job_count(JobState.COMPLETED)] == ["eu"]
    assert jobs.get_job_count(JobState.RUNNING) == []
    assert [each[0] for each in jobs.get_job_count("completed")] == ["eu"]
    assert [each.key.tenant for each in jobs.list_jobs(state="ERROR")] == ["us"]


@pytest.mark.parametrize("state", ["nope", "", 9, None])
def test_a_state_that_there_is_not_is_refused_with_those_there_are(jobs, state):
    said = "is unknown; use one of pending, running, canceled, error, completed"
    with pytest.raises(ConfigError, match=said):
        jobs.get_job_count(state)
    if state is not None:
        with pytest.raises(ConfigError, match=said):
            jobs.list_jobs(state=state)


def test_a_job_is_named_by_its_id_or_as_the_command_line_names_it(jobs, source):
    commit(source, "eu")
    assert jobs.register_job("eu", "shop.orders/mirror", spec()) is True
    assert jobs.register_job("eu", MIRROR, spec()) is False
    assert jobs.get_job_status("eu", "shop.orders/mirror").code == 0
    assert jobs.update_job_spec("eu", "shop.orders/mirror", SpecUpdate(priority=3)) is True
    assert jobs.pause_job("eu", "shop.orders/mirror") is True
    assert jobs.resume_job("eu", "shop.orders/mirror") is True
    assert jobs.unregister_job("eu", "shop.orders/mirror") is True


@pytest.mark.parametrize(
    "call",
    [
        lambda jobs, name: jobs.register_job("eu", name, spec()),
        lambda jobs, name: jobs.unregister_job("eu", name),
        lambda jobs, name: jobs.update_job_spec("eu", name, SpecUpdate(priority=1)),
        lambda jobs, name: jobs.rebuild_job("eu", name),
        lambda jobs, name: jobs.pause_job("eu", name),
        lambda jobs, name: jobs.resume_job("eu", name),
        lambda jobs, name: jobs.repair_job("eu", name),
        lambda jobs, name: jobs.get_job_status("eu", name),
        lambda jobs, name: jobs.read_history("eu", name),
    ],
    ids=[
        *("register", "unregister", "update", "rebuild", "pause", "resume", "repair"),
        *("status", "history"),
    ],
)
@pytest.mark.parametrize("name", ["mirror", 7])
def test_what_names_no_job_is_refused_by_what_does(jobs, source, call, name):
    commit(source, "eu")
    with pytest.raises(ConfigError, match=r"is not written database\.table/job"):
        call(jobs, name)


def test_jobs_are_listed_by_tenant_table_and_state(jobs, source):
    stands(jobs, source, "eu", "us")
    jobs.register_job("eu", OTHER, spec(OTHER))
    begin(jobs, source, "us")
    found = [(each.name.job, each.key.tenant) for each in jobs.list_jobs()]
    assert found == [("mirror", "eu"), ("mirror", "us"), ("other", "eu")]
    assert [each.name.job for each in jobs.list_jobs("eu")] == ["mirror", "other"]
    assert len(jobs.list_jobs("*", "shop.orders")) == 3
    assert jobs.list_jobs(table="shop.refunds") == []
    assert [each.key.tenant for each in jobs.list_jobs(state=JobState.RUNNING)] == ["us"]


def test_history_and_usage_tell_what_happened(jobs, source, clock):
    registered(jobs, source, "eu")
    jobs.register_job("eu", OTHER, spec(OTHER))
    clock.sleep(60)
    finish(jobs, source, inserted=7, bytes=70)
    found = [each.event for each in jobs.read_history("eu", MIRROR)]
    assert found == [Event.REGISTER, Event.START, Event.COMPLETE]
    assert [each.event for each in jobs.read_history("*", MIRROR, most=1)] == [Event.COMPLETE]
    assert len(jobs.read_history(since=clock.now)) == 2
    assert jobs.read_history("us") == []
    (used,) = jobs.read_usage()
    assert (used.tenant, used.name, used.inserted, used.bytes) == ("eu", MIRROR, 7, 70)
    assert jobs.read_usage(clock.now + timedelta(seconds=1)) == []
    assert (
        jobs.read_usage(tenant="eu", table="shop.orders") == jobs.read_usage(tenant="*") == [used]
    )
    assert jobs.read_usage(tenant="us") == jobs.read_usage(table="shop.refunds") == []


# Waiting.


def test_wait_returns_the_version_when_every_index_has_it(jobs, source, clock):
    registered(jobs, source, "eu")
    jobs.register_job("eu", OTHER, spec(OTHER))
    commit(source, "eu")
    clock.meanwhile = [
        lambda: None,
        lambda: finish(jobs, source, name=MIRROR),
        lambda: finish(jobs, source, name=OTHER),
    ]
    assert jobs.wait("shop.orders") == 1
    assert clock.slept == pytest.approx([0.2, 0.3, 0.2], abs=1e-6)
    assert jobs.wait("shop.orders", 0, timeout=0) == 0


def test_a_wait_in_which_nothing_happens_reads_no_job(jobs, source, clock, monkeypatch):
    """The next commit and the log's history are looked at, more and more rarely."""
    registered(jobs, source, "eu")
    elsewhere = JobID(db="shop", table="refunds", job="mirror")
    read, log = [], type(jobs.deployment.log)
    held = log.list_jobs
    monkeypatch.setattr(log, "list_jobs", lambda *a, **b: read.append(clock.now) or held(*a, **b))
    clock.meanwhile = [lambda: None] * 50 + [
        lambda: jobs.deployment.log.register("eu", elsewhere, "another table", spec(elsewhere))
    ]
    began = clock.monotonic()
    with pytest.raises(WaitError, match="timed out"):
        jobs.wait("shop.orders", timeout=100)
    assert clock.monotonic() - began == pytest.approx(100, abs=1e-3)
    assert len(clock.slept) < 110
    assert max(clock.slept) == 1.0
    # Once at first, once at the deadline, and what each look reads beside that.
    assert len(set(read)) == 2


def test_what_a_wait_waits_for_is_told(jobs, source, clock):
    registered(jobs, source, "eu")
    commit(source, "eu")
    clock.meanwhile = [lambda: None, lambda: finish(jobs, source)]
    told = []
    assert jobs.wait("shop.orders", report=told.append) == 1
    lacking = "version 1 is still to come in 1 job: 'mirror' of tenant 'eu' is not built yet"
    assert {each.partition(" (")[0] for each in told} == {lacking}
    with pytest.raises(WaitError):
        jobs.wait("shop.orders", 2, timeout=1, report=told.append)
    assert told[-1] == "version 2 is to be committed; the latest is 1"


def test_wait_is_for_a_version_not_for_what_came_after_it(jobs, source, clock):
    registered(jobs, source, "eu")
    finish(jobs, source)
    commit(source, "eu")
    assert jobs.wait("shop.orders", 0) == 0
    assert clock.slept == []
    with pytest.raises(WaitError, match="version 1 is not searchable"):
        jobs.wait("shop.orders", timeout=1)


def test_wait_is_not_held_up_by_tenants_that_the_commit_did_not_change(jobs, source):
    stands(jobs, source, "eu", "us")
    for tenant in ("eu", "us"):
        finish(jobs, source, tenant)
    commit(source, "us")
    finish(jobs, source, "us")
    assert jobs.get_job("eu", MIRROR).watermark.version == 0
    assert jobs.wait("shop.orders", 1, timeout=0) == 1


def test_a_change_of_properties_alone_leaves_an_idle_tenant_in_step(jobs, source, clock):
    stands(jobs, source, "eu", "us")
    for tenant in ("eu", "us"):
        finish(jobs, source, tenant)
    runner = Runner(jobs.deployment, [source])
    look = runner.look(None)
    properties = {"delta.logRetentionDuration": "interval 60 days"}
    DeltaTable(source.path).alter.set_table_properties(properties)
    commit(source, "us")
    look = runner.look(look.cursor)
    assert [sorted(each.iteration.tenants) for each in look.dispatches] == [["us"]]
    latest = jobs.deployment.make_delta_log(source).get_latest_moment().version
    assert jobs.wait("shop.orders", tenant="eu", timeout=0) == latest
    (position,) = read_positions(jobs.deployment, source, tenants=["eu"])
    assert (position.in_step, position.lag) == (True, 0.0)
    # It is not planned after another event of the job or a restart either.
    jobs.pause_job("eu", MIRROR)
    jobs.resume_job("eu", MIRROR)
    again = [runner.look(look.cursor), Runner(jobs.deployment, [source]).look(look.cursor)]
    assert [each.dispatches for each in again] == [[], []]
    clock.sleep(60)
    commit(source, "eu")
    (due,) = runner.look(look.cursor).dispatches
    assert due.iteration.from_.version == latest


@pytest.mark.parametrize("restarted", [False, True])
def test_a_change_of_columns_makes_every_tenant_due(jobs, source, clock, restarted):
    stands(jobs, source, "eu", "us")
    for tenant in ("eu", "us"):
        finish(jobs, source, tenant)
    runner = Runner(jobs.deployment, [source])
    look = runner.look(None)
    clock.sleep(60)
    DeltaTable(source.path).alter.add_columns([Field("note", PrimitiveType("string"))])
    commit(source, "us")
    if restarted:
        runner = Runner(jobs.deployment, [source])
    look = runner.look(look.cursor)
    assert [sorted(each.iteration.tenants) for each in look.dispatches] == [["eu", "us"]]
    assert {each.iteration.from_.version for each in look.dispatches} == {0}
    with pytest.raises(WaitError, match="'mirror' of tenant 'eu' is at version 0"):
        jobs.wait("shop.orders", 1, tenant="eu", timeout=0)
    (position,) = read_positions(jobs.deployment, source, tenants=["eu"])
    assert (position.in_step, position.watermark.version) == (False, 0)
    assert position.lag > 0
    for tenant in ("eu", "us"):
        finish(jobs, source, tenant, run=look.dispatches[0].name)
    assert jobs.wait("shop.orders", timeout=0) == 2
    assert runner.look(look.cursor).dispatches == []


@pytest.mark.parametrize("runner", ["kept", "restarted", "late"])
def test_an_idle_tenant_does_not_stay_behind_what_the_log_has_lost(jobs, source, clock, runner):
    stands(jobs, source, "eu", "us")
    watch = Runner(jobs.deployment, [source])
    look = watch.look(None)
    finish_all(jobs, source, look)
    DeltaTable(source.path).alter.add_columns([Field("note", PrimitiveType("string"))])
    look = watch.look(look.cursor)
    finish_all(jobs, source, look)
    assert jobs.get_job("eu", MIRROR).watermark.version == 1
    for _ in range(10):
        commit(source, "us")
        if runner != "late":
            look = watch.look(look.cursor)
            finish_all(jobs, source, look)
    DeltaTable(source.path).create_checkpoint()
    for version in range(11):
        Path(source.path, commit_name(version)).unlink()
    if runner != "kept":
        watch = Runner(jobs.deployment, [source])
    look = watch.look(look.cursor)
    # The runner that watched knows that nothing changed the tenant: nothing is read again.
    if runner == "kept":
        assert look.dispatches == []
        assert jobs.wait("shop.orders", timeout=0) == 11
    finish_all(jobs, source, look)
    commit(source, "us")
    for _ in range(2):
        look = watch.look(look.cursor)
        finish_all(jobs, source, look)
    assert jobs.wait("shop.orders", timeout=0) == 12
    assert watch.look(look.cursor).dispatches == []


def test_a_change_of_columns_right_after_what_the_log_has_lost_holds_up_nobody(jobs, source):
    for _ in range(3):
        stands(jobs, source, "eu", "us")
    finish_all(jobs, source, Runner(jobs.deployment, [source]).look(None))
    DeltaTable(source.path).alter.add_columns([Field("note", PrimitiveType("string"))])
    DeltaTable(source.path).create_checkpoint()
    for version in range(3):
        Path(source.path, commit_name(version)).unlink()
    found = read_positions(jobs.deployment, source)
    assert [(each.in_step, each.watermark.version) for each in found] == [(False, 2)] * 2


def finish_all(jobs, source, look):
    for dispatch in look.dispatches:
        for tenant in sorted(dispatch.iteration.tenants):
            finish(jobs, source, tenant, run=dispatch.name)


def test_wait_of_one_tenant_is_not_held_up_by_another(jobs, source):
    stands(jobs, source, "eu", "us")
    finish(jobs, source, "eu")
    assert jobs.wait("shop.orders", 0, "eu", timeout=0) == 0
    for tenant in (None, "*", "us"):
        with pytest.raises(WaitError, match="'mirror' of tenant 'us' is not built yet"):
            jobs.wait("shop.orders", 0, tenant, timeout=0)


def test_wait_gives_up_in_time_and_names_who_lags_and_where_it_stands(jobs, source, clock):
    stands(jobs, source, "eu", "us")
    finish(jobs, source, "eu")
    commit(source, "eu", "us")
    fails(jobs, source, 1_100, "no answer", "us")
    with pytest.raises(WaitError) as caught:
        jobs.wait("shop.orders", timeout=1)
    said = str(caught.value)
    assert "'mirror' of tenant 'eu' is at version 0 (completed)" in said
    assert "'mirror' of tenant 'us' is not built yet (completed, error 1100: no answer)" in said
    assert (caught.value.code, sum(clock.slept)) == (1_600, pytest.approx(1.0, abs=0.2))


def test_wait_ends_at_once_when_a_lagging_job_is_paused(jobs, source, clock):
    stands(jobs, source, "eu", "us")
    finish(jobs, source, "eu")
    jobs.pause_job("eu", MIRROR)
    assert jobs.wait("shop.orders", 0, "eu") == 0
    commit(source, "eu")
    said = r"at version 0 \(completed, paused\).*`iscp job resume shop.orders/mirror --tenant eu`"
    with pytest.raises(WaitError, match=said):
        jobs.wait("shop.orders")
    assert clock.slept == []


def test_wait_names_a_few_of_many_that_lag(jobs, source):
    stands(jobs, source, *(f"t{number}" for number in range(9)))
    said = "'mirror' of 9 tenants (such as 't0', 't1', 't2') are not built yet (completed)."
    with pytest.raises(WaitError, match=re.escape(said)):
        jobs.wait("shop.orders", timeout=0)


def test_wait_says_once_what_is_the_same_for_several(jobs, source):
    commit(source, "eu", "us")
    for name in (MIRROR, OTHER):
        jobs.register_job("*", name, spec(name))
        for tenant in ("eu", "us"):
            fails(jobs, source, 10_300, "no such type", tenant, name)
    said = (
        "version 0: 'mirror' of tenants 'eu', 'us' and 'other' of tenants 'eu', 'us' are not built "
        "yet (error, error 10300: no such type). Remove the cause, then run "
        "`iscp job repair shop.orders/mirror --tenant '*'` and "
        "`iscp job repair shop.orders/other --tenant '*'`."
    )
    with pytest.raises(WaitError, match=re.escape(said)):
        jobs.wait("shop.orders")


def test_wait_is_for_consumers_of_the_users_own_too(jobs, source):
    registered(jobs, source, "eu")
    jobs.register_job("eu", OTHER, spec(OTHER, kind=OWN))
    finish(jobs, source)
    with pytest.raises(WaitError, match="'other' of tenant 'eu' is not built yet"):
        jobs.wait("shop.orders", timeout=0)
    finish(jobs, source, name=OTHER)
    assert jobs.wait("shop.orders", timeout=0) == 0


@pytest.mark.parametrize("name", ["orders", "shop.orders/mirror", ".orders", "shop."])
def test_wait_is_for_a_table_by_its_whole_name(jobs, name):
    with pytest.raises(ConfigError, match=f"'{name}' is not written database.table, such as"):
        jobs.wait(name)


def test_a_table_that_is_not_declared_is_told_with_where_it_would_be(jobs):
    elsewhere = replace(jobs, declared_in="the module 'mine' (ISCP_ASSETS)")
    with pytest.raises(ConfigError, match=r"Declare it in the module 'mine' \(ISCP_ASSETS\)\."):
        elsewhere.wait("shop.refunds")


def test_wait_ends_at_once_when_a_lagging_job_is_in_error(jobs, source, clock):
    stands(jobs, source, "eu", "us")
    clock.meanwhile = [lambda: fails(jobs, source, 10_300, "no such type", "us")]
    said = (
        r"'mirror' of tenant 'us' .*error 10300: no such type.*"
        r"iscp job repair shop\.orders/mirror --tenant us"
    )
    with pytest.raises(WaitError, match=said):
        jobs.wait("shop.orders")
    assert clock.slept == [0.2]


def test_wait_takes_no_notice_of_an_error_after_the_commit(jobs, source):
    registered(jobs, source, "eu")
    finish(jobs, source)
    commit(source, "eu")
    fails(jobs, source, 10_300)
    assert jobs.wait("shop.orders", 0, timeout=0) == 0


def test_wait_needs_a_job_of_every_tenant_for_an_index_that_registers_itself(jobs, source, clock):
    commit(source, "eu", "us")
    jobs.register_job("eu", MIRROR, spec())
    finish(jobs, source)
    with pytest.raises(WaitError, match="'mirror' of tenant 'us' is not registered"):
        jobs.wait("shop.orders", timeout=1)
    clock.meanwhile = [
        lambda: jobs.register_job("us", MIRROR, spec()),
        lambda: finish(jobs, source, "us"),
    ]
    assert jobs.wait("shop.orders") == 0


def test_wait_needs_a_job_of_every_tenant_for_what_stands(jobs, source):
    registered(jobs, source, "eu")
    finish(jobs, source)
    jobs.deployment.log.register_standing(OTHER, spec(OTHER))
    with pytest.raises(WaitError, match="'other' of tenant 'eu' is not registered"):
        jobs.wait("shop.orders", timeout=0)


def test_wait_leaves_out_what_a_person_unregistered(jobs, source, clock):
    stands(jobs, source, "eu", "us")
    finish(jobs, source)
    jobs.unregister_job("us", MIRROR)
    assert jobs.wait("shop.orders", timeout=0) == 0
    # Also when it is unregistered during the wait, and when its data is gone.
    commit(source, "eu", "us")
    finish(jobs, source)
    jobs.register_job("us", MIRROR, spec())
    clock.meanwhile = [lambda: jobs.unregister_job("us", MIRROR)]
    assert jobs.wait("shop.orders") == 1
    jobs.deployment.log.mark_collected(
        jobs.deployment.log.list_dropped(clock.now + timedelta(days=1))
    )
    assert jobs.wait("shop.orders", timeout=0) == 1


@pytest.mark.parametrize("tenant", ["us", None])
def test_wait_for_nothing_but_what_a_person_unregistered_ends_at_once(jobs, source, clock, tenant):
    stands(jobs, source, "eu", "us")
    jobs.unregister_job(tenant or "*", MIRROR)
    whose, run = ("tenant 'us' is", "us") if tenant else ("tenants 'eu', 'us' are", "'*'")
    said = (
        rf"version 0: 'mirror' of {whose} unregistered\. .* run "
        rf"`iscp job register shop\.orders/mirror --tenant {re.escape(run)}`\."
    )
    with pytest.raises(WaitError, match=said):
        jobs.wait("shop.orders", tenant=tenant)
    assert clock.slept == []
    jobs.register_job("*", MIRROR, spec())
    with pytest.raises(WaitError, match="not built yet"):
        jobs.wait("shop.orders", tenant=tenant, timeout=0)


def test_wait_does_not_need_a_job_of_a_tenant_that_came_later(jobs, source):
    registered(jobs, source, "eu")
    finish(jobs, source)
    commit(source, "us")
    assert jobs.wait("shop.orders", 0, timeout=0) == 0


def test_wait_does_not_need_a_job_for_an_index_that_does_not_register_itself(jobs, source):
    commit(source, "eu")
    shy = replace(source, indexes=[Mirror(), FullText("doc", auto_register=False)])
    jobs.register_job("eu", MIRROR, spec())
    finish(jobs, source)
    assert replace(jobs, sources=[shy]).wait("shop.orders", timeout=0) == 0


def test_wait_for_a_tenant_that_is_in_no_log_and_has_no_job_ends_at_once(jobs, source, clock):
    registered(jobs, source, "eu")
    said = r"has neither rows nor a job of tenant 'us'; its tenants are: eu\."
    with pytest.raises(NoSuchJobError, match=said):
        jobs.wait("shop.orders", tenant="us")
    assert clock.slept == []
    # A job is registered before the tenant's first row.
    jobs.register_job("de", MIRROR, spec())
    finish(jobs, source, "de")
    assert jobs.wait("shop.orders", tenant="de", timeout=0) == 0


def test_wait_for_a_tenant_that_a_commit_has_just_made_or_is_to_make(jobs, source, clock):
    commit(source, "eu")
    clock.meanwhile = [
        lambda: commit(source, "us"),
        lambda: jobs.register_job("us", MIRROR, spec()),
        lambda: finish(jobs, source, "us"),
    ]
    assert jobs.wait("shop.orders", 1, tenant="us") == 1
    assert clock.slept == [0.2, 0.2, 0.2]


def test_wait_for_no_index_at_all_is_refused(jobs, source):
    commit(source, "eu")
    none = replace(jobs, sources=[replace(source, indexes=[Mirror(auto_register=False)])])
    with pytest.raises(ConfigError, match=r"shop\.orders has no index to wait for.*register"):
        none.wait("shop.orders")


def test_wait_no_longer_waits_for_a_job_that_was_unregistered(jobs, source, clock):
    registered(jobs, source, "eu")
    jobs.register_job("eu", OTHER, spec(OTHER))
    finish(jobs, source)
    clock.meanwhile = [lambda: jobs.unregister_job("eu", OTHER)]
    assert jobs.wait("shop.orders", timeout=1) == 0


def test_wait_is_for_a_version_that_is_committed_meanwhile(jobs, source, clock):
    registered(jobs, source, "eu")
    with pytest.raises(WaitError, match="version 1 does not exist; the latest is 0"):
        jobs.wait("shop.orders", 1, timeout=1)
    clock.meanwhile = [lambda: commit(source, "eu"), lambda: finish(jobs, source)]
    assert jobs.wait("shop.orders", 1) == 1


def test_wait_for_a_table_that_is_created_anew_ends_at_once(jobs, source, clock):
    registered(jobs, source, "eu")
    clock.meanwhile = [lambda: recreate(source, "eu")]
    with pytest.raises(WaitError, match="was dropped or recreated during the wait"):
        jobs.wait("shop.orders")
    assert clock.slept == [0.2]


def test_wait_ends_at_once_for_a_job_whose_table_was_created_anew_before(jobs, source, clock):
    registered(jobs, source, "eu")
    recreate(source, "eu")
    Runner(jobs.deployment, [source]).look(None)
    with pytest.raises(WaitError, match=r"error 10220.*iscp job register shop\.orders/mirror"):
        jobs.wait("shop.orders")
    assert clock.slept == []


@pytest.mark.parametrize("left", [(), ("us",)], ids=["without rows", "without the tenant"])
def test_wait_does_not_say_yes_while_rows_of_an_earlier_table_are_served(jobs, source, clock, left):
    commit(source, "eu", "us")
    jobs.register_job("eu", MIRROR, spec())
    finish(jobs, source)
    recreate(source, *left)
    # Before a look, and after it.
    with pytest.raises(WaitError, match=r"timed out.*'mirror' of tenant"):
        jobs.wait("shop.orders", timeout=1, index="mirror")
    Runner(jobs.deployment, [source]).look(None)
    with pytest.raises(WaitError, match=r"error 10220.*iscp job register shop\.orders/mirror"):
        jobs.wait("shop.orders", index="mirror")
    jobs.register_job("*", MIRROR, spec())
    for tenant in tenants(jobs, MIRROR):
        finish(jobs, source, tenant)
    assert jobs.wait("shop.orders", index="mirror") == 0


@pytest.mark.parametrize(
    ("table", "version", "said"),
    [("shop.ordrs", None, "there are: shop.orders"), ("shop.orders", -1, "versions begin at 0")],
)
def test_wait_for_what_there_cannot_be_is_refused(jobs, source, table, version, said):
    commit(source, "eu")
    with pytest.raises(ConfigError, match=said):
        jobs.wait(table, version)


# The package's names, and the deployment.


@pytest.mark.slow
def test_the_api_is_importable_and_nothing_is_loaded_before_it_is_used():
    code = (
        "import sys, iscp_dagster\n"
        "heavy = {'sqlalchemy', 'dagster', 'deltalake', 'pyarrow', 'pyspark', 'httpx'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
        "from iscp_dagster import (JobID, JobSpec, TriggerSpec, IterationDetail, ConsumerInfo,\n"
        "    SpecUpdate, JobState, register_job, unregister_job, update_job_spec,\n"
        "    get_job_status, get_job_count, pause_job, resume_job, wait)\n"
        "assert 'wait' in dir(iscp_dagster)\n"
        "assert not {'dagster', 'pyspark'} & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_name_that_the_package_has_not_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'regster_job'"):
        iscp_dagster.regster_job  # noqa: B018


@pytest.fixture
def environ(tmp_path, monkeypatch):
    """Set up a deployment of the declared tables, one of them in its lake."""
    path = tmp_path / "lake" / "docs" / "symbols"
    path.mkdir(parents=True)
    rows = pa.table({"qualified_name": ["a"], "distribution": ["rich"]})
    write_deltalake(path, rows, partition_by=["distribution"], configuration=FEED)
    return name_deployment(monkeypatch, tmp_path)


def test_the_functions_act_on_the_deployment_that_the_environment_names(environ):
    wanted = spec(SYMBOLS)
    assert iscp_dagster.register_job("rich", SYMBOLS, wanted) is True
    assert iscp_dagster.register_job("rich", SYMBOLS, wanted) is False
    change = iscp_dagster.SpecUpdate(priority=4)
    assert iscp_dagster.update_job_spec("rich", SYMBOLS, change, interrupt=True) is True
    assert iscp_dagster.pause_job("rich", SYMBOLS) is True
    assert iscp_dagster.resume_job("rich", SYMBOLS) is True
    assert iscp_dagster.get_job_status("rich", SYMBOLS).code == 0
    assert iscp_dagster.count_jobs() == {s: int(s is JobState.COMPLETED) for s in JobState}
    ((tenant, found, _),) = iscp_dagster.get_job_count(JobState.COMPLETED)
    assert (tenant, found) == ("rich", SYMBOLS)
    assert open_jobs(environ).get_job("rich", SYMBOLS).priority == 4
    with pytest.raises(WaitError):
        iscp_dagster.wait("docs.symbols", timeout=0)
    assert iscp_dagster.unregister_job("rich", SYMBOLS) is True


@pytest.mark.parametrize("commits", [True, False])
def test_the_functions_join_a_transaction_of_the_caller(environ, commits):
    assert iscp_dagster.register_job("rich", SYMBOLS, spec(SYMBOLS))
    change = iscp_dagster.SpecUpdate(priority=4)
    engine = open_engine(environ["ISCP_LOG_URL"])
    with engine.connect() as connection, connection.begin() as transaction:
        assert iscp_dagster.update_job_spec("rich", SYMBOLS, change, connection=connection)
        assert iscp_dagster.unregister_job("rich", SYMBOLS, connection=connection)
        assert iscp_dagster.register_job("rich", SYMBOLS, spec(SYMBOLS), connection=connection)
        assert iscp_dagster.update_job_spec("rich", SYMBOLS, change, connection=connection)
        assert open_jobs(environ).get_job("rich", SYMBOLS).priority == 0
        if not commits:
            transaction.rollback()
    engine.dispose()
    assert open_jobs(environ).get_job("rich", SYMBOLS).priority == (4 if commits else 0)


def test_without_a_deployment_what_is_not_set_is_named(tmp_path):
    said = (
        "CLICKHOUSE_URL, SPARK_REMOTE, ISCP_LOG_URL and ISCP_LAKE are not set, and no stack is up"
    )
    with pytest.raises(ConfigError, match=said):
        open_jobs({"ISCP_HOME": str(tmp_path)})
    environ = dict.fromkeys(["CLICKHOUSE_URLS", "SPARK_REMOTE", "ISCP_LOG_URL"], "http://one:1")
    with pytest.raises(ConfigError, match=r"^ISCP_LAKE is not set, and no stack is up"):
        open_jobs({"ISCP_HOME": str(tmp_path)} | environ)


@pytest.mark.parametrize("tenant", ["eu", "it's", '"; rm -r ~ $(x)', "a\nb", "*", "-x"])
def test_a_command_that_a_message_tells_means_that_tenant_in_a_shell(tenant):
    told = format_command("register", tenant, JobID(db="shop", table="orders", job="mirror"))
    words = ["iscp", "job", "register", "shop.orders/mirror", "--tenant", tenant]
    assert shlex.split(told.strip("`")) == words


@pytest.fixture
def dagster_home(tmp_path):
    home = tmp_path / "dagster"
    home.mkdir()
    shutil.copyfile(ROOT / "dagster.yaml", home / "dagster.yaml")
    return home


def queued(instance, **tags):
    origin = RemoteJobOrigin(
        RemoteRepositoryOrigin(RegisteredCodeLocationOrigin("here"), "all"), "job"
    )
    run = DagsterRun(
        job_name="job", status=DagsterRunStatus.QUEUED, tags=tags, remote_job_origin=origin
    )
    return instance.add_run(run).run_id


@pytest.mark.slow
def test_runs_are_canceled_by_id_and_by_dispatch_and_no_others(dagster_home):
    with DagsterInstance.from_config(str(dagster_home)) as instance:
        by_id = queued(instance)
        by_dispatch = queued(instance, **{DISPATCH_TAG: "d1"})
        other = queued(instance, **{DISPATCH_TAG: "d2"})
        cancel_runs(str(dagster_home), {by_id, "d1", "no run of ours"})
        states = [instance.get_run_by_id(each).status for each in (by_id, by_dispatch, other)]
    canceled = DagsterRunStatus.CANCELED
    assert states == [canceled, canceled, DagsterRunStatus.QUEUED]


@pytest.mark.slow
def test_an_interrupting_update_of_the_deployment_cancels_its_dagster_run(environ, dagster_home):
    jobs = open_jobs({**environ, "DAGSTER_HOME": str(dagster_home)})
    jobs.register_job("rich", SYMBOLS, spec(SYMBOLS))
    source = jobs.get_source("docs.symbols")
    with DagsterInstance.from_config(str(dagster_home)) as instance:
        run = queued(instance, **{DISPATCH_TAG: "d1"})
        jobs.deployment.log.enqueue(due(jobs, source, "rich", SYMBOLS), "d1")
        jobs.update_job_spec("rich", SYMBOLS, SpecUpdate(priority=1), interrupt=True)
        assert instance.get_run_by_id(run).status is DagsterRunStatus.CANCELED


@pytest.mark.slow
def test_a_run_of_other_jobs_too_is_canceled_only_when_all_of_them_are_interrupted(
    environ, dagster_home
):
    jobs = open_jobs({**environ, "DAGSTER_HOME": str(dagster_home)})
    log, source = jobs.deployment.log, jobs.get_source("docs.symbols")
    for tenant in ("rich", "jinja2", "click"):
        jobs.register_job(tenant, SYMBOLS, spec(SYMBOLS))
        log.enqueue(due(jobs, source, tenant, SYMBOLS), "d1")
    with DagsterInstance.from_config(str(dagster_home)) as instance:
        run = queued(instance, **{DISPATCH_TAG: "d1"})
        # One of its three jobs has begun, so the log knows it by the run's id.
        log.begin(due(jobs, source, "rich", SYMBOLS), run, {}, queued_as="d1")
        states = []
        for tenant in ("rich", "jinja2", "click"):
            jobs.update_job_spec(tenant, SYMBOLS, SpecUpdate(priority=1), interrupt=True)
            states.append(instance.get_run_by_id(run).status)
    waits, canceled = DagsterRunStatus.QUEUED, DagsterRunStatus.CANCELED
    assert states == [waits, waits, canceled]


@pytest.fixture
def own_table(jobs, tmp_path):
    """Create a user's table in the database of the ISCP log."""
    engine = open_engine(f"sqlite:///{tmp_path / 'log.sqlite'}")
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE mine (what TEXT)")
    return jobs.deployment.log.engine


@pytest.mark.parametrize("commits", [True, False])
def test_jobs_and_a_users_rows_are_written_in_one_transaction(
    jobs, source, canceled, own_table, commits
):
    commit(source, "eu", "us")
    assert jobs.register_job("us", MIRROR, spec())
    begin(jobs, source, "us")
    before = jobs.deployment.log.list_jobs(include_dropped=True)
    with own_table.connect() as connection, connection.begin() as transaction:
        connection.exec_driver_sql("INSERT INTO mine VALUES ('a row')")
        assert jobs.register_job("eu", MIRROR, spec(), connection=connection)
        assert not jobs.register_job("eu", MIRROR, spec(), connection=connection)
        assert jobs.register_job("*", OTHER, spec(OTHER), connection=connection)
        change = SpecUpdate(priority=3)
        assert jobs.update_job_spec("eu", MIRROR, change, connection=connection)
        assert jobs.update_job_spec("us", MIRROR, change, interrupt=True, connection=connection)
        assert jobs.unregister_job("us", OTHER, connection=connection)
        with pytest.raises(NoSuchJobError):
            jobs.update_job_spec("us", OTHER, change, connection=connection)
        assert jobs.deployment.log.list_jobs(include_dropped=True) == before
        assert jobs.deployment.log.list_standing() == {}
        if not commits:
            transaction.rollback()
    with own_table.connect() as connection:
        rows = connection.exec_driver_sql("SELECT count(*) FROM mine").scalar_one()
    assert rows == int(commits)
    assert canceled == []
    if not commits:
        assert jobs.deployment.log.list_jobs(include_dropped=True) == before
        return
    found = {(each.key.tenant, each.name, each.state.label) for each in jobs.list_jobs()}
    assert found == {
        ("eu", MIRROR, "completed"),
        ("us", MIRROR, "canceled"),
        ("eu", OTHER, "completed"),
    }
    assert list(jobs.deployment.log.list_standing()) == [OTHER]
    assert {each.priority for each in jobs.list_jobs() if each.name == MIRROR} == {3}
