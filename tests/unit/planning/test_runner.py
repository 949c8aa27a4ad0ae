"""The runner over real Delta logs and an ISCP log in memory; Spark is never asked for."""

import json
import shutil
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from deltalake import DeltaTable

from iscp_dagster import Mirror
from iscp_dagster.api.jobs import Jobs
from iscp_dagster.delta.log import deltalog
from iscp_dagster.delta.log.commits import format_commit_name
from iscp_dagster.joblog.iterations import Iteration
from iscp_dagster.joblog.sql.tables import ISCP_LOG, ISCP_LOG_EVENTS
from iscp_dagster.joblog.updates import SpecUpdate
from iscp_dagster.location.assets.iterations import replace_registrations
from iscp_dagster.model.batch import Range
from iscp_dagster.model.errors import ConfigError, SourceError, UnavailableError
from iscp_dagster.model.jobs import JobID
from iscp_dagster.model.states import JobState
from iscp_dagster.planning import watch
from iscp_dagster.planning.look import SensorCursor
from iscp_dagster.planning.runner import FIRST_LOOK_SECONDS
from iscp_dagster.planning.table_problems import find_problems
from iscp_dagster.planning.watch import TableWatch
from iscp_dagster.sync.bounds import IterationBounds
from iscp_dagster.sync.deployment import Deployment
from iscp_dagster.upkeep.maintenance import flush_watermarks
from iscp_dagster.upkeep.position import read_positions
from support.errors import assert_names, raises_naming
from support.jobs.log_rows import carry_out, fail, log_in_memory, make_plain_spec
from support.jobs.one_table import commit, in_memory, write_commit

BOTH = ["mirror", "vector"]
MIRROR = JobID(db="shop", table="orders", job="mirror")


def give_no_answer(*_, **_options):
    raise UnavailableError("no answer")


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


def list_due_tables(look):
    return [each.source.name for each in look.dispatches]


def beside(source, name="other", **changes):
    """Declare another table, without commits yet."""
    path = str(Path(source.path).with_name(name))
    return replace(source, name=f"shop.{name}", **{"path": path} | changes)


def commit_file(source, version):
    return Path(source.path, format_commit_name(version))


def delete_commits(source, *versions):
    """Have the log begin with a checkpoint."""
    DeltaTable(source.path).create_checkpoint()
    for version in versions:
        commit_file(source, version).unlink()


def assert_in_step(deployment, source):
    assert all(each.in_step for each in read_positions(deployment, source))


def test_tenants_iterate_once_for_each_change_and_the_others_move_in_memory(
    deployment, source, start
):
    commit(source, "eu", "us")
    sensor = start(source)
    look = sensor.look()
    assert due(look) == [("eu", BOTH, -1, 0), ("us", BOTH, -1, 0)]
    assert {job.state for job in deployment.log.list_jobs()} == {JobState.PENDING}
    assert [each.iteration.priority for each in look.dispatches] == [1]
    # Nothing comes due before what is queued has ended.
    again, watch = sensor.look(), sensor.runner.watches[source.name]
    assert (again.dispatches, watch.open_tenants) == ([], set())
    assert sensor.look().cursor == again.cursor
    carry_out(deployment, look)
    commit(source, "us")
    look = sensor.look()
    assert due(look) == [("us", BOTH, 0, 1)]
    assert {job.watermark.version for job in deployment.log.list_jobs(tenant="eu")} == {0}
    # A commit that comes during a run is found afterwards.
    commit(source, "us")
    assert sensor.look().dispatches == []
    carry_out(deployment, look)
    assert due(sensor.synchronize()) == [("us", BOTH, 1, 2)]
    assert_in_step(deployment, source)
    assert sensor.look().dispatches == []


def test_a_new_job_begins_where_in_commit_timestamps_were_turned_on(source, start):
    """An idle tenant's others were built before; as of then, changes cannot be told apart."""
    commit(source, "eu")
    (mirror, _) = source.indexes
    start(replace(source, indexes=(mirror,))).synchronize()
    actions = map(json.loads, commit_file(source, 0).read_text().splitlines())
    (metadata,) = (each for each in actions if "metaData" in each)
    metadata["metaData"]["configuration"] |= {
        "delta.enableInCommitTimestamps": "true",
        "delta.inCommitTimestampEnablementVersion": "1",
    }
    info = {"commitInfo": {"inCommitTimestamp": 4_000_000_000_000, "timestamp": 0}}
    commit_file(source, 1).write_text("\n".join(map(json.dumps, (info, metadata))))
    assert due(start(source).look()) == [("eu", ["vector"], -1, 1)]


def test_a_job_taken_after_it_was_planned_is_left_out_of_its_iteration(deployment, source, begin):
    sensor = begin(source, "eu", "us", "xx")
    commit(source, "eu", "us", "xx")
    (mirror, *_) = deployment.log.list_jobs(tenant="us")
    own_iteration = Iteration.from_jobs([mirror], deployment.make_delta_log(source).get_moment(1))

    def take_job():
        deployment.log.claim_jobs(own_iteration, "a person's", {})
        return False

    sensor.runner.ending = take_job
    (dispatch,) = sensor.look().dispatches
    others = [job.key for job in deployment.log.list_jobs() if job.key != mirror.key]
    assert dispatch.iteration.jobs == tuple(others)
    assert deployment.log.list_queued(dispatch.name) == (dispatch.iteration,)
    assert deployment.log.find_job(mirror.key).run_id == "a person's"


@pytest.fixture
def rest(start):
    def rest_tables(*sources):
        """Return a sensor that starts when there is nothing left to do."""
        sensor = start(*sources)
        sensor.settle()
        for each in sources:
            assert_in_step(sensor.deployment, each)
        assert SensorCursor.parse(sensor.cursor).at_rest.keys() == {each.name for each in sources}
        sensor.restart()
        return sensor

    return rest_tables


def test_after_a_restart_only_events_since_are_read_of_tables_at_rest(
    deployment, source, rest, monkeypatch
):
    calls = []
    for owner, name in ((deltalog, "SnapshotReader"), (TableWatch, "_examine_table")):
        real = getattr(owner, name)

        def record(*args, real=real, name=name):
            calls.append(name)
            return real(*args)

        monkeypatch.setattr(owner, name, record)
    commit(source, "eu", "us", "za")
    sensor = rest(source)
    cursor = sensor.cursor
    calls.clear()
    look = sensor.look()
    assert (look.dispatches, look.cursor, calls) == ([], cursor, [])
    commit(source, "eu")
    assert due(sensor.synchronize()) == [("eu", BOTH, 0, 1)]
    sensor.settle()
    # No runner sees these; the next one finds them.
    sensor.restart()
    commit(source, "za", "new")
    (us,) = (job.key for job in deployment.log.list_jobs(name=MIRROR, tenant="us"))
    deployment.log.rebuild([us])
    rebuilt = ("us", ["mirror"], -1, 2)
    assert due(sensor.look()) == [("new", BOTH, -1, 2), rebuilt, ("za", BOTH, 1, 2)]
    assert SensorCursor.parse(sensor.cursor).at_rest == {}
    assert "_examine_table" not in calls


def test_very_many_tenants_are_registered_and_planned_in_turn(
    deployment, source, start, monkeypatch
):
    """A look has a minute; the next one continues, also one of another process."""
    monkeypatch.setattr(watch, "MOST_REGISTERED", 2)
    monkeypatch.setattr(watch, "MOST_PLANNED", 2)
    commit(source, "a", "b", "c", "d", "e")
    sensor = start(source)

    def take_look():
        look = sensor.look()
        carry_out(deployment, look)
        return [tenant for tenant, *_ in due(look)], len(deployment.log.list_jobs())

    # Nothing is planned before all are registered.
    assert take_look() == ([], 4)
    assert SensorCursor.parse(sensor.cursor).at_rest == {}
    sensor.restart()
    assert take_look() == ([], 8)
    commit(source, "e", "f")
    assert sensor.runner.has_unregistered_tenants()
    assert take_look() == (["a", "b"], 12)
    assert not sensor.runner.has_unregistered_tenants()
    assert [take_look()[0] for _ in range(3)] == [["c", "d"], ["e", "f"], []]
    commit(source, "a", "b", "c", "d", "e")
    assert [take_look()[0] for _ in range(4)] == [["a", "b"], ["c", "d"], ["e"], []]
    assert_in_step(deployment, source)


def test_tenants_that_cannot_start_yet_let_others_be_planned(
    deployment, source, begin, monkeypatch
):
    monkeypatch.setattr(watch, "MOST_PLANNED", 2)
    tenants = ("a", "b", "c", "d", "e")
    sensor = begin(source, *tenants)
    commit(source, *tenants)
    for tenant in ("a", "b", "c"):
        for job in deployment.log.list_jobs(tenant=tenant):
            lone = Iteration.from_jobs([job], deployment.make_delta_log(source).get_moment(1))
            (claim,) = deployment.log.claim_jobs(lone, "run", {})
            fail(deployment.log, claim, 1_100, "away")
    planned = [tenant for _ in range(3) for tenant, *_ in due(sensor.look())]
    assert sorted(planned) == ["d", "e"]


def empty_log(deployment, source):
    with deployment.log.begin_write() as connection:
        for table in (ISCP_LOG, ISCP_LOG_EVENTS):
            connection.execute(sa.delete(table))
    return source


def restore_log(deployment, source):
    """Restore the log to before the jobs were registered; then add other entries."""
    empty_log(deployment, source)
    name = JobID(db="a", table="b", job="c")
    for number in range(20):
        deployment.log.register(f"t{number}", name, "other", make_plain_spec(name))
    return source


def declare_index(deployment, source):
    del deployment
    return replace(source, indexes=[*source.indexes, Mirror(name="more")])


def register_for_all(deployment, source):
    name = JobID(db=source.database, table=source.table, job="for_all")
    deployment.log.register_standing(name, make_plain_spec(name))
    return source


@pytest.mark.parametrize(
    ("change", "jobs"),
    [
        (empty_log, BOTH),
        (restore_log, BOTH),
        (declare_index, ["more"]),
        (register_for_all, ["for_all"]),
    ],
)
def test_a_table_at_rest_begins_anew_if_its_jobs_are_others(deployment, source, rest, change, jobs):
    commit(source, "eu", "us")
    sensor = rest(source)
    sensor.restart(change(deployment, source))
    assert due(sensor.look()) == [("eu", jobs, -1, 0), ("us", jobs, -1, 0)]


@pytest.mark.parametrize("looks", [1, 2, 4])
def test_a_log_that_is_emptied_under_a_runner_is_filled_again(deployment, source, begin, looks):
    sensor = begin(source, "eu")
    for _ in range(looks - 1):
        sensor.synchronize()
    empty_log(deployment, source)
    assert due(sensor.look()) == [("eu", BOTH, -1, 0)]


def test_a_log_that_lost_what_a_look_wrote_gets_it_again(deployment, source, rest):
    """The database fails over to a copy that is a moment behind."""
    commit(source, "eu")
    sensor = rest(source)
    sensor.look()
    with deployment.log.engine.connect() as connection:
        database = connection.connection.driver_connection
    copy = database.serialize()
    commit(source, "new")
    assert due(sensor.look()) == [("new", BOTH, -1, 1)]
    database.deserialize(copy)
    assert due(sensor.look()) == [("new", BOTH, -1, 1)]


@pytest.mark.parametrize("failing", ["look", "table"])
def test_events_that_a_failed_look_had_read_are_read_again(
    deployment, source, rest, monkeypatch, failing
):
    """Dagster keeps the previous look's cursor; the runner keeps running."""
    commit(source, "eu")
    sensor = rest(source)
    cursor = sensor.cursor
    with monkeypatch.context() as patched:
        if failing == "look":
            empty_log(deployment, source)
            patched.setattr(deployment.log, "take_leases", give_no_answer)
            with pytest.raises(UnavailableError):
                sensor.look()
        else:
            deployment.log.rebuild(job.key for job in deployment.log.list_jobs())
            patched.setattr(TableWatch, "refresh", give_no_answer)
            assert sensor.look().problems
    sensor.cursor = cursor
    assert due(sensor.look()) == [("eu", BOTH, -1, 0)]


def test_a_table_left_out_over_an_emptied_log_begins_whichever_cursor_is_kept(
    deployment, source, rest, start
):
    late = beside(source, "late")
    for table in (source, late):
        commit(table, "eu")
    cursor, now = rest(source, late).cursor, iter([0.0, 0.0, 0.0, 0.0, 9e3])
    empty_log(deployment, source)
    runner = start(source, late, monotonic=lambda: next(now, 1e4)).runner
    assert runner.look(cursor).left_out == {"shop.late"}
    assert "shop.late" in {name for _ in range(2) for name in list_due_tables(runner.look(cursor))}


def test_nothing_is_missed_of_tables_at_rest_that_a_look_has_no_time_for(
    deployment, source, rest, start
):
    late = beside(source, "late", indexes=[Mirror()])
    for table in (source, late):
        commit(table, "eu")
    cursor = rest(source, late).cursor
    name = JobID(db="shop", table="late", job="mirror")
    deployment.log.rebuild(job.key for job in deployment.log.list_jobs(name=name))
    seconds = iter(range(0, 1_000, 15))
    look = start(source, late, cursor=cursor, monotonic=lambda: next(seconds)).look()
    assert (look.left_out, look.dispatches) == ({"shop.late"}, [])
    for each in (look.cursor, cursor):
        later = start(source, late, cursor=each).look()
        assert list_due_tables(later) == ["shop.late"]
        deployment.log.cancel(later.dispatches[0].iteration.jobs)


def test_a_job_that_its_trigger_keeps_back_holds_up_no_other(deployment, source, clock, begin):
    sensor = begin(source, "eu")
    watermark = deployment.log.list_jobs()[0].watermark.at
    deployment.log.update("eu", MIRROR, SpecUpdate(job_type="no.such:Trigger"))
    commit(source, "eu")
    look = sensor.synchronize()
    assert due(look) == [("eu", ["vector"], 0, 1)]
    assert_names(look.problems[0].message, "'no.such:Trigger'", "No module named 'no'")
    hourly = SpecUpdate(job_type="periodic", schedule={"interval": "1h"})
    deployment.log.update("eu", MIRROR, hourly)
    for minutes, expected in ((59, []), (61, [("eu", ["mirror"], 0, 1)])):
        clock.now = watermark + timedelta(minutes=minutes)
        assert due(sensor.look()) == expected


def test_jobs_that_are_apart_only_over_commits_of_others_share_a_scan(deployment, source, begin):
    sensor = begin(source, "eu", "us")
    for _ in range(3):
        commit(source, "us")
    jobs = deployment.log.list_jobs(tenant="eu")
    to = deployment.make_delta_log(source).get_moment(2)
    deployment.log.flush({job.key: Range(from_=job.watermark, to=to) for job in jobs})
    deployment.log.update("eu", jobs[0].name, SpecUpdate(priority=7))
    commit(source, "eu")
    assert ("eu", BOTH, 3, 4) in due(sensor.look())


def test_a_long_backlog_is_worked_off_in_steps(deployment, source, start):
    commit(source, "eu")
    sensor = start(source, deployment=replace(deployment, bounds=IterationBounds(versions=2)))
    sensor.synchronize()
    for _ in range(5):
        commit(source, "eu")
    steps = []
    while (look := sensor.synchronize()).dispatches:
        steps += [(from_, to) for _, _, from_, to in due(look)]
    assert steps == [(0, 2), (2, 4), (4, 5)]
    # A job's own bounds narrow the iteration that it shares.
    deployment.log.update("eu", MIRROR, SpecUpdate(max_bytes=1))
    for _ in range(2):
        commit(source, "eu")
    assert due(sensor.look()) == [("eu", BOTH, 5, 6)]


def test_a_backlog_of_tenants_at_different_commits_is_worked_off_together(
    deployment, source, start
):
    source = replace(source, tenant="tenant")
    tenants = [f"t{number}" for number in range(10)]
    table = Path(source.path)
    write_commit(table, 0, tenants, 0)
    sensor = start(source, deployment=replace(deployment, bounds=IterationBounds(versions=6)))
    sensor.synchronize()
    for number in range(20):
        write_commit(table, number + 1, [tenants[number % 10]], number)
    runs = 0
    while (look := sensor.synchronize()).dispatches:
        runs += len(look.dispatches)
    assert runs == 4
    assert {job.watermark.version for job in deployment.log.list_jobs()} >= {20}


def dispatch_alone(monkeypatch, most):
    """Have a look dispatch so many iterations at the most, each of one tenant."""
    monkeypatch.setattr("iscp_dagster.planning.runner.MOST_DISPATCHES", most)
    monkeypatch.setattr("iscp_dagster.planning.joining.MOST_TENANTS", 1)
    monkeypatch.setattr("iscp_dagster.planning.joining.SCANS_PER_RUN", 1)


def test_the_highest_priority_goes_first_and_then_each_tenant_in_turn(
    deployment, source, start, monkeypatch
):
    dispatch_alone(monkeypatch, most=3)
    commit(source, "eu", "us", "xx")
    table_id = deployment.make_delta_log(source).get_table_id()
    replace_registrations(deployment, source, table_id, ["eu", "us", "xx"], source.indexes)
    for job in deployment.log.list_jobs():
        deployment.log.update(job.key.tenant, job.name, SpecUpdate(job_type="greedy"))
    vector = replace(MIRROR, job="vector")
    deployment.log.update("xx", vector, SpecUpdate(priority=9))
    iterations = [each.iteration for each in start(source).look().dispatches]
    dispatched = [(*each.tenants, each.jobs[0].job_name) for each in iterations]
    assert dispatched == [("xx", "vector"), ("eu", "mirror"), ("us", "mirror")]


def test_a_table_with_many_due_leaves_each_look_its_share_for_the_others(
    deployment, source, start, monkeypatch
):
    dispatch_alone(monkeypatch, most=5)
    source = replace(source, indexes=[Mirror()])
    others = [beside(source, f"other{number}") for number in range(2)]
    commit(source, *(f"t{number:02}" for number in range(20)))
    for table in others:
        commit(table, "a", "b", "c")
    sensor = start(source, *others)
    looks = [sensor.look()]
    urgent = JobID(db="shop", table="other1", job="mirror")
    deployment.log.update("c", urgent, SpecUpdate(priority=5))
    sensor.restart()
    looks.append(sensor.look())
    dispatched = [
        [f"{each.source.table}/{min(each.iteration.tenants)}" for each in look.dispatches]
        for look in looks
    ]
    assert dispatched == [
        ["orders/t00", "other0/a", "other1/a", "orders/t01", "other0/b"],
        ["other1/c", "orders/t02", "other0/c", "other1/b", "orders/t03"],
    ]


def test_nobody_waits_for_ever_while_others_are_due_in_every_look(
    source, clock, start, monkeypatch
):
    dispatch_alone(monkeypatch, most=3)
    tables = [replace(source, indexes=[Mirror()])]
    tables += [beside(tables[0], f"other{number}") for number in range(4)]
    everyone = {(table.name, tenant) for table in tables for tenant in ("a", "b")}
    sensor, served = start(*tables), set()
    for _ in range(2 * len(everyone) // 3 + 1):
        for table in tables:
            commit(table, "a", "b")
        look = sensor.look()
        clock.pass_(5)
        carry_out(sensor.deployment, look)
        served |= {(each.source.name, *each.iteration.tenants) for each in look.dispatches}
    assert served == everyone


def test_a_commit_of_many_tenants_is_read_once_and_the_cursor_stays_short(
    source, begin, monkeypatch
):
    tenants, counted = [f"t{number:02}" for number in range(60)], Counter()
    sensor = begin(source, *tenants)
    commit(source, *tenants)
    real = deltalog.parse_tenant
    monkeypatch.setattr(
        deltalog, "parse_tenant", lambda value: counted.update([value]) or real(value)
    )
    look = sensor.look()
    (joined,) = look.dispatches
    assert joined.iteration.tenants == set(tenants)
    assert max(counted.values()) < 10
    assert list(json.loads(look.cursor)) == ["shop.orders"]
    assert len(look.cursor) < 120


def test_a_long_start_is_spread_over_several_looks(source, start):
    tables = [beside(source, f"t{number}") for number in range(3)]
    for table in tables:
        commit(table, "eu")
    seconds = iter(range(0, 1_000, 15))
    sensor, looks = start(*tables, monotonic=lambda: next(seconds)), []
    while (look := sensor.synchronize()).dispatches:
        looks.append(sorted(list_due_tables(look)))
    assert looks == [["shop.t0"], ["shop.t1"], ["shop.t2"]]
    assert list(json.loads(look.cursor)) == ["shop.t0", "shop.t1", "shop.t2", "heard"]


def slow_down(monkeypatch, now, away):
    """The stores of the tables in `away` use up a look's time, and do not answer."""

    class Slow(TableWatch):
        def refresh(self, *args, **options):
            if self.source.name in away:
                now[0] += FIRST_LOOK_SECONDS + 1
                raise UnavailableError("no answer")
            return super().refresh(*args, **options)

    monkeypatch.setattr("iscp_dagster.planning.runner.TableWatch", Slow)


@pytest.mark.parametrize("failing", ["store", "log"])
def test_events_of_a_table_that_a_look_leaves_out_are_found_later(
    deployment, source, start, monkeypatch, failing
):
    slow, left_out = (beside(source, f"t{number}") for number in range(2))
    now, away = [0.0], set()
    slow_down(monkeypatch, now, away)
    for each in (slow, left_out):
        commit(each, "eu")
    sensor = start(slow, left_out, monotonic=lambda: now[0])
    sensor.synchronize()
    name = JobID(db="shop", table="t1", job="mirror")
    deployment.log.pause("eu", name)
    commit(left_out, "eu")
    sensor.synchronize()
    assert sensor.look().dispatches == []
    deployment.log.resume("eu", name)
    if failing == "store":
        away.add(slow.name)
        sensor.look()
        away.clear()
    else:
        with monkeypatch.context() as patched:
            patched.setattr(deployment.log, "list_standing", give_no_answer)
            with pytest.raises(UnavailableError):
                sensor.look()
    assert due(sensor.look()) == [("eu", ["mirror"], 0, 1)]


def test_stores_that_take_all_the_time_keep_back_no_table_for_ever(source, start, monkeypatch):
    tables = [beside(source, f"t{number}") for number in range(3)]
    for each in tables:
        commit(each, "eu")
    now, away = [0.0], {each.name for each in tables}
    slow_down(monkeypatch, now, away)
    sensor, served = start(*tables, monotonic=lambda: now[0]), set()
    for number in range(7):
        if number == 1 + len(tables):
            away.remove("shop.t2")
        served |= {*list_due_tables(sensor.look())}
    assert served == {"shop.t2"}


def test_a_watermark_older_than_the_log_iterates_without_asking_what_changed(source, begin):
    sensor = begin(source, "eu", "us")
    for _ in range(2):
        commit(source, "eu")
    # This includes a tenant that has no rows any more.
    DeltaTable(source.path).delete("region = 'us'")
    delete_commits(source, 0, 1)
    sensor.restart()
    look = sensor.look()
    assert look.problems == []
    assert due(look) == [("eu", BOTH, 0, 3), ("us", BOTH, 0, 3)]


def test_a_delta_table_follows_one_declaration(deployment, source, start):
    """The table's id exposes an alias of its path, also when both begin empty."""
    twin = beside(source, "twin")
    Path(twin.path).symlink_to(source.path)
    commit(source, "eu")
    sensor = start(source, twin)
    looks = [sensor.synchronize()]
    commit(source, "eu", "us")
    looks.append(sensor.look())
    table_id = DeltaTable(source.path).metadata().id
    for look in looks:
        assert {*list_due_tables(look)} == {source.name}
        (problem,) = look.problems
        assert problem.table == "shop.twin"
        assert_names(problem.message, "shop.orders", table_id)
    assert [each.table for each in find_problems(deployment, twin)] == ["shop.twin"]
    jobs = Jobs(deployment=deployment, sources=[source, twin], cancel_runs=pytest.fail)
    name = JobID(db="shop", table="twin", job="more")
    for use_twin in (
        partial(read_positions, deployment, twin),
        partial(jobs.wait, "shop.twin", timeout=0),
        partial(jobs.register_job, "eu", name, make_plain_spec(name)),
        partial(replace_registrations, deployment, twin, table_id, ["new"], twin.indexes),
    ):
        with raises_naming(ConfigError, "shop.twin", "shop.orders", table_id):
            use_twin()
    assert deployment.log.find_table_names(table_id) == {("shop", "orders")}


@pytest.mark.parametrize(
    "cursor", ["garbage \0 {", "[]", '"x"', '{"shop.orders": 7}', '{"untold": 3}', '{"told": 3}']
)
def test_an_unreadable_cursor_counts_as_none(source, begin, cursor):
    sensor = begin(source, "eu")
    commit(source, "eu")
    sensor.restart()
    sensor.cursor = cursor
    look = sensor.look()
    assert (look.forgot, look.problems) == (True, [])
    assert due(look) == [("eu", BOTH, 0, 1)]
    sensor.restart()
    assert not sensor.look().forgot


def spoil(checkpoint):
    """Write bytes that make deltalake panic, which raises a BaseException that is no Exception."""
    name = "add.partitionValues.key_value.key"
    group = pq.ParquetFile(checkpoint).metadata.row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    column = next(each for each in columns if each.path_in_schema.startswith(name))
    content = bytearray(checkpoint.read_bytes())
    start = column.dictionary_page_offset or column.data_page_offset
    end = start + column.total_compressed_size
    content[end - 4 : end] = bytes(4)
    checkpoint.write_bytes(content)


@pytest.mark.parametrize("fault", ["missing", "commit", "checkpoint", "tenants"])
def test_whatever_a_table_raises_stops_it_alone(deployment, source, start, fault):
    other = beside(source, indexes=[Mirror()])
    commit(other, "eu")
    path = other.path
    if fault in {"missing", "tenants"}:
        shutil.rmtree(path)
    if fault == "tenants":
        other = replace(other, load=print, tenants=lambda: 1 / 0)
    elif fault == "commit":
        # An action that no reader expects: it raises an error of the reader's own.
        commit_file(other, 1).write_text('{"add": {"path": 7, "size": "x"}}\n')
    elif fault == "checkpoint":
        commit(other, "us")
        DeltaTable(path).create_checkpoint()
        spoil(next(Path(path).glob("_delta_log/*.checkpoint.parquet")))
        with raises_naming(SourceError, path) as caught:
            deployment.make_delta_log(other).poll()
        assert type(caught.value.__cause__.__cause__).__name__ == "PanicException"
        # The user's code may call deltalake too.
        other = replace(other, load=print, tenants=lambda: DeltaTable(path).partitions())
    commit(source, "eu")
    look = start(other, source).look()
    assert list_due_tables(look) == ["shop.orders"]
    assert {each.table for each in look.problems} == {"shop.other"}
    if fault == "missing":
        (problem,) = look.problems
        assert (problem.missing, problem.severe, problem.code) == (True, False, 10_230)
        assert str(problem) == f"shop.other: {problem.message}"


def test_an_unreadable_table_is_asked_once_a_look(source, start, monkeypatch):
    """Each attempt may take a store's full timeout, and Dagster gives a tick a minute."""
    others = [beside(source, name) for name in ("gone", "late")]
    for table in (*others, source):
        commit(table, "eu", "us", "za")
    cursor = start(*others, source).look().cursor
    shutil.rmtree(others[0].path)
    real, asked = Deployment.make_delta_log, []

    def record(deployment, source):
        asked.append(source.name)
        return real(deployment, source)

    def read_clock():
        return 2 * FIRST_LOOK_SECONDS if "shop.gone" in asked else 0.0

    monkeypatch.setattr(Deployment, "make_delta_log", record)
    look = start(*others, source, cursor=cursor, monotonic=read_clock).look()
    assert {each.table for each in look.problems} == {"shop.gone"}
    assert asked.count("shop.gone") == 1
    assert look.left_out == {"shop.late", "shop.orders"}


def test_rows_of_no_tenant_or_one_that_cannot_be_stored_hold_up_nobody_and_are_counted(
    source, start, monkeypatch
):
    # A folder cannot have a name that is too long.
    monkeypatch.setattr("iscp_dagster.model.jobs.TENANT_BYTES", 10)
    longest, longer = "ü" * 5, "ü" * 5 + "x"
    commit(source, "eu", None, None, "a\0b", longest, longer)
    sensor = start(source)
    looks = [sensor.look()]
    assert looks[0].present == {"shop.orders": ("eu", longest)}
    assert [dict(each.versions) for each in sensor.report().news] == [{"eu": 0, longest: 0}]
    carry_out(sensor.deployment, looks[0])
    commit(source, "us")
    looks.append(sensor.look())
    assert due(looks[0]) == [("eu", BOTH, -1, 0), (longest, BOTH, -1, 0)]
    assert due(looks[1]) == [("us", BOTH, -1, 1)]
    assert_names(looks[1].problems[0].message, "'region'", "NUL", "1,024 bytes")
    commit(source, None, "a\0b")
    looks.append(sensor.look())
    DeltaTable(source.path).delete(f"region IS NULL OR region NOT IN ('eu', 'us', '{longest}')")
    looks.append(sensor.look())
    counts = [[each.facts["rows_without_tenant"] for each in look.problems] for look in looks]
    assert counts == [[4], [4], [6], []]
    # It is reported again when there are more of them.
    assert [bool(look.new_problem_tables) for look in looks] == [True, False, True, False]
    assert [bool(look.resolved_tables) for look in looks] == [False, False, False, True]


def test_an_index_that_is_left_out_is_a_problem_and_holds_up_nothing(source, start):
    commit(source, "eu")
    sensor = start(replace(source, left_out=[ConfigError("index x is left out")]))
    look = sensor.synchronize()
    assert due(look) == [("eu", BOTH, -1, 0)]
    assert [(each.code, each.severe) for each in look.problems] == [(10_100, True)]
    assert look.new_problem_tables == {source.name}
    sensor.restart(source)
    look = sensor.look()
    assert (look.problems, look.resolved_tables) == ([], {source.name})


def test_a_problem_is_reported_once_and_its_end_too(source, start):
    other = beside(source)
    commit(source, "eu")
    sensor = start(other, source)
    looks = [sensor.look()]
    for step in ("", "restart", "another", "over", ""):
        if step == "another":
            commit_file(other, 0).parent.mkdir(parents=True)
            commit_file(other, 0).symlink_to(commit_file(other, 0).name)
        if step == "over":
            commit_file(other, 0).unlink()
            commit(other, "eu")
        sensor.restart()
        looks.append(sensor.look())
    reports = [(sorted(each.new_problem_tables), sorted(each.resolved_tables)) for each in looks]
    nothing, new, over = ([], []), (["shop.other"], []), ([], ["shop.other"])
    assert reports == [new, nothing, nothing, new, over, nothing]
    assert [len(each.problems) for each in looks] == [1, 1, 1, 1, 0, 0]


def test_a_table_that_can_be_loaded_offers_its_tenants(source, start):
    loadable = replace(source, load=lambda load: load, tenants=lambda: ["eu", "us"])
    assert start(loadable).look().present == {"shop.orders": ("eu", "us")}


def back_up(source):
    shutil.copytree(source.path, f"{source.path}.backup")


def restore(source):
    shutil.rmtree(source.path)
    shutil.copytree(f"{source.path}.backup", source.path)


@pytest.mark.parametrize("written_since", [[], ["eu"], ["eu", "us"], ["eu", "us", "us"]])
@pytest.mark.parametrize("runner", ["lives on", "starts again", "has no cursor"])
def test_rows_of_commits_that_a_backup_does_not_have_are_built_anew(
    deployment, source, start, written_since, runner
):
    commit(source, "eu", "us", "still")
    sensor = start(source)
    sensor.settle()
    (still,) = {job.watermark for job in deployment.log.list_jobs(tenant="still")}
    back_up(source)
    commit(source, "us", "eu")
    sensor.restart()
    sensor.settle()
    restore(source)
    for tenant in written_since:
        commit(source, tenant)
    if runner != "lives on":
        sensor.restart()
    if runner == "has no cursor":
        sensor.cursor = None
    last = len(written_since)
    assert due(sensor.synchronize()) == [("eu", BOTH, -1, last), ("us", BOTH, -1, last)]
    assert sensor.look().dispatches == []
    assert {job.watermark for job in deployment.log.list_jobs(tenant="still")} == {still}
    assert_in_step(deployment, source)


def test_watermarks_of_another_history_are_not_moved_along_this_one(deployment, source, start):
    def read_watermarks():
        return {job.key: str(job.watermark) for job in deployment.log.list_jobs()}

    commit(source, "eu", "us")
    back_up(source)
    commit(source, "us", "eu")
    start(source).settle()
    assert_in_step(deployment, source)
    restore(source)
    for _ in range(2):
        commit(source, "eu")
    before = read_watermarks()
    flush_watermarks(deployment, [source])
    assert read_watermarks() == before


def recreate(source, *tenants):
    shutil.rmtree(source.path)
    commit(source, *tenants)


def create_or_replace(source, *tenants):
    """Commit what CREATE OR REPLACE TABLE does: a new table id in the same log."""
    version = DeltaTable(source.path).version() + 1
    files = DeltaTable(source.path).get_add_actions(flatten=True)
    names, regions = (files[name].to_pylist() for name in ("path", "partition.region"))
    actions = [
        {"remove": {"path": name, "dataChange": True, "partitionValues": {"region": region}}}
        for name, region in zip(names, regions, strict=True)
    ]
    replacement = beside(source, f"replacement_{version}")
    commit(replacement, *tenants)
    lines = commit_file(replacement, 0).read_text().splitlines()
    actions += [each for each in map(json.loads, lines) if "protocol" not in each]
    ignored = shutil.ignore_patterns("_delta_log")
    shutil.copytree(replacement.path, source.path, ignore=ignored, dirs_exist_ok=True)
    commit_file(source, version).write_text("\n".join(map(json.dumps, actions)) + "\n")


@pytest.mark.parametrize("change", ["recreate", "replace", "restart", "checkpoint", "clean-up"])
def test_a_recreated_or_replaced_table_is_another_table(deployment, source, begin, change):
    sensor = begin(source, "eu", "us")
    if change == "recreate":
        recreate(source, "eu", "xx")
    else:
        create_or_replace(source, "eu", "xx")
    if change in {"checkpoint", "clean-up"}:
        delete_commits(source, *([0, 1] if change == "clean-up" else []))
    if change not in {"recreate", "replace"}:
        sensor.restart()
    look = sensor.look()
    assert due(look) == []
    jobs = [(each.key.tenant, each.state, each.status.code) for each in deployment.log.list_jobs()]
    assert {*jobs} == {(tenant, JobState.ERROR, 10_220) for tenant in ("eu", "us")}
    assert sensor.look().cursor == look.cursor


def test_a_replaced_table_is_rebuilt_if_it_is_declared_so(deployment, source, begin):
    source = replace(source, on_replace="rebuild")
    sensor = begin(source, "eu", "us")
    deployment.log.update("eu", MIRROR, SpecUpdate(priority=9))
    create_or_replace(source, "eu", "xx")
    look = sensor.look()
    # A tenant that the new table lacks is also built, as empty.
    assert due(look) == [(tenant, BOTH, -1, 1) for tenant in ("eu", "us", "xx")]
    assert look.problems == []
    iterations = [each.iteration for each in look.dispatches]
    assert {each.priority for each in iterations if "eu" in each.tenants} == {9}
    table_id = deployment.make_delta_log(source).get_table_id()
    assert {job.key.table_id for job in deployment.log.list_jobs()} == {table_id}
    carry_out(deployment, look)
    assert_in_step(deployment, source)
    assert sensor.look().dispatches == []


def test_stranded_jobs_are_rebuilt_once_the_table_is_declared_so(deployment, source, begin):
    sensor = begin(source, "eu")
    recreate(source, "eu")
    sensor.restart()
    (problem,) = sensor.look().problems
    assert problem.code == 10_220
    assert_names(problem.message, "mirror", "vector", "shop.orders/mirror", "on_replace='rebuild'")
    assert find_problems(deployment, source) == [problem]
    sensor.restart(replace(source, on_replace="rebuild"))
    look = sensor.look()
    assert due(look) == [("eu", BOTH, -1, 0)]
    assert look.resolved_tables == {"shop.orders"}


def test_a_tenant_that_only_the_recreated_table_has_waits_for_the_stranded_ones(
    deployment, source, begin, start
):
    sensor = begin(source, "eu")
    recreate(source, "eu", "us")
    sensor.look()
    commit(source, "us", "xx")
    look = sensor.look()
    assert due(look) == due(start(source, cursor=look.cursor).look()) == []
    jobs = Jobs(deployment=deployment, sources=[source], cancel_runs=pytest.fail)
    (mirror,) = [job for job in deployment.log.list_jobs() if job.name.job == "mirror"]
    assert jobs.register_job("eu", mirror.name, mirror.spec)
    # No job of that index is stranded any more; all jobs of the other one still are.
    commit(source, "us")
    assert due(sensor.look()) == [(tenant, ["mirror"], -1, 2) for tenant in ("eu", "us", "xx")]


def test_a_flush_names_a_table_that_is_gone_but_not_one_that_is_to_come(deployment, source, start):
    assert flush_watermarks(deployment, [source]).problems == []
    commit(source, "eu")
    start(source).look()
    shutil.rmtree(source.path)
    (problem,) = flush_watermarks(deployment, [source]).problems
    assert_names(problem, source.name, source.path)


def test_one_of_two_runners_on_a_log_looks_and_the_other_takes_over(source, clock, start):
    now = [1_000.0]
    log = log_in_memory(clock=clock, lease_clock=lambda: now[0])
    deployment = replace(in_memory(clock), log=log)
    commit(source, "eu")
    options = {"deployment": deployment, "monotonic": lambda: now[0]}
    one, two = (start(source, owner=name, **options) for name in ("one", "two"))
    assert len(one.synchronize().dispatches) == 1
    standby = two.look()
    assert (standby.dispatches, standby.cursor) == ([], "{}")
    assert standby.elsewhere == {source.name}
    assert two.report().news == []
    for _ in range(100):
        now[0] += 10
        one.look()
        assert two.look().elsewhere == {source.name}
    commit(source, "us")
    now[0] += log.leases.runner + 1
    assert [tenant for tenant, *_ in due(two.look())] == ["us"]
    cursor = one.cursor
    late = one.look()
    assert (late.dispatches, late.elsewhere) == ([], {source.name})
    assert SensorCursor.parse(late.cursor).marks == SensorCursor.parse(cursor).marks


def test_two_runners_that_look_at_once_dispatch_each_iteration_once(
    deployment, source, start, monkeypatch
):
    """This happens when one hung after it had renewed its lease."""
    commit(source, "eu", "us")
    one, two = start(source), start(source)
    looks = []

    def look_first(iteration, name):
        monkeypatch.undo()
        looks.append(two.look())
        return deployment.log.enqueue(iteration, name)

    monkeypatch.setattr(deployment.log, "enqueue", look_first)
    looks.append(one.look())
    dispatched = sorted(each for look in looks for each in due(look))
    assert dispatched == [("eu", BOTH, -1, 0), ("us", BOTH, -1, 0)]
