"""The job API over real Delta logs, with the ISCP log in memory and in SQLite; no Spark."""

import shlex
import shutil
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from dagster import DagsterInstance, DagsterRunStatus
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType

import iscp_dagster
from iscp_dagster import FullText, Mirror
from iscp_dagster.api.jobs import Jobs, open_jobs, to_spec_update
from iscp_dagster.api.names import format_command
from iscp_dagster.delta.log.commits import format_commit_name
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
from iscp_dagster.runs.run_names import DISPATCH_TAG
from iscp_dagster.upkeep.position import read_positions
from support.clients.scripts import run_script
from support.errors import assert_names, raises_naming
from support.jobs.dagster_runs import make_run
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
    orders,
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
    return orders(tmp_path, indexes=[Mirror()])


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
    deployment = replace(in_memory(clock), log=log)
    time = {"sleep": clock.sleep, "monotonic": clock.monotonic}
    return Jobs(deployment=deployment, sources=[source], cancel_runs=canceled.append, **time)


def register(jobs, source, *tenants):
    """Commit a row for each tenant, and register its mirror."""
    commit(source, *tenants)
    for tenant in tenants:
        jobs.register_job(tenant, MIRROR, make_spec())


def register_for_all(jobs, source, *tenants):
    """Commit a row for each tenant, and register the mirror of every tenant."""
    commit(source, *tenants)
    jobs.register_job("*", MIRROR, make_spec())


def recreate(source, *tenants):
    shutil.rmtree(source.path)
    commit(source, *tenants)


def make_spec(job=MIRROR, *, kind="mirror", priority=None, **trigger):
    consumer = ConsumerInfo(type=kind, db=job.db, table=job.table, job=job.job)
    priorities = {} if priority is None else {"priority": priority}
    detail = IterationDetail(**priorities, consumer=consumer)
    return JobSpec(trigger=TriggerSpec(**trigger), detail=detail)


def fail_job(jobs, source, code, message="no", tenant="eu", name=MIRROR):
    fail(jobs.deployment.log, begin(jobs, source, tenant, name), code, message)


def list_tenants(jobs, name=MIRROR):
    return [job.key.tenant for job in jobs.list_jobs() if job.name == name]


def get_table_id(jobs, source):
    return jobs.deployment.make_delta_log(source).get_table_id()


def wait_in_vain(jobs, *values, late, **options):
    """Wait until the deadline, or (if not `late`) until it is clear that waiting will not help."""
    with raises_naming(WaitError, *values) as caught:
        jobs.wait("shop.orders", **options)
    assert (caught.value.code, caught.value.late) == (1_600, late)


# Registering.


def test_a_job_is_named_by_its_id_or_as_the_command_line_names_it(jobs, source):
    commit(source, "eu")
    name = "shop.orders/mirror"
    assert jobs.register_job("eu", name, make_spec()) is True
    assert jobs.register_job("eu", MIRROR, make_spec(priority=9)) is False
    (job,) = jobs.list_jobs()
    assert (job.key.tenant, job.name, job.priority) == ("eu", MIRROR, 0)
    assert job.key.table_id == get_table_id(jobs, source)
    assert jobs.get_job_status("eu", name).code == 0
    assert jobs.update_job_spec("eu", name, SpecUpdate(priority=3)) is True
    for verb in (jobs.pause_job, jobs.resume_job, jobs.unregister_job):
        assert verb("eu", name) is True


def test_a_view_has_one_index(jobs, source):
    commit(source, "eu")
    path = f"{source.path}_by"
    longer = replace(source, name="shop.orders_by", path=path, indexes=[Mirror(name="day")])
    commit(longer, "eu")
    both = replace(jobs, sources=[source, longer])
    day = JobID(db="shop", table="orders", job="by_day")
    with raises_naming(ConfigError, "shop.orders_by_day", "index shop.orders_by/day"):
        both.register_job("eu", day, make_spec(day))
    with raises_naming(ConfigError, "shop.orders_by", "source table shop.orders_by"):
        both.register_job("eu", replace(day, job="by"), make_spec(replace(day, job="by")))
    assert both.register_job("eu", day, make_spec(day, kind=OWN))
    with raises_naming(ConfigError, "shop.orders_by_day", "index shop.orders_by/day"):
        both.update_job_spec("eu", day, SpecUpdate(type="mirror"))
    # The data of a dropped job that is not declared still exists.
    week = JobID(db="shop", table="orders_by", job="week")
    both.register_job("eu", week, make_spec(week))
    both.unregister_job("eu", week)
    other = JobID(db="shop", table="orders", job="by_week")
    with raises_naming(ConfigError, "index shop.orders_by/week", "iscp job collect"):
        both.register_job("eu", other, make_spec(other))


@pytest.mark.parametrize(
    ("name", "spec", "values"),
    [
        (JobID(db="shop", table="ordrs", job="mirror"), None, ["'shop.ordrs'", "shop.orders"]),
        (MIRROR, make_spec(job_type="eager"), ["'eager'"]),
        (MIRROR, make_spec(job_type="periodic"), ["interval None"]),
        (MIRROR, make_spec(OTHER), ["shop.orders/other"]),
        (MIRROR, make_spec(kind="mirorr"), ["'mirorr'", "mirror, text, vector"]),
    ],
)
def test_what_could_never_run_is_refused_naming_job_and_remedy(jobs, source, name, spec, values):
    commit(source, "eu")
    for tenant in ("eu", "*"):
        with raises_naming(ConfigError, f"Job {name}", *values):
            jobs.register_job(tenant, name, spec or make_spec(name))
    assert jobs.list_jobs() == []
    assert dict(jobs.deployment.log.list_standing()) == {}


@pytest.mark.parametrize("kind", ["mirror", OWN])
@pytest.mark.parametrize("tenant", ["eu", "*"])
def test_a_column_that_the_source_lacks_is_refused_by_name(jobs, source, tenant, kind):
    commit(source, "eu")
    values = ("Job shop.orders/other", "'dco'", "id, region")
    spec = make_spec(OTHER, kind=kind)
    with raises_naming(ConfigError, *values):
        jobs.register_job(tenant, OTHER, SpecUpdate(columns=("dco",)).apply_to(spec))
    assert jobs.list_jobs() == []
    jobs.register_job(tenant, OTHER, spec)
    with raises_naming(ConfigError, *values):
        jobs.update_job_spec(tenant, OTHER, SpecUpdate(columns=("dco",)))
    assert jobs.get_job("eu", OTHER).spec == spec


def test_a_key_that_is_no_plain_value_is_refused_by_name(jobs, source):
    rows = pa.table({"id": [[1, 2]], "region": ["eu"]})
    write_deltalake(source.path, rows, partition_by=["region"], configuration=FEED)
    with raises_naming(ConfigError, "'id'", "array<long>"):
        jobs.register_job("eu", MIRROR, make_spec())
    assert jobs.list_jobs() == []


@pytest.mark.parametrize(
    "change", [SpecUpdate(columns=("gone",)), SpecUpdate(type="no.such:Thing")]
)
def test_a_job_whose_column_or_consumer_went_may_still_be_changed_otherwise(jobs, source, change):
    commit(source, "eu")
    spec = change.apply_to(make_spec(OTHER))
    jobs.deployment.log.register("eu", OTHER, get_table_id(jobs, source), spec)
    assert jobs.update_job_spec("eu", OTHER, SpecUpdate(priority=3)) is True
    assert jobs.get_job("eu", OTHER).priority == 3


def test_a_consumer_may_be_an_import_path_of_what_there_is(jobs, source):
    commit(source, "eu")
    values = ("Job shop.orders/other", "'no.such:Thing'", "'no'")
    with raises_naming(ConfigError, *values):
        jobs.register_job("eu", OTHER, make_spec(OTHER, kind="no.such:Thing"))
    assert jobs.register_job("eu", OTHER, make_spec(OTHER, kind=OWN))
    with raises_naming(ConfigError, *values):
        jobs.update_job_spec("eu", OTHER, SpecUpdate(type="no.such:Thing"))


def test_a_schedule_that_its_trigger_would_ignore_is_refused(jobs, source):
    commit(source, "eu")
    hourly = {"interval": "1h"}
    with raises_naming(ConfigError, "'default'", "interval"):
        jobs.register_job("eu", MIRROR, make_spec(schedule=hourly))
    jobs.register_job("eu", MIRROR, make_spec(job_type="periodic", schedule=hourly))
    with raises_naming(ConfigError, "'periodic'", "interval and share", "intv"):
        jobs.update_job_spec("eu", MIRROR, SpecUpdate(schedule={**hourly, "intv": "2h"}))
    # An update keeps what it leaves out.
    assert jobs.update_job_spec("eu", MIRROR, SpecUpdate(job_type="greedy"))
    with raises_naming(ConfigError, "'greedy'", "interval"):
        jobs.update_job_spec("eu", MIRROR, SpecUpdate(schedule={"interval": "2h"}))


@pytest.mark.parametrize("looks", [True, False], ids=["by the runner", "by hand"])
def test_a_tenant_of_all_is_every_tenant_of_the_table_now_and_later(jobs, source, looks):
    commit(source)
    runner = Runner(jobs.deployment, [source])
    cursor = runner.look(None).cursor
    assert jobs.register_job("*", OTHER, make_spec(OTHER)) is True
    assert jobs.register_job("*", OTHER, make_spec(OTHER)) is False
    assert list_tenants(jobs, OTHER) == []
    commit(source, "eu", "us")
    if looks:
        runner.look(cursor)
    assert jobs.register_job("*", OTHER, make_spec(OTHER)) == (not looks)
    assert list_tenants(jobs, OTHER) == ["eu", "us"]


def test_registering_on_a_recreated_table_unregisters_the_job_of_the_earlier_one(jobs, source):
    register(jobs, source, "eu", "us")
    earlier = jobs.get_job("eu", MIRROR)
    recreate(source, "eu", "us")
    assert jobs.register_job("eu", MIRROR, make_spec()) is True
    present = get_table_id(jobs, source)
    (job,) = jobs.list_jobs("eu")
    assert (job.key.table_id, job.watermark) == (present, START)
    (left,) = jobs.list_jobs("us")
    assert left.key.table_id == earlier.key.table_id != present


@pytest.mark.parametrize("left", [("eu",), ()], ids=["with rows", "without rows"])
def test_registering_for_all_on_a_recreated_table_leaves_no_earlier_job(jobs, source, left):
    register_for_all(jobs, source, "eu", "us")
    recreate(source, *left)
    assert jobs.register_job("*", MIRROR, make_spec()) is True
    # One that the new table lacks is built from it too, so that its old rows cease to be served.
    rows = {(job.key.tenant, job.key.table_id, job.watermark) for job in jobs.list_jobs()}
    present = get_table_id(jobs, source)
    assert rows == {("eu", present, START), ("us", present, START)}


# Unregistering.


def test_unregistering_is_true_once_and_its_run_loses_the_job(jobs, source):
    register(jobs, source, "eu", "us")
    registration = jobs.get_job("eu", MIRROR).registration
    claim = begin(jobs, source)
    assert jobs.unregister_job("eu", MIRROR) is True
    assert jobs.unregister_job("eu", MIRROR) is False
    with raises_naming(NoSuchJobError, "shop.orders/mirror", "'default'", "us", "--tenant '*'"):
        jobs.unregister_job("default", MIRROR)
    assert list_tenants(jobs) == ["us"]
    with pytest.raises(FenceError):
        complete(jobs.deployment.log, claim, claim.range.to, {})
    # The name registered again is a new job.
    assert jobs.register_job("eu", MIRROR, make_spec()) is True
    assert jobs.get_job("eu", MIRROR).registration != registration


def test_unregistering_for_all_takes_back_what_stands(jobs, source):
    commit(source, "eu", "us")
    jobs.register_job("*", OTHER, make_spec(OTHER))
    jobs.register_job("eu", MIRROR, make_spec())
    assert jobs.unregister_job("*", OTHER) is True
    assert jobs.unregister_job("*", OTHER) is False
    assert list_tenants(jobs, OTHER) == []
    assert list_tenants(jobs, MIRROR) == ["eu"]
    assert dict(jobs.deployment.log.list_standing()) == {}


# Updating.


@pytest.mark.parametrize("update", [SpecUpdate(job_type="greedy"), make_spec(job_type="greedy")])
def test_an_update_merges_and_what_is_empty_keeps_its_value(jobs, source, update):
    commit(source, "eu")
    jobs.register_job("eu", MIRROR, make_spec(priority=3, independent=True))
    assert jobs.update_job_spec("eu", MIRROR, update) is True
    now = jobs.get_job("eu", MIRROR).spec
    assert now == make_spec(priority=3, independent=True, job_type="greedy")
    assert jobs.update_job_spec("eu", MIRROR, update) is False


INFO = {"type": "mirror", "db": "shop", "table": "orders", "job": "mirror"}


def test_an_update_takes_on_everything_that_a_whole_spec_states():
    consumer = ConsumerInfo(**INFO | {"type": "text"}, columns=("doc",), options={"text": ["doc"]})
    detail = IterationDetail(consumer=consumer, max_versions=4, max_bytes=5)
    spec = replace(make_spec(priority=2), detail=detail)
    other = make_spec(job_type="periodic", schedule={"interval": "1h"}, independent=True)
    update = to_spec_update(spec).apply_to(other)
    assert update.detail == replace(detail, consumer=replace(consumer, generation=1))
    # No field of its trigger was given.
    assert update.trigger == other.trigger
    greedy = replace(spec, trigger=TriggerSpec(job_type="greedy"))
    update = to_spec_update(greedy).apply_to(other)
    assert update.trigger == replace(other.trigger, job_type="greedy")
    assert to_spec_update(other).apply_to(spec).trigger == other.trigger


def test_a_default_that_is_given_is_a_value_and_no_empty_field():
    consumer = ConsumerInfo(**INFO, columns=("doc",), options={"types": {"doc": "String"}})
    full = JobSpec(
        trigger=TriggerSpec(job_type="periodic", schedule={"interval": "1h"}, independent=True),
        detail=IterationDetail(priority=7, max_versions=4, max_bytes=5, consumer=consumer),
    )
    empty = JobSpec(detail=IterationDetail(consumer=ConsumerInfo(**INFO)))
    assert to_spec_update(empty).apply_to(full) == full
    consumer = ConsumerInfo(**INFO, columns=(), options={})
    detail = IterationDetail(priority=0, max_versions=0, max_bytes=0, consumer=consumer)
    trigger = TriggerSpec(job_type="default", schedule={}, independent=False)
    defaults = JobSpec(trigger=trigger, detail=detail)
    assert defaults == empty
    changed = replace(defaults, detail=replace(detail, consumer=replace(consumer, generation=1)))
    for spec in (defaults, JobSpec.from_json(empty.to_json())):
        assert to_spec_update(spec).apply_to(full) == changed
    partial = {"trigger": {"job_type": "default"}, "detail": {"priority": 0, "consumer": INFO}}
    result = to_spec_update(JobSpec.from_json(partial)).apply_to(full)
    assert result.trigger == replace(full.trigger, job_type="default")
    assert result.detail == replace(full.detail, priority=0)


@pytest.mark.parametrize(
    ("change", "values"),
    [
        (SpecUpdate(job_type="eager"), ["'eager'"]),
        (SpecUpdate(type="mirorr"), ["'mirorr'"]),
        (SpecUpdate(max_bytes=-1), ["max_bytes -1"]),
        (make_spec(OTHER), ["shop.orders/other"]),
    ],
)
def test_an_update_to_what_could_never_run_changes_nothing(jobs, source, change, values):
    register_for_all(jobs, source, "eu")
    for tenant in ("eu", "*"):
        with raises_naming(ConfigError, "Job shop.orders/mirror", *values):
            jobs.update_job_spec(tenant, MIRROR, change)
    assert jobs.get_job("eu", MIRROR).spec == make_spec()
    assert jobs.deployment.log.list_standing()[MIRROR] == make_spec()


def test_an_interrupting_update_cancels_what_is_queued_or_runs_and_no_other_update_does(
    jobs, source, canceled
):
    register(jobs, source, "eu", "us", "xx")
    change = SpecUpdate(priority=5)
    interrupted, kept = begin(jobs, source, run="run 1"), begin(jobs, source, "us", run="run 2")
    jobs.deployment.log.enqueue(due(jobs, source, "xx", MIRROR), "dispatch 1")
    assert jobs.update_job_spec("us", MIRROR, change)
    assert jobs.update_job_spec("eu", MIRROR, change, interrupt=True) is True
    assert jobs.update_job_spec("xx", MIRROR, SpecUpdate(), interrupt=True) is True
    assert canceled == [{"run 1"}, {"dispatch 1"}]
    assert [(job.key.tenant, job.state, job.priority) for job in jobs.list_jobs()] == [
        ("eu", JobState.CANCELED, 5),
        ("us", JobState.RUNNING, 5),
        ("xx", JobState.CANCELED, 0),
    ]
    with pytest.raises(FenceError):
        complete(jobs.deployment.log, interrupted, interrupted.range.to, {})
    complete(jobs.deployment.log, kept, kept.range.to, {})
    assert jobs.get_job("us", MIRROR).watermark.version == 0


def test_an_update_for_all_changes_every_tenants_job_and_those_of_later_tenants(jobs, source):
    commit(source, "eu", "us")
    jobs.register_job("*", OTHER, make_spec(OTHER))
    jobs.register_job("us", MIRROR, make_spec())
    assert jobs.update_job_spec("*", OTHER, SpecUpdate(priority=5)) is True
    assert jobs.update_job_spec("*", OTHER, SpecUpdate(priority=5)) is False
    assert jobs.get_job("us", MIRROR).priority == 0
    # What is registered for all goes before what is declared.
    assert jobs.update_job_spec("*", MIRROR, SpecUpdate(priority=7))
    commit(source, "xx")
    Runner(jobs.deployment, [source]).look(None)
    rows = [(job.name.job, job.key.tenant, job.priority) for job in jobs.list_jobs()]
    assert rows == [
        *(("mirror", tenant, 7) for tenant in ("eu", "us", "xx")),
        *(("other", tenant, 5) for tenant in ("eu", "us", "xx")),
    ]
    assert jobs.list_standing()[MIRROR].detail.priority == 7


def test_a_repair_or_an_update_plans_a_job_in_error_again_but_not_one_whose_table_is_gone(
    jobs, source
):
    register_for_all(jobs, source, "eu", "us")
    fail_job(jobs, source, 10_000)
    begin(jobs, source, "us")
    assert jobs.repair_job("*", MIRROR) is True
    assert [job.state for job in jobs.list_jobs()] == [JobState.COMPLETED, JobState.RUNNING]
    assert jobs.repair_job("eu", MIRROR) is False
    fail_job(jobs, source, 10_300)
    assert jobs.update_job_spec("eu", MIRROR, SpecUpdate(priority=4))
    assert jobs.get_job("eu", MIRROR).state is JobState.COMPLETED
    earlier = get_table_id(jobs, source)
    recreate(source, "eu", "us")
    jobs.deployment.log.mark_stranded(earlier, 10_220, "gone")
    assert jobs.update_job_spec("eu", MIRROR, SpecUpdate(priority=5))
    with raises_naming(ConfigError, "iscp job register shop.orders/mirror --tenant eu"):
        jobs.repair_job("eu", MIRROR)
    assert jobs.get_job("eu", MIRROR).state is JobState.ERROR


VERBS = [
    *("unregister_job", "update_job_spec", "rebuild_job", "pause_job", "resume_job"),
    *("repair_job", "get_job_status"),
]


def call_verb(jobs, verb, tenant, name):
    arguments = {"register_job": [make_spec()], "update_job_spec": [SpecUpdate(priority=1)]}
    return getattr(jobs, verb)(tenant, name, *arguments.get(verb, ()))


@pytest.mark.parametrize("verb", VERBS)
def test_a_job_that_there_is_not_is_named_with_those_there_are(jobs, source, verb):
    register(jobs, source, "eu")
    for tenant, whose in (("eu", "tenant 'eu'"), ("*", "any tenant")):
        values = (f"{OTHER} of {whose}", "mirror", "iscp job list", f"iscp job register {OTHER}")
        with raises_naming(NoSuchJobError, *values):
            call_verb(jobs, verb, tenant, OTHER)


@pytest.mark.parametrize("verb", [*VERBS, "register_job", "read_history"])
@pytest.mark.parametrize("name", ["mirror", 7])
def test_what_names_no_job_is_refused_by_every_verb(jobs, source, verb, name):
    commit(source, "eu")
    with raises_naming(ConfigError, f"'{name}'", "database.table/job"):
        call_verb(jobs, verb, "eu", name)


# Pausing, repairing.


def test_a_job_is_paused_and_resumed_by_itself_or_with_every_tenants(jobs, source):
    def list_planned():
        look = Runner(jobs.deployment, [source]).look(None)
        return [set(dispatch.iteration.tenants) for dispatch in look.dispatches]

    register(jobs, source, "eu", "us")
    assert jobs.pause_job("eu", MIRROR) is True
    assert jobs.pause_job("eu", MIRROR) is False
    assert list_planned() == [{"us"}]
    assert jobs.resume_job("eu", MIRROR) is True
    assert jobs.resume_job("eu", MIRROR) is False
    assert list_planned() == [{"eu"}]
    jobs.pause_job("eu", MIRROR)
    assert jobs.pause_job("*", MIRROR) is True
    assert all(job.paused_at for job in jobs.list_jobs())
    assert jobs.resume_job("*", MIRROR) is True
    assert not any(job.paused_at for job in jobs.list_jobs())


def test_a_repaired_job_goes_to_the_commit_that_repaired_its_rows(jobs, source):
    """Not to where the table's other jobs stand, which may be before it."""
    commit(source, "eu")
    for name in (MIRROR, OTHER):
        jobs.register_job("eu", name, make_spec(name))
        finish(jobs, source, name=name)
    commit(source, "eu")
    finish(jobs, source, name=OTHER)
    fail_job(jobs, source, 10_000)
    commit(source, "eu")
    assert jobs.repair_job("eu", MIRROR) is True
    (dispatch,) = Runner(jobs.deployment, [source]).look(None).dispatches
    assert [key.job_name for key in dispatch.iteration.jobs] == ["mirror"]
    assert (dispatch.iteration.from_.version, dispatch.iteration.to.version) == (0, 2)


# Looking.


def test_the_status_is_of_the_job_registered_last_when_an_earlier_tables_is_left(
    jobs, source, clock
):
    commit(source, "eu")
    for table_id in ("b", "c", "a"):
        clock.sleep(1)
        jobs.deployment.log.register("eu", MIRROR, table_id, make_spec())
    assert jobs.get_job("eu", MIRROR).key.table_id == "a"


def test_jobs_are_listed_by_tenant_table_and_state(jobs, source):
    register_for_all(jobs, source, "eu", "us")
    jobs.register_job("eu", OTHER, make_spec(OTHER))
    fail_job(jobs, source, 10_007, tenant="us")
    rows = [(job.name.job, job.key.tenant) for job in jobs.list_jobs()]
    assert rows == [("mirror", "eu"), ("mirror", "us"), ("other", "eu")]
    assert [job.name.job for job in jobs.list_jobs("eu")] == ["mirror", "other"]
    assert len(jobs.list_jobs("*", "shop.orders")) == 3
    assert jobs.list_jobs(table="shop.refunds") == []
    ((tenant, name, status),) = jobs.get_job_count(JobState.ERROR)
    assert (tenant, name, status.code) == ("us", MIRROR, 10_007)
    assert [row[0] for row in jobs.get_job_count("completed")] == ["eu", "eu"]
    assert jobs.get_job_count(JobState.RUNNING) == []
    for state in (JobState.ERROR, "ERROR"):
        assert [job.key.tenant for job in jobs.list_jobs(state=state)] == ["us"]
    states = "pending, running, canceled, error, completed"
    for state in ("nope", 9, None):
        with raises_naming(ConfigError, repr(state), states):
            jobs.get_job_count(state)
    with raises_naming(ConfigError, "'nope'", states):
        jobs.list_jobs(state="nope")


def test_history_and_usage_are_of_the_tenant_job_and_table_that_are_named(jobs, source):
    register(jobs, source, "eu")
    jobs.register_job("eu", OTHER, make_spec(OTHER))
    finish(jobs, source)
    events = [entry.event for entry in jobs.read_history("eu", MIRROR)]
    assert events == [Event.REGISTER, Event.START, Event.COMPLETE]
    (newest,) = jobs.read_history("*", MIRROR, most=1)
    assert newest.event is Event.COMPLETE
    assert jobs.read_history("us") == []
    (usage,) = jobs.read_usage()
    for options in ({"tenant": "eu", "table": "shop.orders"}, {"tenant": "*"}):
        assert jobs.read_usage(**options) == [usage]
    for options in ({"tenant": "us"}, {"table": "shop.refunds"}):
        assert jobs.read_usage(**options) == []


# Waiting.


def test_wait_returns_the_version_when_every_index_has_it(jobs, source, clock):
    register(jobs, source, "eu")
    jobs.register_job("eu", OTHER, make_spec(OTHER, kind=OWN))
    commit(source, "eu")
    finishes = [partial(finish, jobs, source, name=name) for name in (MIRROR, OTHER)]
    clock.meanwhile = [lambda: None, *finishes]
    assert jobs.wait("shop.orders") == 1
    assert clock.slept == pytest.approx([0.2, 0.3, 0.2], abs=1e-6)
    assert jobs.wait("shop.orders", 0, timeout=0) == 0


def test_a_wait_in_which_nothing_happens_reads_no_job(jobs, source, clock, monkeypatch):
    """The next commit and the log's history are looked at, more and more rarely."""
    register(jobs, source, "eu")
    elsewhere = JobID(db="shop", table="refunds", job="mirror")
    reads, log = [], type(jobs.deployment.log)
    list_jobs = log.list_jobs
    monkeypatch.setattr(
        log, "list_jobs", lambda *a, **b: reads.append(clock.now) or list_jobs(*a, **b)
    )
    register_elsewhere = partial(jobs.deployment.log.register, "eu", elsewhere, "another table")
    clock.meanwhile = [lambda: None] * 50 + [lambda: register_elsewhere(make_spec(elsewhere))]
    start = clock.monotonic()
    wait_in_vain(jobs, late=True, timeout=100)
    assert clock.monotonic() - start == pytest.approx(100, abs=1e-3)
    assert len(clock.slept) < 110
    assert max(clock.slept) == 1.0
    # Once at first, once at the deadline, and what each look reads beside that.
    assert len(set(reads)) == 2


def test_a_wait_reports_what_it_waits_for(jobs, source, clock):
    register(jobs, source, "eu")
    commit(source, "eu")
    clock.meanwhile = [lambda: None, lambda: finish(jobs, source)]
    reports = []
    assert jobs.wait("shop.orders", report=reports.append) == 1
    assert reports
    for report in reports:
        assert_names(report, "version 1", "1 job", "'mirror' of tenant 'eu'", "not built")
    values = ("version 2", "latest is 1")
    wait_in_vain(jobs, *values, late=True, version=2, timeout=1, report=reports.append)
    assert_names(reports[-1], *values)


def test_wait_is_for_a_version_not_for_what_came_after_it(jobs, source, clock):
    register(jobs, source, "eu")
    finish(jobs, source)
    commit(source, "eu")
    assert jobs.wait("shop.orders", 0) == 0
    assert clock.slept == []
    wait_in_vain(jobs, "version 1", late=True, timeout=1)
    fail_job(jobs, source, 10_300)
    assert jobs.wait("shop.orders", 0, timeout=0) == 0


def test_a_change_of_properties_alone_leaves_an_idle_tenant_in_step(jobs, source, clock):
    register_for_all(jobs, source, "eu", "us")
    for tenant in ("eu", "us"):
        finish(jobs, source, tenant)
    runner = Runner(jobs.deployment, [source])
    look = runner.look(None)
    properties = {"delta.logRetentionDuration": "interval 60 days"}
    DeltaTable(source.path).alter.set_table_properties(properties)
    commit(source, "us")
    look = runner.look(look.cursor)
    assert [sorted(dispatch.iteration.tenants) for dispatch in look.dispatches] == [["us"]]
    latest = jobs.deployment.make_delta_log(source).get_latest_moment().version
    assert jobs.wait("shop.orders", tenant="eu", timeout=0) == latest
    (position,) = read_positions(jobs.deployment, source, tenants=["eu"])
    assert (position.in_step, position.lag) == (True, 0.0)
    # It is not planned after another event of the job or a restart either.
    jobs.pause_job("eu", MIRROR)
    jobs.resume_job("eu", MIRROR)
    for watcher in (runner, Runner(jobs.deployment, [source])):
        assert watcher.look(look.cursor).dispatches == []
    clock.sleep(60)
    commit(source, "eu")
    (due,) = runner.look(look.cursor).dispatches
    assert due.iteration.from_.version == latest


@pytest.mark.parametrize("restarted", [False, True])
def test_a_change_of_columns_makes_every_tenant_due(jobs, source, clock, restarted):
    register_for_all(jobs, source, "eu", "us")
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
    assert [sorted(dispatch.iteration.tenants) for dispatch in look.dispatches] == [["eu", "us"]]
    assert {dispatch.iteration.from_.version for dispatch in look.dispatches} == {0}
    values = ("'mirror' of tenant 'eu'", "at version 0")
    wait_in_vain(jobs, *values, late=True, version=1, tenant="eu", timeout=0)
    (position,) = read_positions(jobs.deployment, source, tenants=["eu"])
    assert (position.in_step, position.watermark.version) == (False, 0)
    assert position.lag > 0
    for tenant in ("eu", "us"):
        finish(jobs, source, tenant, run=look.dispatches[0].name)
    assert jobs.wait("shop.orders", timeout=0) == 2
    assert runner.look(look.cursor).dispatches == []


@pytest.mark.parametrize("runner", ["kept", "restarted", "late"])
def test_an_idle_tenant_does_not_stay_behind_what_the_log_has_lost(jobs, source, clock, runner):
    register_for_all(jobs, source, "eu", "us")
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
        Path(source.path, format_commit_name(version)).unlink()
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
        register_for_all(jobs, source, "eu", "us")
    finish_all(jobs, source, Runner(jobs.deployment, [source]).look(None))
    DeltaTable(source.path).alter.add_columns([Field("note", PrimitiveType("string"))])
    DeltaTable(source.path).create_checkpoint()
    for version in range(3):
        Path(source.path, format_commit_name(version)).unlink()
    positions = read_positions(jobs.deployment, source)
    assert [(each.in_step, each.watermark.version) for each in positions] == [(False, 2)] * 2


def finish_all(jobs, source, look):
    for dispatch in look.dispatches:
        for tenant in sorted(dispatch.iteration.tenants):
            finish(jobs, source, tenant, run=dispatch.name)


def test_wait_is_held_up_neither_by_other_tenants_nor_by_those_that_the_commit_did_not_change(
    jobs, source
):
    register_for_all(jobs, source, "eu", "us")
    finish(jobs, source, "eu")
    assert jobs.wait("shop.orders", 0, "eu", timeout=0) == 0
    values = ("'mirror' of tenant 'us'", "not built")
    for tenant in (None, "*", "us"):
        wait_in_vain(jobs, *values, late=True, version=0, tenant=tenant, timeout=0)
    commit(source, "us")
    finish(jobs, source, "us")
    assert jobs.get_job("eu", MIRROR).watermark.version == 0
    assert jobs.wait("shop.orders", 1, timeout=0) == 1


def test_wait_gives_up_in_time_and_names_who_lags_and_where_it_stands(jobs, source, clock):
    register_for_all(jobs, source, "eu", "us")
    finish(jobs, source, "eu")
    commit(source, "eu", "us")
    fail_job(jobs, source, 1_100, "no answer", "us")
    values = (
        "'mirror' of tenant 'eu' is at version 0 (completed)",
        "'mirror' of tenant 'us'",
        "(completed, error 1100: no answer)",
    )
    wait_in_vain(jobs, *values, late=True, timeout=1)
    assert sum(clock.slept) == pytest.approx(1.0, abs=0.2)


def test_wait_ends_at_once_when_a_lagging_job_is_paused_or_in_error(jobs, source, clock):
    register_for_all(jobs, source, "eu", "us")
    finish(jobs, source, "eu")
    jobs.pause_job("eu", MIRROR)
    assert jobs.wait("shop.orders", 0, "eu") == 0
    commit(source, "eu")
    values = ("version 0 (completed, paused)", "`iscp job resume shop.orders/mirror --tenant eu`")
    wait_in_vain(jobs, *values, late=False)
    assert clock.slept == []
    jobs.resume_job("eu", MIRROR)
    clock.meanwhile = [lambda: fail_job(jobs, source, 10_300, "no such type", "us")]
    values = ("'mirror' of tenant 'us'", "error 10300: no such type")
    wait_in_vain(jobs, *values, "iscp job repair shop.orders/mirror --tenant us", late=False)
    assert clock.slept == [0.2]


def test_wait_names_a_few_of_many_that_lag(jobs, source):
    register_for_all(jobs, source, *(f"t{number}" for number in range(9)))
    values = ("'mirror' of 9 tenants (such as 't0', 't1', 't2')", "(completed)")
    wait_in_vain(jobs, *values, late=True, timeout=0)


def test_wait_says_once_what_is_the_same_for_several(jobs, source):
    commit(source, "eu", "us")
    for name in (MIRROR, OTHER):
        jobs.register_job("*", name, make_spec(name))
        for tenant in ("eu", "us"):
            fail_job(jobs, source, 10_300, "no such type", tenant, name)
    names = "'mirror' of tenants 'eu', 'us' and 'other' of tenants 'eu', 'us'"
    remedies = (f"`iscp job repair {name} --tenant '*'`" for name in (MIRROR, OTHER))
    with raises_naming(WaitError, f"version 0: {names}", " and ".join(remedies)) as caught:
        jobs.wait("shop.orders")
    assert str(caught.value).count("(error, error 10300: no such type)") == 1


def test_wait_needs_a_job_of_every_tenant_for_an_index_that_registers_itself(jobs, source, clock):
    commit(source, "eu", "us")
    jobs.register_job("eu", MIRROR, make_spec())
    finish(jobs, source)
    wait_in_vain(jobs, "'mirror' of tenant 'us'", "not registered", late=True, timeout=1)
    register_us = partial(jobs.register_job, "us", MIRROR, make_spec())
    clock.meanwhile = [register_us, lambda: finish(jobs, source, "us")]
    assert jobs.wait("shop.orders") == 0
    # A standing registration is for every tenant too.
    jobs.deployment.log.register_standing(OTHER, make_spec(OTHER))
    values = ("'other' of tenants 'eu', 'us'", "not registered")
    wait_in_vain(jobs, *values, late=True, timeout=0)


def test_wait_leaves_out_what_a_person_unregistered(jobs, source, clock):
    register_for_all(jobs, source, "eu", "us")
    finish(jobs, source)
    jobs.unregister_job("us", MIRROR)
    assert jobs.wait("shop.orders", timeout=0) == 0
    # Also when it is unregistered during the wait, and when its data is gone.
    commit(source, "eu", "us")
    finish(jobs, source)
    jobs.register_job("us", MIRROR, make_spec())
    clock.meanwhile = [lambda: jobs.unregister_job("us", MIRROR)]
    assert jobs.wait("shop.orders") == 1
    dropped = jobs.deployment.log.list_dropped(clock.now + timedelta(days=1))
    jobs.deployment.log.mark_collected(dropped)
    assert jobs.wait("shop.orders", timeout=0) == 1


@pytest.mark.parametrize("tenant", ["us", None])
def test_wait_for_nothing_but_what_a_person_unregistered_ends_at_once(jobs, source, clock, tenant):
    register_for_all(jobs, source, "eu", "us")
    jobs.unregister_job(tenant or "*", MIRROR)
    whose, option = ("tenant 'us'", "us") if tenant else ("tenants 'eu', 'us'", "'*'")
    remedy = f"`iscp job register shop.orders/mirror --tenant {option}`"
    wait_in_vain(jobs, f"version 0: 'mirror' of {whose}", remedy, late=False, tenant=tenant)
    assert clock.slept == []
    jobs.register_job("*", MIRROR, make_spec())
    wait_in_vain(jobs, "not built", late=True, tenant=tenant, timeout=0)


def test_wait_needs_no_job_of_a_later_tenant_or_an_index_that_does_not_register_itself(
    jobs, source
):
    commit(source, "eu")
    none = replace(jobs, sources=[replace(source, indexes=[Mirror(auto_register=False)])])
    with raises_naming(ConfigError, "shop.orders", "iscp job register"):
        none.wait("shop.orders")
    jobs.register_job("eu", MIRROR, make_spec())
    finish(jobs, source)
    shy = replace(source, indexes=[Mirror(), FullText("doc", auto_register=False)])
    assert replace(jobs, sources=[shy]).wait("shop.orders", timeout=0) == 0
    commit(source, "us")
    assert jobs.wait("shop.orders", 0, timeout=0) == 0


def test_an_index_is_rebuilt_for_all_as_the_kind_that_it_is_declared_with(jobs, source):
    text = JobID(db="shop", table="orders", job="text")
    mirrors = replace(jobs, sources=[replace(source, indexes=[Mirror(), Mirror(name="text")])])
    both = replace(jobs, sources=[replace(source, indexes=[Mirror(), FullText("region")])])
    commit(source, "eu")
    mirrors.register_job("eu", text, make_spec(text))
    both.rebuild_job("*", text)
    assert both.get_job("eu", text).spec.detail.consumer.type == "text"


def test_wait_for_a_tenant_that_is_in_no_log_and_has_no_job_ends_at_once(jobs, source, clock):
    register(jobs, source, "eu")
    with raises_naming(NoSuchJobError, "shop.orders", "tenant 'us'", "eu"):
        jobs.wait("shop.orders", tenant="us")
    assert clock.slept == []
    # A job is registered before the tenant's first row.
    jobs.register_job("de", MIRROR, make_spec())
    finish(jobs, source, "de")
    assert jobs.wait("shop.orders", tenant="de", timeout=0) == 0
    # A commit has just made the tenant, or is to make it.
    register_us = partial(jobs.register_job, "us", MIRROR, make_spec())
    finish_us = partial(finish, jobs, source, "us")
    clock.meanwhile = [lambda: commit(source, "us"), register_us, finish_us]
    assert jobs.wait("shop.orders", 1, tenant="us") == 1
    assert clock.slept == [0.2, 0.2, 0.2]


STRANDED = ("error 10220", "iscp job register shop.orders/mirror")


def test_wait_for_a_table_that_is_created_anew_ends_at_once(jobs, source, clock):
    register(jobs, source, "eu")
    clock.meanwhile = [lambda: recreate(source, "eu")]
    wait_in_vain(jobs, "shop.orders", "recreated", late=False)
    assert clock.slept == [0.2]
    # It was created anew before the wait.
    Runner(jobs.deployment, [source]).look(None)
    wait_in_vain(jobs, *STRANDED, late=False)
    assert clock.slept == [0.2]


@pytest.mark.parametrize("left", [(), ("us",)], ids=["without rows", "without the tenant"])
def test_wait_does_not_say_yes_while_rows_of_an_earlier_table_are_served(jobs, source, clock, left):
    commit(source, "eu", "us")
    jobs.register_job("eu", MIRROR, make_spec())
    finish(jobs, source)
    recreate(source, *left)
    # Before a look, and after it.
    wait_in_vain(jobs, "'mirror'", late=True, timeout=1, index="mirror")
    Runner(jobs.deployment, [source]).look(None)
    wait_in_vain(jobs, *STRANDED, late=False, index="mirror")
    jobs.register_job("*", MIRROR, make_spec())
    for tenant in list_tenants(jobs, MIRROR):
        finish(jobs, source, tenant)
    assert jobs.wait("shop.orders", index="mirror") == 0


@pytest.mark.parametrize(
    ("table", "version", "values"),
    [
        ("shop.ordrs", None, ["'shop.ordrs'", "shop.orders", "the module 'mine' (ISCP_ASSETS)"]),
        ("orders", None, ["'orders'", "database.table"]),
        (".orders", None, ["'.orders'", "database.table"]),
        ("shop.orders", -1, ["version -1 of shop.orders", 0]),
    ],
)
def test_wait_for_what_there_cannot_be_is_refused(jobs, source, table, version, values):
    commit(source, "eu")
    with raises_naming(ConfigError, *values):
        replace(jobs, declared_in="the module 'mine' (ISCP_ASSETS)").wait(table, version)


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
    run_script(code)


def test_a_name_that_the_package_has_not_is_an_attribute_error():
    with raises_naming(AttributeError, "'regster_job'"):
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
    for created in (True, False):
        assert iscp_dagster.register_job("rich", SYMBOLS, make_spec(SYMBOLS)) is created
    change = iscp_dagster.SpecUpdate(priority=4)
    assert iscp_dagster.update_job_spec("rich", SYMBOLS, change, interrupt=True) is True
    assert iscp_dagster.pause_job("rich", SYMBOLS) is True
    assert iscp_dagster.resume_job("rich", SYMBOLS) is True
    assert iscp_dagster.get_job_status("rich", SYMBOLS).code == 0
    assert iscp_dagster.count_jobs() == {s: int(s is JobState.COMPLETED) for s in JobState}
    ((tenant, name, _),) = iscp_dagster.get_job_count(JobState.COMPLETED)
    assert (tenant, name) == ("rich", SYMBOLS)
    assert open_jobs(environ).get_job("rich", SYMBOLS).priority == 4
    with pytest.raises(WaitError):
        iscp_dagster.wait("docs.symbols", timeout=0)
    assert iscp_dagster.unregister_job("rich", SYMBOLS) is True


def test_the_functions_join_a_transaction_of_the_caller(environ):
    assert iscp_dagster.register_job("rich", SYMBOLS, make_spec(SYMBOLS))
    change = iscp_dagster.SpecUpdate(priority=4)
    engine = open_engine(environ["ISCP_LOG_URL"])
    with engine.connect() as connection, connection.begin() as transaction:
        assert iscp_dagster.update_job_spec("rich", SYMBOLS, change, connection=connection)
        assert iscp_dagster.unregister_job("rich", SYMBOLS, connection=connection)
        assert iscp_dagster.register_job("rich", SYMBOLS, make_spec(SYMBOLS), connection=connection)
        assert iscp_dagster.update_job_spec("rich", SYMBOLS, change, connection=connection)
        transaction.rollback()
    engine.dispose()
    assert open_jobs(environ).get_job("rich", SYMBOLS).priority == 0


def test_without_a_deployment_what_is_not_set_is_named(tmp_path):
    names = "CLICKHOUSE_URL, SPARK_REMOTE, ISCP_LOG_URL and ISCP_LAKE"
    with raises_naming(ConfigError, names):
        open_jobs({"ISCP_HOME": str(tmp_path)})
    environ = dict.fromkeys(["CLICKHOUSE_URLS", "SPARK_REMOTE", "ISCP_LOG_URL"], "http://one:1")
    with raises_naming(ConfigError, "ISCP_LAKE") as caught:
        open_jobs({"ISCP_HOME": str(tmp_path)} | environ)
    assert not [name for name in environ if name in str(caught.value)]


@pytest.mark.parametrize("tenant", ["it's", '"; rm -r ~ $(x)', "a\nb", "-x"])
def test_a_command_of_a_message_means_that_tenant_in_a_shell(tenant):
    command = format_command("register", tenant, MIRROR)
    words = ["iscp", "job", "register", "shop.orders/mirror", "--tenant", tenant]
    assert shlex.split(command.strip("`")) == words


@pytest.fixture
def dagster_home(tmp_path):
    home = tmp_path / "dagster"
    home.mkdir()
    shutil.copyfile(ROOT / "dagster.yaml", home / "dagster.yaml")
    return home


def queue_run(instance, **tags):
    return instance.add_run(make_run(DagsterRunStatus.QUEUED, tags)).run_id


@pytest.mark.slow
def test_runs_are_canceled_by_id_and_by_dispatch_and_no_others(dagster_home):
    with DagsterInstance.from_config(str(dagster_home)) as instance:
        by_id = queue_run(instance)
        by_dispatch = queue_run(instance, **{DISPATCH_TAG: "d1"})
        other = queue_run(instance, **{DISPATCH_TAG: "d2"})
        cancel_runs(str(dagster_home), {by_id, "d1", "no run of ours"})
        states = [instance.get_run_by_id(run).status for run in (by_id, by_dispatch, other)]
    canceled = DagsterRunStatus.CANCELED
    assert states == [canceled, canceled, DagsterRunStatus.QUEUED]


@pytest.mark.slow
@pytest.mark.parametrize("tenants", [["rich"], ["rich", "jinja2", "click"]], ids=len)
def test_an_interrupting_update_cancels_a_run_all_of_whose_jobs_are_interrupted(
    environ, dagster_home, tenants
):
    jobs = open_jobs({**environ, "DAGSTER_HOME": str(dagster_home)})
    log, source = jobs.deployment.log, jobs.get_source("docs.symbols")
    for tenant in tenants:
        jobs.register_job(tenant, SYMBOLS, make_spec(SYMBOLS))
        log.enqueue(due(jobs, source, tenant, SYMBOLS), "d1")
    with DagsterInstance.from_config(str(dagster_home)) as instance:
        run = queue_run(instance, **{DISPATCH_TAG: "d1"})
        if len(tenants) > 1:
            # One of its jobs has begun, so the log knows it by the run's id.
            log.claim_jobs(due(jobs, source, tenants[0], SYMBOLS), run, {}, queued_as="d1")
        states = []
        for tenant in tenants:
            jobs.update_job_spec(tenant, SYMBOLS, SpecUpdate(priority=1), interrupt=True)
            states.append(instance.get_run_by_id(run).status)
    *others, last = states
    assert set(others) <= {DagsterRunStatus.QUEUED}
    assert last is DagsterRunStatus.CANCELED


@pytest.mark.parametrize("commits", [True, False])
def test_jobs_and_a_users_rows_are_written_in_one_transaction(jobs, source, canceled, commits):
    """The user's table is in the database of the ISCP log."""
    engine = jobs.deployment.log.engine
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE mine (what TEXT)")
    commit(source, "eu", "us")
    assert jobs.register_job("us", MIRROR, make_spec())
    begin(jobs, source, "us")
    before = jobs.deployment.log.list_jobs(include_dropped=True)
    with engine.connect() as connection, connection.begin() as transaction:
        connection.exec_driver_sql("INSERT INTO mine VALUES ('a row')")
        assert jobs.register_job("eu", MIRROR, make_spec(), connection=connection)
        assert not jobs.register_job("eu", MIRROR, make_spec(), connection=connection)
        assert jobs.register_job("*", OTHER, make_spec(OTHER), connection=connection)
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
    with engine.connect() as connection:
        rows = connection.exec_driver_sql("SELECT count(*) FROM mine").scalar_one()
    assert rows == int(commits)
    assert canceled == []
    if not commits:
        assert jobs.deployment.log.list_jobs(include_dropped=True) == before
        return
    assert {(job.key.tenant, job.name, job.state.label) for job in jobs.list_jobs()} == {
        ("eu", MIRROR, "completed"),
        ("us", MIRROR, "canceled"),
        ("eu", OTHER, "completed"),
    }
    assert list(jobs.deployment.log.list_standing()) == [OTHER]
    assert {job.priority for job in jobs.list_jobs() if job.name == MIRROR} == {3}
