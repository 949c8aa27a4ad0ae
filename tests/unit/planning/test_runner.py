"""The runner over real Delta logs and an ISCP log in memory; Spark is never asked for."""

import json
import shutil
from collections import Counter
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from deltalake import DeltaTable

from iscp_dagster import Mirror, SourceTable, Vector
from iscp_dagster.api.jobs import Jobs
from iscp_dagster.delta.log import deltalog
from iscp_dagster.delta.log.commits import commit_name
from iscp_dagster.joblog.iterations import Iteration
from iscp_dagster.joblog.sql.tables import ISCP_LOG, ISCP_LOG_EVENTS
from iscp_dagster.joblog.updates import SpecUpdate
from iscp_dagster.location.assets.iterations import register_jobs
from iscp_dagster.model.batch import Range
from iscp_dagster.model.errors import ConfigError, SourceError, UnavailableError
from iscp_dagster.model.jobs import JobID
from iscp_dagster.model.specs import ConsumerInfo, IterationDetail, JobSpec
from iscp_dagster.model.states import JobState
from iscp_dagster.planning.declared import make_job_specs, make_new_jobs
from iscp_dagster.planning.look import SensorCursor
from iscp_dagster.planning.runner import BEGINNING, Runner
from iscp_dagster.planning.table_problems import find_problems
from iscp_dagster.planning.watch import TableWatch
from iscp_dagster.sync.bounds import IterationBounds
from iscp_dagster.sync.deployment import Deployment
from iscp_dagster.upkeep.maintenance import flush_watermarks
from iscp_dagster.upkeep.position import read_positions
from support.jobs.log_rows import carry_out, fail, log_in_memory
from support.jobs.one_table import commit, in_memory, name_dead_store, write_commit

MIRROR = JobID(db="shop", table="orders", job="mirror")


def raising(error):
    def raises(*_):
        raise error

    return raises


def due(look):
    """Return the due iterations by tenant; equal ones share a dispatch."""
    return sorted(
        (
            tenant,
            [key.job_name for key in each.iteration.jobs if key.tenant == tenant],
            each.iteration.from_.version,
            each.iteration.to.version,
        )
        for each in look.dispatches
        for tenant in each.iteration.tenants
    )


def begun(deployment, source, *tenants):
    """Commit a row for each tenant; return a runner and its first look, carried out."""
    commit(source, *tenants)
    runner = Runner(deployment, [source])
    look = runner.look(None)
    carry_out(deployment, look)
    return runner, look


def test_a_first_look_registers_every_tenant_and_synchronizes_it_in_one_scan(deployment, source):
    commit(source, "eu", "us")
    look = Runner(deployment, [source]).look(None)
    both = ["mirror", "vector"]
    assert due(look) == [("eu", both, -1, 0), ("us", both, -1, 0)]
    assert {job.state for job in deployment.log.list_jobs()} == {JobState.PENDING}
    assert [each.iteration.priority for each in look.dispatches] == [1]


def test_what_is_queued_is_not_queued_again(deployment, source):
    commit(source, "eu")
    runner = Runner(deployment, [source])
    cursor = runner.look(None).cursor
    again = runner.look(cursor)
    assert (again.dispatches, again.cursor) == ([], cursor)


def test_only_the_tenants_of_the_new_commits_iterate_and_the_others_move_in_memory(
    deployment, source
):
    runner, first = begun(deployment, source, "eu", "us")
    commit(source, "us")
    look = runner.look(first.cursor)
    assert due(look) == [("us", ["mirror", "vector"], 0, 1)]
    idle = deployment.log.list_jobs(tenant="eu")
    assert {job.watermark.version for job in idle} == {0}
    carry_out(deployment, look)
    assert all(each.in_step for each in read_positions(deployment, source))
    assert runner.look(look.cursor).dispatches == []


def test_a_new_job_begins_where_in_commit_timestamps_were_turned_on(deployment, source):
    """An idle tenant's others were built before; as of then, changes cannot be told apart."""
    commit(source, "eu")
    (mirror, _) = source.indexes
    carry_out(deployment, Runner(deployment, [replace(source, indexes=(mirror,))]).look(None))
    log = Path(source.path, "_delta_log")
    actions = map(json.loads, (log / f"{0:020d}.json").read_text().splitlines())
    (stated,) = (each for each in actions if "metaData" in each)
    stated["metaData"]["configuration"] |= {
        "delta.enableInCommitTimestamps": "true",
        "delta.inCommitTimestampEnablementVersion": "1",
    }
    info = {"commitInfo": {"inCommitTimestamp": 4_000_000_000_000, "timestamp": 0}}
    (log / f"{1:020d}.json").write_text("\n".join(map(json.dumps, (info, stated))))
    assert due(Runner(deployment, [source]).look(None)) == [("eu", ["vector"], -1, 1)]


def test_a_job_that_is_taken_after_it_was_planned_is_left_out_and_the_others_are_queued(
    deployment, source
):
    runner, first = begun(deployment, source, "eu", "us", "xx")
    commit(source, "eu", "us", "xx")
    (mirror, *_) = deployment.log.list_jobs(tenant="us")
    mine = Iteration.from_jobs([mirror], deployment.make_delta_log(source).get_moment(1))

    def taken():
        deployment.log.begin(mine, "a person's", {})
        return False

    runner.ending = taken
    (dispatch,) = runner.look(first.cursor).dispatches
    others = [job.key for job in deployment.log.list_jobs() if job.key != mirror.key]
    assert dispatch.iteration.jobs == tuple(others)
    assert deployment.log.list_queued(dispatch.name) == (dispatch.iteration,)
    assert deployment.log.find_job(mirror.key).run_id == "a person's"


def test_a_restart_in_between_loses_nothing(deployment, source):
    _, first = begun(deployment, source, "eu")
    commit(source, "eu")
    commit(source, "us")
    look = Runner(deployment, [source]).look(first.cursor)
    assert due(look) == [
        ("eu", ["mirror", "vector"], 0, 2),
        ("us", ["mirror", "vector"], -1, 2),
    ]


@pytest.fixture
def opened(monkeypatch):
    """Record each opening of a table and each query for its jobs, until emptied."""
    found = []
    for of, name in ((deltalog, "SnapshotReader"), (TableWatch, "_examine_table")):
        real = getattr(of, name)

        def told(*args, real=real, name=name):
            found.append(name)
            return real(*args)

        monkeypatch.setattr(of, name, told)
    return found


def at_rest(deployment, source, *more):
    """Return the cursor of a runner that has nothing left to do."""
    cursor = settle(deployment, source, Runner(deployment, [source, *more]), None)
    assert SensorCursor.parse(cursor).at_rest.keys() == {source.name, *(each.name for each in more)}
    return cursor


def test_after_a_restart_nothing_is_found_out_about_tables_at_rest(deployment, source, opened):
    commit(source, "eu", "us")
    cursor = at_rest(deployment, source)
    opened.clear()
    runner = Runner(deployment, [source])
    look = runner.look(cursor)
    assert (look.dispatches, look.cursor, opened) == ([], cursor, [])
    commit(source, "eu")
    assert due(runner.look(look.cursor)) == [("eu", ["mirror", "vector"], 0, 1)]
    assert "_examine_table" not in opened


def test_what_happened_while_no_runner_looked_is_found_by_the_next(deployment, source, opened):
    commit(source, "eu", "us", "za")
    cursor = at_rest(deployment, source)
    opened.clear()
    commit(source, "za", "new")
    (us,) = (job.key for job in deployment.log.list_jobs(name=MIRROR, tenant="us"))
    deployment.log.rebuild([us])
    look = Runner(deployment, [source]).look(cursor)
    assert due(look) == [
        ("new", ["mirror", "vector"], -1, 1),
        ("us", ["mirror"], -1, 1),
        ("za", ["mirror", "vector"], 0, 1),
    ]
    assert "_examine_table" not in opened


def emptied(deployment, source):
    with deployment.log.begin_write() as connection:
        for table in (ISCP_LOG, ISCP_LOG_EVENTS):
            connection.execute(sa.delete(table))
    return source


def put_back(deployment, source):
    """Restore the log to before the jobs were registered; then add other entries."""
    emptied(deployment, source)
    name = JobID(db="a", table="b", job="c")
    for number in range(20):
        deployment.log.register(f"t{number}", name, "other", declared_as(name))
    return source


def with_one_more(deployment, source):
    del deployment
    return replace(source, indexes=[*source.indexes, Mirror(name="more")])


def stood_for(deployment, source):
    name = JobID(db=source.database, table=source.table, job="asked")
    deployment.log.register_standing(name, declared_as(name))
    return source


def declared_as(name):
    consumer = ConsumerInfo(type="mirror", db=name.db, table=name.table, job=name.job)
    return JobSpec(detail=IterationDetail(consumer=consumer))


@pytest.mark.parametrize(
    ("change", "jobs"),
    [
        (emptied, ["mirror", "vector"]),
        (put_back, ["mirror", "vector"]),
        (with_one_more, ["more"]),
        (stood_for, ["asked"]),
    ],
)
def test_a_table_at_rest_is_begun_where_what_was_remembered_does_not_hold(
    deployment, source, change, jobs
):
    commit(source, "eu", "us")
    cursor = at_rest(deployment, source)
    look = Runner(deployment, [change(deployment, source)]).look(cursor)
    assert due(look) == [("eu", jobs, -1, 0), ("us", jobs, -1, 0)]


@pytest.mark.parametrize("looks", [1, 2, 4])
def test_a_log_that_is_emptied_under_a_runner_is_filled_again(deployment, source, looks):
    commit(source, "eu")
    runner, cursor = Runner(deployment, [source]), None
    for _ in range(looks):
        look = runner.look(cursor)
        carry_out(deployment, look)
        cursor = look.cursor
    emptied(deployment, source)
    assert due(runner.look(cursor)) == [("eu", ["mirror", "vector"], -1, 0)]


def test_a_log_that_lost_what_a_look_wrote_gets_it_again(deployment, source):
    """The database fails over to a copy that is a moment behind."""
    commit(source, "eu")
    runner, cursor = Runner(deployment, [source]), at_rest(deployment, source)
    runner.look(cursor)
    with deployment.log.engine.connect() as connection:
        database = connection.connection.driver_connection
    kept = database.serialize()
    commit(source, "new")
    look = runner.look(cursor)
    assert due(look) == [("new", ["mirror", "vector"], -1, 1)]
    database.deserialize(kept)
    assert due(runner.look(look.cursor)) == [("new", ["mirror", "vector"], -1, 1)]


def test_what_a_look_learnt_that_failed_is_learnt_again(deployment, source, monkeypatch):
    """Dagster keeps the previous look's cursor; the runner keeps running."""
    commit(source, "eu")
    cursor, runner = at_rest(deployment, source), Runner(deployment, [source])
    emptied(deployment, source)
    with monkeypatch.context() as patched:
        patched.setattr(deployment.log, "take", raising(UnavailableError("no answer")))
        with pytest.raises(UnavailableError):
            runner.look(cursor)
    assert due(runner.look(cursor)) == [("eu", ["mirror", "vector"], -1, 0)]


def test_what_happened_to_a_table_that_raised_is_not_lost_with_the_looks_cursor(
    deployment, source, monkeypatch
):
    commit(source, "eu")
    cursor, runner = at_rest(deployment, source), Runner(deployment, [source])
    deployment.log.rebuild(job.key for job in deployment.log.list_jobs())
    with monkeypatch.context() as patched:
        patched.setattr(TableWatch, "refresh", raising(UnavailableError("no answer")))
        assert runner.look(cursor).problems
    assert due(runner.look(cursor)) == [("eu", ["mirror", "vector"], -1, 0)]


def test_a_table_left_out_over_an_emptied_log_is_begun_whichever_cursor_is_kept(
    deployment, source, tmp_path
):
    late = beside(source, tmp_path, name="late")
    for table in (source, late):
        commit(table, "eu")
    cursor, now = at_rest(deployment, source, late), iter([0.0, 0.0, 0.0, 0.0, 9e3])
    emptied(deployment, source)
    runner = Runner(deployment, [source, late], monotonic=lambda: next(now, 1e4))
    assert runner.look(cursor).left_out == {"shop.late"}
    looks = [runner.look(cursor) for _ in range(2)]
    assert "shop.late" in {e.source.name for look in looks for e in look.dispatches}


def test_of_tables_at_rest_that_a_look_has_no_time_for_nothing_is_missed(
    deployment, source, tmp_path
):
    late = beside(source, tmp_path, name="late")
    for table in (source, late):
        commit(table, "eu")
    cursor = at_rest(deployment, source, late)
    name = JobID(db="shop", table="late", job="mirror")
    deployment.log.rebuild(job.key for job in deployment.log.list_jobs(name=name))
    seconds = iter(range(0, 1_000, 15))
    look = Runner(deployment, [source, late], monotonic=lambda: next(seconds)).look(cursor)
    assert (look.left_out, look.dispatches) == ({"shop.late"}, [])
    for each in (look.cursor, cursor):
        found = Runner(deployment, [source, late]).look(each)
        assert [e.source.name for e in found.dispatches] == ["shop.late"]
        deployment.log.cancel(found.dispatches[0].iteration.jobs)


def test_a_commit_that_came_while_a_run_was_under_way_is_found_afterwards(deployment, source):
    commit(source, "eu")
    runner = Runner(deployment, [source])
    first = runner.look(None)
    commit(source, "eu")
    second = runner.look(first.cursor)
    assert second.dispatches == []
    carry_out(deployment, first)
    assert due(runner.look(second.cursor)) == [("eu", ["mirror", "vector"], 0, 1)]


def test_optimize_changes_no_tenant(deployment, source):
    commit(source, "eu")
    runner, first = begun(deployment, source, "eu")
    DeltaTable(source.path).optimize.compact()
    look = runner.look(first.cursor)
    assert look.dispatches == []
    assert all(each.in_step for each in read_positions(deployment, source))


def test_a_temporary_error_is_retried_after_a_while_and_a_permanent_one_is_not(
    deployment, source, clock
):
    commit(source, "eu", "us")
    runner = Runner(deployment, [source])
    first = runner.look(None)
    (dispatch,) = first.dispatches
    for claim in deployment.log.begin(dispatch.iteration, "run", {}, queued_as=dispatch.name):
        fail(deployment.log, claim, 1 if claim.key.tenant == "eu" else 10_000, "no")
    assert due(runner.look(first.cursor)) == []
    clock.pass_(5)
    assert due(runner.look(first.cursor)) == [("eu", ["mirror", "vector"], -1, 0)]


def test_a_periodic_job_is_due_when_its_interval_has_passed(deployment, source, clock):
    runner, first = begun(deployment, source, "eu")
    every = SpecUpdate(job_type="periodic", schedule={"interval": "1h"})
    deployment.log.update("eu", MIRROR, every)
    watermark = deployment.log.list_jobs()[0].watermark.at
    commit(source, "eu")
    clock.now = watermark + timedelta(minutes=59)
    second = runner.look(first.cursor)
    assert due(second) == [("eu", ["vector"], 0, 1)]
    carry_out(deployment, second)
    clock.now = watermark + timedelta(minutes=61)
    assert due(runner.look(second.cursor)) == [("eu", ["mirror"], 0, 1)]


def test_jobs_that_stand_apart_over_commits_of_others_share_a_scan(deployment, source):
    runner, look = begun(deployment, source, "eu", "us")
    for _ in range(3):
        commit(source, "us")
    held = deployment.log.list_jobs(tenant="eu")
    to = deployment.make_delta_log(source).get_moment(2)
    deployment.log.flush({job.key: Range(from_=job.watermark, to=to) for job in held})
    mirror = held[0]
    deployment.log.update("eu", mirror.name, SpecUpdate(priority=7))
    commit(source, "eu")
    look = runner.look(look.cursor)
    assert ("eu", ["mirror", "vector"], 3, 4) in due(look)


def test_a_paused_job_is_planned_when_it_is_resumed(deployment, source):
    runner, first = begun(deployment, source, "eu")
    assert deployment.log.pause("eu", MIRROR)
    commit(source, "eu")
    second = runner.look(first.cursor)
    assert due(second) == [("eu", ["vector"], 0, 1)]
    carry_out(deployment, second)
    assert deployment.log.resume("eu", MIRROR)
    assert due(runner.look(second.cursor)) == [("eu", ["mirror"], 0, 1)]


def test_a_long_backlog_is_worked_off_in_steps(deployment, source):
    deployment = replace(deployment, bounds=IterationBounds(versions=2))
    commit(source, "eu")
    runner = Runner(deployment, [source])
    look = runner.look(None)
    for _ in range(5):
        commit(source, "eu")
    carry_out(deployment, look)
    steps = []
    while (look := runner.look(look.cursor)).dispatches:
        steps += [(from_, to) for _, _, from_, to in due(look)]
        carry_out(deployment, look)
    assert steps == [(0, 2), (2, 4), (4, 5)]


def test_a_backlog_of_tenants_at_different_commits_is_worked_off_together(
    deployment, source, tmp_path
):
    deployment = replace(deployment, bounds=IterationBounds(versions=6))
    source = replace(source, tenant="tenant")
    tenants = [f"t{number}" for number in range(10)]
    table = tmp_path / "orders"
    write_commit(table, 0, tenants, 0)
    runner = Runner(deployment, [source])
    look = runner.look(None)
    carry_out(deployment, look)
    for number in range(20):
        write_commit(table, number + 1, [tenants[number % 10]], number)
    steps = []
    while (look := runner.look(look.cursor)).dispatches:
        steps += [(len(each.iteration.tenants), each.iteration.to) for each in look.dispatches]
        carry_out(deployment, look)
    assert len(steps) == 4
    assert {job.watermark.version for job in deployment.log.list_jobs()} >= {20}


def test_a_job_of_its_own_bounds_narrows_the_iteration_that_it_shares(deployment, source):
    runner, first = begun(deployment, source, "eu")
    deployment.log.update("eu", MIRROR, SpecUpdate(max_bytes=1))
    for _ in range(3):
        commit(source, "eu")
    assert due(runner.look(first.cursor)) == [("eu", ["mirror", "vector"], 0, 1)]


def dispatch_alone(monkeypatch, most):
    """Have a look dispatch so many iterations at the most, each of one tenant."""
    monkeypatch.setattr("iscp_dagster.planning.runner.MOST_DISPATCHES", most)
    monkeypatch.setattr("iscp_dagster.planning.joining.MOST_TENANTS", 1)
    monkeypatch.setattr("iscp_dagster.planning.joining.PARTS", 1)


def test_the_highest_priority_goes_first_and_then_each_tenant_in_turn(
    deployment, source, monkeypatch
):
    dispatch_alone(monkeypatch, most=3)
    commit(source, "eu", "us", "xx")
    greedy = SpecUpdate(job_type="greedy")
    table_id = deployment.make_delta_log(source).get_table_id()
    deployment.log.register_many(
        make_new_jobs(table_id, ["eu", "us", "xx"], make_job_specs(source, source.indexes))
    )
    for job in deployment.log.list_jobs():
        deployment.log.update(job.key.tenant, job.name, greedy)
    (vector,) = [
        job.name for job in deployment.log.list_jobs(tenant="xx") if job.name.job == "vector"
    ]
    deployment.log.update("xx", vector, SpecUpdate(priority=9))
    look = Runner(deployment, [source]).look(None)
    found = [(*d.iteration.tenants, d.iteration.jobs[0].job_name) for d in look.dispatches]
    assert found == [("xx", "vector"), ("eu", "mirror"), ("us", "mirror")]


def test_a_table_with_many_due_leaves_each_look_its_share_for_the_others(
    deployment, source, tmp_path, monkeypatch
):
    dispatch_alone(monkeypatch, most=5)
    source = replace(source, indexes=[Mirror()])
    tables = [source, *(beside(source, tmp_path, f"other{number}") for number in range(2))]
    commit(source, *(f"t{number:02}" for number in range(20)))
    for table in tables[1:]:
        commit(table, "a", "b", "c")
    urgent = SpecUpdate(priority=5)
    looks = [Runner(deployment, tables).look(None)]
    deployment.log.update("c", JobID(db="shop", table="other1", job="mirror"), urgent)
    looks.append(Runner(deployment, tables).look(looks[0].cursor))
    names = [
        [f"{each.source.table}/{min(each.iteration.tenants)}" for each in look.dispatches]
        for look in looks
    ]
    assert names == [
        ["orders/t00", "other0/a", "other1/a", "orders/t01", "other0/b"],
        ["other1/c", "orders/t02", "other0/c", "other1/b", "orders/t03"],
    ]


def test_nobody_waits_for_ever_while_others_are_due_in_every_look(
    deployment, source, clock, tmp_path, monkeypatch
):
    dispatch_alone(monkeypatch, most=3)
    tables = [replace(source, indexes=[Mirror()])]
    tables += [beside(tables[0], tmp_path, f"other{number}") for number in range(4)]
    everyone = {(table.name, tenant) for table in tables for tenant in ("a", "b")}
    runner, cursor, served = Runner(deployment, tables), None, set()
    for _ in range(2 * len(everyone) // 3 + 1):
        for table in tables:
            commit(table, "a", "b")
        look = runner.look(cursor)
        cursor = look.cursor
        clock.pass_(5)
        carry_out(deployment, look)
        served |= {(d.source.name, *d.iteration.tenants) for d in look.dispatches}
    assert served == everyone


def test_what_a_commit_changed_is_gone_through_once_however_many_are_due(
    deployment, source, monkeypatch
):
    tenants, counted = [f"t{number:02}" for number in range(60)], Counter()
    runner, first = begun(deployment, source, *tenants)
    commit(source, *tenants)
    own = deltalog.parse_tenant
    monkeypatch.setattr(
        deltalog, "parse_tenant", lambda value: counted.update([value]) or own(value)
    )
    (joined,) = runner.look(first.cursor).dispatches
    assert joined.iteration.tenants == set(tenants)
    assert max(counted.values()) < 10


def test_what_is_registered_for_all_is_registered_for_tenants_that_appear_later(deployment, source):
    commit(source, "eu")
    runner = Runner(deployment, [source])
    first = runner.look(None)
    name = JobID(db="shop", table="orders", job="mirror2")
    spec = deployment.log.list_jobs()[0].spec
    assert deployment.log.register_standing(name, spec)
    assert not deployment.log.register_standing(name, spec)
    commit(source, "us")
    runner.look(first.cursor)
    assert [job.key.tenant for job in deployment.log.list_jobs(name=name)] == ["us"]


def test_a_trigger_that_fails_is_a_problem_of_its_own(deployment, source):
    runner, first = begun(deployment, source, "eu")
    deployment.log.update("eu", MIRROR, SpecUpdate(job_type="no.such:Trigger"))
    commit(source, "eu")
    look = runner.look(first.cursor)
    assert due(look) == [("eu", ["vector"], 0, 1)]
    assert "'no.such:Trigger' cannot be imported" in look.problems[0].message


def test_the_cursor_has_one_entry_a_table_however_many_tenants(deployment, source):
    commit(source, *(f"tenant-{number}" for number in range(50)))
    look = Runner(deployment, [source]).look(None)
    assert list(json.loads(look.cursor)) == ["shop.orders"]
    assert len(look.cursor) < 120


def test_a_long_start_is_spread_over_several_looks(deployment, source, tmp_path):
    others = [replace(source, name=f"shop.t{n}", path=str(tmp_path / f"t{n}")) for n in range(3)]
    for each in others:
        commit(each, "eu")
    seconds = iter(range(0, 1_000, 15))
    runner = Runner(deployment, others, monotonic=lambda: next(seconds))
    look, found = runner.look(None), []
    while look.dispatches:
        found.append(sorted(each.source.name for each in look.dispatches))
        carry_out(deployment, look)
        look = runner.look(look.cursor)
    assert found == [["shop.t0"], ["shop.t1"], ["shop.t2"]]
    assert list(json.loads(look.cursor)) == ["shop.t0", "shop.t1", "shop.t2", "heard"]


def be_slow(monkeypatch, now, away):
    """The stores of the tables in `away` use up a look's time, and do not answer."""

    class Slow(TableWatch):
        def refresh(self, *seen, **how):
            if self.source.name in away:
                now[0] += BEGINNING + 1
                raise UnavailableError("no answer")
            return super().refresh(*seen, **how)

    monkeypatch.setattr("iscp_dagster.planning.runner.TableWatch", Slow)


@pytest.mark.parametrize("wrong", ["store", "log"])
def test_what_happens_to_a_job_while_its_table_is_left_out_is_found_later(
    deployment, source, tmp_path, monkeypatch, wrong
):
    slow, left_out = (
        replace(source, name=f"shop.t{n}", path=str(tmp_path / f"t{n}")) for n in range(2)
    )
    now, away = [0.0], set()

    be_slow(monkeypatch, now, away)
    runner = Runner(deployment, [slow, left_out], monotonic=lambda: now[0])
    for each in runner.sources:
        commit(each, "eu")
    look = runner.look(None)
    carry_out(deployment, look)
    name = JobID(db="shop", table="t1", job="mirror")
    deployment.log.pause("eu", name)
    commit(left_out, "eu")
    look = runner.look(look.cursor)
    carry_out(deployment, look)
    look = runner.look(look.cursor)
    assert look.dispatches == []
    deployment.log.resume("eu", name)
    if wrong == "store":
        away.add(slow.name)
        look = runner.look(look.cursor)
        away.clear()
    else:
        with monkeypatch.context() as patched:
            patched.setattr(deployment.log, "list_standing", raising(UnavailableError("no answer")))
            with pytest.raises(UnavailableError):
                runner.look(look.cursor)
    assert due(runner.look(look.cursor)) == [("eu", ["mirror"], 0, 1)]


def test_stores_that_take_all_the_time_there_is_keep_back_no_table_for_ever(
    deployment, source, tmp_path, monkeypatch
):
    tables = [replace(source, name=f"shop.t{n}", path=str(tmp_path / f"t{n}")) for n in range(3)]
    for each in tables:
        commit(each, "eu")
    now, away = [0.0], {each.name for each in tables}

    be_slow(monkeypatch, now, away)
    runner = Runner(deployment, tables, monotonic=lambda: now[0])
    looks = [runner.look(None)]
    for number in range(6):
        if number == len(tables):
            away.remove("shop.t2")
        looks.append(runner.look(looks[-1].cursor))
    assert {each.source.name for look in looks for each in look.dispatches} == {"shop.t2"}


def test_a_watermark_older_than_the_log_is_iterated_without_asking_what_changed(deployment, source):
    _, first = begun(deployment, source, "eu", "us")
    for _ in range(2):
        commit(source, "eu")
    # This includes a tenant that has no rows any more.
    DeltaTable(source.path).delete("region = 'us'")
    DeltaTable(source.path).create_checkpoint()
    for version in (0, 1):
        (Path(source.path) / commit_name(version)).unlink()
    both = ["mirror", "vector"]
    look = Runner(deployment, [source]).look(first.cursor)
    assert look.problems == []
    assert due(look) == [("eu", both, 0, 3), ("us", both, 0, 3)]


def test_a_missing_table_is_a_problem_of_its_own(deployment, source, tmp_path):
    missing = SourceTable("shop.gone", key="id", path=str(tmp_path / "gone"), indexes=[Mirror()])
    commit(source, "eu")
    look = Runner(deployment, [missing, source]).look(None)
    assert len(look.problems) == 1
    assert str(look.problems[0]).startswith("shop.gone: There is no Delta table at")
    assert len(look.dispatches) == 1


def beside(source, tmp_path, name="other", **declared):
    """Declare another table, without commits yet."""
    path = str(tmp_path / name)
    options = {"key": "id", "tenant": "region", "path": path, "indexes": [Mirror()]} | declared
    return SourceTable(f"shop.{name}", **options)


def test_a_delta_table_follows_one_declaration(deployment, source, tmp_path):
    """The table's id exposes an alias of its path, also when both begin empty."""
    (tmp_path / "alias").symlink_to(source.path)
    twin = replace(source, name="shop.twin", path=str(tmp_path / "alias"))
    commit(source, "eu")
    runner = Runner(deployment, [source, twin])
    look = runner.look(None)
    assert {each.source.name for each in look.dispatches} == {source.name}
    carry_out(deployment, look)
    commit(source, "eu", "us")
    again = runner.look(look.cursor)
    assert {each.source.name for each in again.dispatches} == {source.name}
    for found in (look, again):
        (problem,) = found.problems
        assert problem.table == "shop.twin"
        assert "is the same Delta table as shop.orders" in problem.message
    assert [each.table for each in find_problems(deployment, twin)] == ["shop.twin"]
    jobs = Jobs(deployment=deployment, sources=[source, twin], cancel_runs=pytest.fail)
    info = ConsumerInfo(type="mirror", db="shop", table="twin", job="more")
    more = JobSpec(detail=IterationDetail(consumer=info))
    for ask in (
        lambda: read_positions(deployment, twin),
        lambda: jobs.wait("shop.twin", timeout=0),
        lambda: jobs.register_job("eu", JobID(db="shop", table="twin", job="more"), more),
        lambda: register_jobs(
            deployment, twin, DeltaTable(source.path).metadata().id, "us", twin.indexes
        ),
        lambda: register_jobs(
            deployment, twin, DeltaTable(source.path).metadata().id, "new", twin.indexes
        ),
    ):
        with pytest.raises(ConfigError, match=r"the same Delta table as shop\.orders"):
            ask()
    assert deployment.log.find_table_names(DeltaTable(source.path).metadata().id) == {
        ("shop", "orders")
    }


@pytest.mark.parametrize(
    "cursor", ["garbage \0 {", "[]", '"x"', '{"shop.orders": 7}', '{"untold": 3}', '{"told": 3}']
)
def test_a_cursor_that_nobody_can_read_is_none(deployment, source, cursor):
    commit(source, "eu")
    carry_out(deployment, Runner(deployment, [source]).look(None))
    commit(source, "eu")
    look = Runner(deployment, [source]).look(cursor)
    assert (look.forgot, look.problems) == (True, [])
    assert due(look) == [("eu", ["mirror", "vector"], 0, 1)]
    assert not Runner(deployment, [source]).look(look.cursor).forgot


def spoil(checkpoint):
    """Write bytes that make deltalake panic, which raises a BaseException that is no Exception."""
    name = "add.partitionValues.key_value.key"
    group = pq.ParquetFile(checkpoint).metadata.row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    found = next(each for each in columns if each.path_in_schema.startswith(name))
    held = bytearray(checkpoint.read_bytes())
    start = found.dictionary_page_offset or found.data_page_offset
    end = start + found.total_compressed_size
    held[end - 4 : end] = bytes(4)
    checkpoint.write_bytes(held)


@pytest.mark.parametrize("wrong", ["store", "folder", "commit", "checkpoint", "trigger", "tenants"])
def test_whatever_a_table_raises_stops_it_alone(deployment, source, tmp_path, monkeypatch, wrong):
    other = beside(source, tmp_path)
    commit(other, "eu")
    if wrong == "store":
        other = beside(source, tmp_path, path="s3://bucket/other")
        name_dead_store(monkeypatch)
    elif wrong == "folder":
        loop = Path(other.path) / "_delta_log"
        shutil.rmtree(loop)
        loop.symlink_to(loop.name)
    elif wrong == "commit":
        # An action that no reader expects: it raises an error of the reader's own.
        (Path(other.path) / commit_name(1)).write_text('{"add": {"path": 7, "size": "x"}}\n')
    elif wrong == "checkpoint":
        commit(other, "us")
        DeltaTable(other.path).create_checkpoint()
        path = other.path
        spoil(next(Path(path).glob("_delta_log/*.checkpoint.parquet")))
        with pytest.raises(SourceError, match="the reader gave up"):
            deployment.make_delta_log(other).poll()
        # The user's code may call deltalake too.
        other = replace(other, load=print, tenants=lambda: DeltaTable(path).partitions())
    elif wrong == "tenants":
        shutil.rmtree(other.path)
        other = replace(other, load=print, tenants=lambda: 1 / 0)
    commit(source, "eu")
    runner = Runner(deployment, [other, source])
    look = runner.look(None)
    if wrong == "trigger":
        job = next(
            each for each in deployment.log.list_jobs(tenant="eu") if each.name.table == "other"
        )
        carry_out(deployment, look)
        deployment.log.update("eu", job.name, SpecUpdate(job_type="builtins:int"))
        commit(other, "eu")
        commit(source, "eu")
        look = runner.look(look.cursor)
    assert [each.source.name for each in look.dispatches] == ["shop.orders"]
    assert {each.table for each in look.problems} == {"shop.other"}


def test_a_table_that_cannot_be_read_is_asked_once_a_look(deployment, source, tmp_path):
    """Each attempt may take a store's full timeout, and Dagster gives a tick a minute."""
    others = [beside(source, tmp_path, name=name) for name in ("gone", "late")]
    for table in (*others, source):
        commit(table, "eu", "us", "za")
    first = Runner(deployment, [*others, source]).look(None)
    shutil.rmtree(others[0].path)

    @dataclass(frozen=True, kw_only=True)
    class Slow(Deployment):
        def make_delta_log(self, source):
            asked.append(source.name)
            return super().make_delta_log(source)

    asked = []
    slow = Slow(**{each.name: getattr(deployment, each.name) for each in fields(deployment)})
    runner = Runner(
        slow,
        [*others, source],
        monotonic=lambda: 2 * BEGINNING if "shop.gone" in asked else 0.0,
    )
    look = runner.look(first.cursor)
    assert {each.table for each in look.problems} == {"shop.gone"}
    assert asked.count("shop.gone") == 1
    assert look.left_out == {"shop.late", "shop.orders"}


def test_rows_without_a_tenant_hold_up_nobody_and_are_counted(deployment, source):
    commit(source, "eu", None, None)
    runner = Runner(deployment, [source])
    looks = [runner.look(None)]
    assert due(looks[0]) == [("eu", ["mirror", "vector"], -1, 0)]
    carry_out(deployment, looks[0])
    commit(source, "us")
    looks.append(runner.look(looks[-1].cursor))
    assert due(looks[1]) == [("us", ["mirror", "vector"], -1, 1)]
    commit(source, None)
    looks.append(runner.look(looks[-1].cursor))
    DeltaTable(source.path).delete("region IS NULL")
    looks.append(runner.look(looks[-1].cursor))
    counted = [[each.facts["rows_without_tenant"] for each in look.problems] for look in looks]
    assert counted == [[2], [2], [3], []]
    # It is reported again when there are more of them.
    assert [bool(look.new_problem_tables) for look in looks] == [True, False, True, False]
    assert [bool(look.settled) for look in looks] == [False, False, False, True]


def test_what_is_left_out_of_a_table_is_told_and_holds_up_nothing(deployment, source):
    commit(source, "eu")
    told = [ConfigError("index x is left out")]
    runner = Runner(deployment, [replace(source, left_out=told)])
    look = runner.look(None)
    assert due(look) == [("eu", ["mirror", "vector"], -1, 0)]
    assert [(each.code, each.severe) for each in look.problems] == [(10_100, True)]
    assert look.new_problem_tables == {source.name}
    carry_out(deployment, look)
    look = Runner(deployment, [source]).look(look.cursor)
    assert (look.problems, look.settled) == ([], {source.name})


def test_a_tenant_that_no_database_can_store_holds_up_nobody_and_is_counted(
    deployment, source, monkeypatch
):
    # A folder cannot have a name that is too long.
    monkeypatch.setattr("iscp_dagster.model.jobs.TENANT_BYTES", 10)
    longest, longer = "ü" * 5, "ü" * 5 + "x"
    commit(source, "eu", "a\0b", longest, longer)
    runner = Runner(deployment, [source])
    looks = [runner.look(None)]
    assert due(looks[0]) == [(each, ["mirror", "vector"], -1, 0) for each in ("eu", longest)]
    assert looks[0].present == {"shop.orders": ("eu", longest)}
    carry_out(deployment, looks[0])
    commit(source, "eu", "a\0b")
    looks.append(runner.look(looks[-1].cursor))
    assert due(looks[1]) == [("eu", ["mirror", "vector"], 0, 1)]
    counted = [[each.facts["rows_without_tenant"] for each in look.problems] for look in looks]
    assert counted == [[2], [3]]
    assert "or has a NUL character or more than 1,024 bytes" in looks[1].problems[0].message


def test_a_problem_is_told_once_and_its_end_too(deployment, source, tmp_path):
    other = beside(source, tmp_path)
    commit(source, "eu")
    looks = [Runner(deployment, [other, source]).look(None)]
    for step in ("", "restart", "another", "over", ""):
        if step == "another":
            Path(other.path, "_delta_log").mkdir(parents=True)
            loop = Path(other.path) / commit_name(0)
            loop.symlink_to(loop.name)
        if step == "over":
            (Path(other.path) / commit_name(0)).unlink()
            commit(other, "eu")
        looks.append(Runner(deployment, [other, source]).look(looks[-1].cursor))
    told = [(sorted(each.new_problem_tables), sorted(each.settled)) for each in looks]
    nothing, rose, over = ([], []), (["shop.other"], []), ([], ["shop.other"])
    assert told == [rose, nothing, nothing, rose, over, nothing]
    assert [len(each.problems) for each in looks] == [1, 1, 1, 1, 0, 0]


def test_a_table_that_can_be_loaded_offers_its_tenants(deployment, tmp_path):
    loadable = SourceTable(
        "shop.new",
        key="id",
        tenant="region",
        path=str(tmp_path / "new"),
        indexes=[Mirror()],
        load=lambda load: load,
        tenants=lambda: ["eu", "us"],
    )
    look = Runner(deployment, [loadable]).look(None)
    assert look.present == {"shop.new": ("eu", "us")}


@pytest.mark.parametrize("written_since", [[], ["eu"], ["eu", "us"], ["eu", "us", "us"]])
@pytest.mark.parametrize("runner", ["lives on", "starts again", "has no cursor"])
def test_what_was_made_from_commits_that_a_backup_does_not_have_is_built_anew(
    deployment, source, tmp_path, written_since, runner
):
    commit(source, "eu", "us", "still")
    settled = settle(deployment, source, Runner(deployment, [source]), None)
    (still,) = {j.watermark for j in deployment.log.list_jobs(tenant="still")}
    shutil.copytree(source.path, tmp_path / "backup")
    commit(source, "us", "eu")
    watching = Runner(deployment, [source])
    cursor = settle(deployment, source, watching, settled)
    shutil.rmtree(source.path)
    shutil.copytree(tmp_path / "backup", source.path)
    for tenant in written_since:
        commit(source, tenant)
    if runner != "lives on":
        watching = Runner(deployment, [source])
    look = watching.look(None if runner == "has no cursor" else cursor)
    both, last = ["mirror", "vector"], len(written_since)
    assert due(look) == [("eu", both, -1, last), ("us", both, -1, last)]
    carry_out(deployment, look)
    assert watching.look(look.cursor).dispatches == []
    assert {j.watermark for j in deployment.log.list_jobs(tenant="still")} == {still}
    assert all(each.in_step for each in read_positions(deployment, source))


def test_watermarks_of_another_history_are_not_moved_along_this_one(deployment, source, tmp_path):
    commit(source, "eu", "us")
    shutil.copytree(source.path, tmp_path / "backup")
    commit(source, "us", "eu")
    settle(deployment, source, Runner(deployment, [source]), None)
    shutil.rmtree(source.path)
    shutil.copytree(tmp_path / "backup", source.path)
    for _ in range(2):
        commit(source, "eu")
    before = {job.key: str(job.watermark) for job in deployment.log.list_jobs()}
    flush_watermarks(deployment, [source])
    assert {job.key: str(job.watermark) for job in deployment.log.list_jobs()} == before


def settle(deployment, source, runner, cursor):
    """Look until nothing is due; return the cursor."""
    while (look := runner.look(cursor)).cursor != cursor:
        carry_out(deployment, look)
        cursor = look.cursor
    assert all(each.in_step for each in read_positions(deployment, source))
    return cursor


def test_a_table_recreated_at_its_path_is_another_table(deployment, source):
    runner, first = begun(deployment, source, "eu")
    shutil.rmtree(source.path)
    commit(source, "eu")
    look = runner.look(first.cursor)
    assert due(look) == []
    jobs = deployment.log.list_jobs()
    assert {(job.state, job.status.code) for job in jobs} == {(JobState.ERROR, 10_220)}
    assert "was dropped or recreated" in jobs[0].status.message
    assert "Register the job again" in jobs[0].status.message


def create_or_replace(source, *tenants):
    """Commit what CREATE OR REPLACE TABLE does: a new table id in the same log."""
    log = Path(source.path) / "_delta_log"
    version = max(int(each.stem) for each in log.glob("*.json") if each.stem.isdigit()) + 1
    gone = DeltaTable(source.path).get_add_actions(flatten=True)
    actions = [
        {"remove": {"path": path, "dataChange": True, "partitionValues": {"region": region}}}
        for path, region in zip(
            gone["path"].to_pylist(), gone["partition.region"].to_pylist(), strict=True
        )
    ]
    beside = Path(source.path).with_name(f"replacement-{version}")
    commit(replace(source, path=str(beside)), *tenants)
    lines = (beside / commit_name(0)).read_text().splitlines()
    actions += [each for each in map(json.loads, lines) if "protocol" not in each]
    shutil.copytree(beside, source.path, ignore=lambda *_: ["_delta_log"], dirs_exist_ok=True)
    text = "\n".join(map(json.dumps, actions))
    (Path(source.path) / commit_name(version)).write_text(text + "\n")


@pytest.mark.parametrize("between", ["looks", "restart", "checkpoint", "clean-up"])
def test_a_table_that_was_replaced_while_its_log_goes_on_is_another_table(
    deployment, source, between
):
    runner, first = begun(deployment, source, "eu", "us")
    create_or_replace(source, "eu", "xx")
    if between != "looks":
        runner = Runner(deployment, [source])
    if between in {"checkpoint", "clean-up"}:
        DeltaTable(source.path).create_checkpoint()
    if between == "clean-up":
        for version in (0, 1):
            (Path(source.path) / commit_name(version)).unlink()
    look = runner.look(first.cursor)
    assert due(look) == []
    jobs = deployment.log.list_jobs()
    assert {(job.state, job.status.code) for job in jobs} == {(JobState.ERROR, 10_220)}
    assert {job.key.tenant for job in jobs} == {"eu", "us"}
    assert runner.look(look.cursor).cursor == look.cursor


def test_a_replaced_table_is_rebuilt_where_it_is_declared_so(deployment, source):
    source = replace(source, on_replace="rebuild")
    runner, first = begun(deployment, source, "eu", "us")
    priority = SpecUpdate(priority=9)
    deployment.log.update("eu", MIRROR, priority)
    create_or_replace(source, "eu", "xx")
    look = runner.look(first.cursor)
    both = ["mirror", "vector"]
    # A tenant that the new table lacks is also built, as empty.
    assert due(look) == [("eu", both, -1, 1), ("us", both, -1, 1), ("xx", both, -1, 1)]
    assert look.problems == []
    assert {d.iteration.priority for d in look.dispatches if "eu" in d.iteration.tenants} == {9}
    table_id = deployment.make_delta_log(source).get_table_id()
    assert {job.key.table_id for job in deployment.log.list_jobs()} == {table_id}
    carry_out(deployment, look)
    assert all(each.in_step for each in read_positions(deployment, source))
    assert runner.look(look.cursor).dispatches == []


def test_stranded_jobs_are_rebuilt_once_the_table_is_declared_so(deployment, source):
    _, first = begun(deployment, source, "eu")
    shutil.rmtree(source.path)
    commit(source, "eu")
    look = Runner(deployment, [source]).look(first.cursor)
    (problem,) = look.problems
    assert "the jobs of mirror, vector belong to the earlier table" in problem.message
    assert find_problems(deployment, source) == look.problems
    look = Runner(deployment, [replace(source, on_replace="rebuild")]).look(look.cursor)
    assert due(look) == [("eu", ["mirror", "vector"], -1, 0)]
    assert look.settled == {"shop.orders"}


def test_what_becomes_of_a_replaced_tables_jobs_is_one_of_two(source):
    with pytest.raises(ConfigError, match=r"on_replace='drop' is not one of: strand, rebuild"):
        replace(source, on_replace="drop")


def test_a_tenant_that_only_the_recreated_table_has_waits_for_the_stranded_ones(deployment, source):
    runner, first = begun(deployment, source, "eu")
    shutil.rmtree(source.path)
    commit(source, "eu", "us")
    look = runner.look(first.cursor)
    commit(source, "us", "xx")
    look = runner.look(look.cursor)
    assert due(look) == due(Runner(deployment, [source]).look(look.cursor)) == []
    jobs = Jobs(deployment=deployment, sources=[source], cancel_runs=pytest.fail)
    (mirror,) = [job for job in deployment.log.list_jobs() if job.name.job == "mirror"]
    assert jobs.register_job("eu", mirror.name, mirror.spec)
    # No job of that index is stranded any more; all jobs of the other one still are.
    commit(source, "us")
    look = runner.look(look.cursor)
    assert due(look) == [(tenant, ["mirror"], -1, 2) for tenant in ("eu", "us", "xx")]


def test_an_index_that_is_not_to_register_itself_does_not(deployment, source):
    commit(source, "eu")
    shy = replace(source, indexes=[Mirror(auto_register=False), Vector("v", dimension=2)])
    look = Runner(deployment, [shy]).look(None)
    assert due(look) == [("eu", ["vector"], -1, 0)]


def test_an_index_declared_later_is_built_for_every_tenant(deployment, source):
    _, first = begun(deployment, source, "eu", "us")
    more = replace(source, indexes=[*source.indexes, Mirror(name="copy")])
    look = Runner(deployment, [more]).look(first.cursor)
    assert due(look) == [("eu", ["copy"], -1, 0), ("us", ["copy"], -1, 0)]


def test_a_table_that_is_to_come_has_nothing_to_flush_and_one_that_went_is_named(
    deployment, source
):
    assert flush_watermarks(deployment, [source]).problems == []
    commit(source, "eu")
    Runner(deployment, [source]).look(None)
    shutil.rmtree(source.path)
    (problem,) = flush_watermarks(deployment, [source]).problems
    assert "There is no Delta table" in problem


def test_of_two_runners_on_one_log_one_looks_and_the_other_takes_over(source, clock):
    now = [1_000.0]
    log = log_in_memory(clock=clock, lease_clock=lambda: now[0])
    deployment = replace(in_memory(clock), log=log)
    commit(source, "eu")
    one, two = (
        Runner(deployment, [source], owner=name, monotonic=lambda: now[0])
        for name in ("one", "two")
    )
    first = one.look(None)
    beside = two.look(None)
    assert len(first.dispatches) == 1
    assert (beside.dispatches, beside.cursor) == ([], "{}")
    assert beside.elsewhere == {source.name}
    carry_out(deployment, first)
    cursor = first.cursor
    for _ in range(100):
        now[0] += 10
        cursor = one.look(cursor).cursor
        assert two.look(beside.cursor).elsewhere == {source.name}
    commit(source, "us")
    now[0] += deployment.log.leases.runner + 1
    taken = two.look(beside.cursor)
    assert [tenant for tenant, *_ in due(taken)] == ["us"]
    late = one.look(cursor)
    assert (late.dispatches, late.elsewhere) == ([], {source.name})
    assert SensorCursor.parse(late.cursor).marks == SensorCursor.parse(cursor).marks


def test_two_runners_that_look_at_once_dispatch_each_iteration_once(deployment, source):
    """This happens when one hung after it had renewed its lease."""
    commit(source, "eu", "us")
    one, two = Runner(deployment, [source]), Runner(deployment, [source])
    asked = deployment.log.enqueue
    others = []

    def meanwhile(iteration, name):
        if not others:
            others.append(None)
            others[0] = two.look(None)
        return asked(iteration, name)

    deployment.log.enqueue = meanwhile
    look = one.look(None)
    assert sorted(due(look) + due(others[0])) == [
        ("eu", ["mirror", "vector"], -1, 0),
        ("us", ["mirror", "vector"], -1, 0),
    ]
