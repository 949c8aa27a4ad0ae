"""Iterations on real services: a Delta table through Spark into ClickHouse, in step and whole."""

import os
import shutil
import threading
import time
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from iscp_dagster import FullText, Mirror, Vector
from iscp_dagster.api.jobs import Jobs
from iscp_dagster.clickhouse.tables.index_store import IndexStore
from iscp_dagster.clickhouse.tables.staging import make_attempt_id
from iscp_dagster.delta.read_plans import ReadKind
from iscp_dagster.delta.spark_errors import wrap_spark_errors
from iscp_dagster.joblog.iterations import FailedStep
from iscp_dagster.joblog.updates import SpecUpdate
from iscp_dagster.location.assets.io_manager import build_outcome_metadata
from iscp_dagster.model.batch import Case, Phase
from iscp_dagster.model.errors import FenceError, SchemaError, UnavailableError
from iscp_dagster.model.jobs import JobID
from iscp_dagster.model.moment import START
from iscp_dagster.model.states import Event, JobState
from iscp_dagster.spark.guard import interrupt_when_lost
from iscp_dagster.sync.bounds import IterationBounds
from iscp_dagster.sync.iteration.outcomes import RowDelivery
from iscp_dagster.upkeep import verify_indexes as verification
from iscp_dagster.upkeep.maintenance import delete_garbage, find_garbage
from iscp_dagster.upkeep.position import read_positions
from iscp_dagster.upkeep.progress import Progress, read_progress
from support.errors import raises_naming
from support.jobs.log_rows import complete
from support.lake.delta_tables import (
    Table,
    deliveries,
    kinds,
    one_by_one,
    publish_all,
    publish_one,
)
from support.lake.row_writer import ANYWAY
from support.spark.fake_spark import near, served
from support.workers.killable import Crash, CrashPoint, make_crashing_table, run_until_crash

ALL = (Mirror(), FullText("name", columns=["name"]), Vector("v", dimension=2, metric="l2"))
OTHER = "b c/d'é"


def test_every_kind_of_index_follows_every_kind_of_change(deployment):
    """Tenants share one scan and one insert. For every type of value see test_every_type."""
    table = Table.make(deployment, *ALL)
    for tenant in ("a", OTHER):
        table.insert(1, 2, 3, 4, tenant=tenant)
    assert kinds(table.follow()) == [ReadKind.SNAPSHOT] * 6
    # A value, a key and a tenant change.
    table.sql("UPDATE {t} SET name = 'a rare bird' WHERE tenant = 'a' AND id = 2")
    table.sql("UPDATE {t} SET id = 40, v = array(40.0, 1.0) WHERE tenant = 'a' AND id = 4")
    table.sql("UPDATE {t} SET tenant = 'a', id = 5 WHERE tenant <> 'a' AND id = 1")
    table.sql("DELETE FROM {t} WHERE id = 3")
    table.insert(10, 11)
    outcomes = table.follow()
    assert kinds(outcomes) == [ReadKind.TAIL] * 6
    mirrors = [each for each in outcomes if each.job_name == "mirror"]
    counts = {each.tenant: (each.inserted, each.deleted) for each in mirrors}
    assert counts == {"a": (5, 2), OTHER: (0, 2)}
    assert {id(each.written) for each in mirrors} == {id(mirrors[0].written)}
    assert mirrors[0].written.chunks == 1
    table.check()
    found = table.query("SELECT tenant, id FROM {mirror} ORDER BY tenant, id")
    held = [("a", key) for key in (1, 2, 5, 10, 11, 40)]
    assert found == [*held, (OTHER, 2), (OTHER, 4)]
    assert table.query("SELECT id FROM {text} WHERE hasAllTokens(name, 'rare')") == [(2,)]
    nearest = table.view(ALL[2], "_nearest") + "(tenant = 'a', query = [39, 1], k = 1)"
    assert table.query(f"SELECT id FROM {nearest}") == [(40,)]


def test_a_table_without_tenants_and_with_a_composite_key(deployment):
    table = Table.make(
        deployment,
        Mirror(),
        columns="region STRING, day DATE, amount DOUBLE",
        key=("region", "day"),
        tenant=None,
    )
    table.sql("INSERT INTO {t} VALUES ('eu', DATE'2026-01-01', 1), ('us', DATE'2026-01-01', 2)")
    assert kinds(table.follow()) == [ReadKind.SNAPSHOT]
    table.sql("INSERT INTO {t} VALUES ('eu', DATE'2026-01-02', 3)")
    table.sql("DELETE FROM {t} WHERE region = 'us'")
    assert kinds(table.follow()) == [ReadKind.TAIL]
    table.check()
    assert len(table.query("SELECT * FROM {mirror}")) == 2


def test_an_index_that_comes_later_catches_up_and_then_shares(deployment):
    table = Table.make(deployment, Mirror())
    table.insert(1, 2)
    table.follow()
    table.insert(3)
    table = table.with_indexes(Mirror(), FullText("name"))
    assert sorted(kinds(table.follow())) == [ReadKind.SNAPSHOT, ReadKind.TAIL, ReadKind.TAIL]
    table.check()
    table.insert(4)
    shared = table.follow()
    assert kinds(shared) == [ReadKind.TAIL] * 2
    assert len({each.range for each in shared}) == 1
    table.check()


def test_a_range_whose_changes_cannot_be_read_is_read_as_a_snapshot(deployment, tmp_path):
    table = Table.make(deployment, Mirror())

    def check(reason):
        (outcome,) = table.run(table.iteration("a"))
        assert outcome.plan.kind is ReadKind.SNAPSHOT
        assert reason in outcome.plan.reason
        table.check()

    table.insert(1, 2, 3)
    check("first synchronization")
    table.sql("UPDATE {t} SET name = 'changed' WHERE id = 1")
    table.sql("DELETE FROM {t} WHERE id = 2")
    table.sql("VACUUM {t} RETAIN 0 HOURS")
    check("VACUUM")
    table.sql("ALTER TABLE {t} SET TBLPROPERTIES (delta.enableChangeDataFeed = false)")
    table.sql("DELETE FROM {t} WHERE id = 3")
    table.sql("ALTER TABLE {t} SET TBLPROPERTIES (delta.enableChangeDataFeed = true)")
    check("feed was off")
    shutil.copytree(table.path, tmp_path / "backup")
    table.insert(4)
    table.run(table.iteration("a"))
    shutil.rmtree(table.path)
    shutil.copytree(tmp_path / "backup", table.path)
    table.insert(5)
    table.insert(6)
    check("is not the one that was last followed")


def test_what_a_dead_run_left_is_built_anew_when_it_can_no_longer_be_read(deployment):
    table = Table.make(deployment, Mirror(), FullText("name"))
    table.insert(1, 2, 3)
    table.follow()
    table.sql("UPDATE {t} SET name = 'changed' WHERE id = 1")
    crash(table, table.iteration("a"), "scanned")
    deployment.log.recover_run_jobs({"dead"})
    table.sql("DELETE FROM {t} WHERE id = 2")
    table.insert(4)
    table.sql("OPTIMIZE {t}")
    table.sql("VACUUM {t} RETAIN 0 HOURS")
    outcomes = table.follow()
    assert ReadKind.SNAPSHOT in kinds(outcomes)
    table.check()


def test_a_column_that_no_index_carries_may_have_any_name(deployment):
    columns = "tenant STRING, id BIGINT, name STRING, _version INT"
    table = Table.make(deployment, Mirror(columns=["name"]), columns=columns)
    for key in (1, 2):
        table.sql(f"INSERT INTO {{t}} VALUES ('a', {key}, 'some words', 7)")
        table.follow()
        table.check()
    with raises_naming(SchemaError, "_version"):
        table.with_indexes(Mirror(columns=["_version"], name="other")).follow()


def test_columns_that_the_source_gains_are_served_and_those_it_drops_stay_readable(deployment):
    indexes = _, vector = ALL[0], ALL[2]
    table = Table.make(deployment, *indexes)
    table.insert(1)
    table.insert(1, tenant="b")
    table.follow()
    for column in ("note", "more"):
        table.sql(f"ALTER TABLE {{t}} ADD COLUMNS ({column} STRING)")
    table.sql("INSERT INTO {t} VALUES ('a', 2, 'x', array(1, 2), 'said', 'm')")
    # Tenant b is due too: the columns are new to its readers.
    assert kinds(table.follow()) == [ReadKind.TAIL] * 4
    table.check()
    table.sql("INSERT INTO {t} VALUES ('a', 3, 'x', array(1, 2), 'said later', NULL)")
    for column in ("note", "more"):
        table.sql(f"ALTER TABLE {{t}} DROP COLUMN {column}")
    table.insert(4)
    outcomes = table.follow()
    assert set(kinds(outcomes)) == {ReadKind.TAIL}
    told = [build_outcome_metadata(each, {}).get("lost_columns") for each in outcomes[-2:]]
    assert told == [["note", "more"]] * 2
    for index in indexes:
        found = table.query(
            f"SELECT id, note, more FROM {{{index.name}}} WHERE tenant = 'a' ORDER BY id"
        )
        values = [(1, None, None), (2, "said", "m"), (3, "said later", None), (4, None, None)]
        assert found == values, index
    table.check()
    # The view of a tenant that is rebuilt afterwards has the columns too.
    table.insert(1, tenant="c")
    table.follow()
    query = "SELECT tenant, note FROM {mirror} WHERE id = 1 ORDER BY tenant"
    assert table.query(query) == [("a", None), ("b", None), ("c", None)]
    nearest = table.query(
        f"SELECT note FROM {table.view(vector, '_nearest')}(tenant = 'a', query = [1, 2], k = 4)"
    )
    assert {note for (note,) in nearest} == {"said", "said later", None}


@pytest.mark.parametrize(
    "append",
    [pytest.param(False, id="keyed", marks=pytest.mark.soak), pytest.param(True, id="append-only")],
)
def test_an_iteration_whose_chunks_could_outgrow_the_window_is_split(deployment, append):
    table = Table.make(deployment, Mirror(append=append), key=() if append else "id")
    table.insert(1)
    table.follow()
    for first in (10, 20, 30, 40):
        table.insert(*range(first, first + 4))
    # The Delta log has the number of rows of each commit.
    split = replace(table, deployment=replace(deployment, bounds=IterationBounds(rows=9)))
    watermarks = []
    while dispatches := split.look().dispatches:
        (due,) = dispatches
        (outcome,) = split.run(due.iteration, queued_as=due.name)
        assert outcome.plan.kind is ReadKind.TAIL
        watermarks.append(split.jobs()[0].watermark.version)
    assert watermarks == [3, 5]
    assert [each for each in split.verdicts() if not each.agrees] == []
    assert split.query("SELECT count(), uniqExact(id) FROM {mirror}") == [(17, 17)]


def test_a_backlog_is_worked_off_in_steps_by_hand_too(deployment):
    deployment = replace(deployment, bounds=IterationBounds(versions=2))
    table = Table.make(deployment, Mirror(), FullText("name"))
    table.insert(1)
    table.follow()
    for id_ in (2, 3, 4, 5, 6):
        table.insert(id_)
    log = deployment.log
    before = len(log.read_history())
    # A person sees each index once, at the end.
    assert kinds(table.materialize()) == [ReadKind.TAIL] * 2
    done = [each for each in log.read_history()[before:] if each.event is Event.COMPLETE]
    steps = [(each.from_.version, each.to.version) for each in done]
    assert sorted(steps) == [(1, 3), (1, 3), (3, 5), (3, 5), (5, 6), (5, 6)]
    table.check()


def test_a_replay_over_its_own_snapshot_deletes_no_key_that_lives(deployment, monkeypatch):
    table = Table.make(deployment, Mirror())
    table.insert(1, 2)
    table.follow()
    # Insert a second row with the key, then delete one: only a snapshot shows which is left.
    table.insert(2, name="twin")
    table.sql("DELETE FROM {t} WHERE id = 2 AND name = 'twin 2'")
    with monkeypatch.context() as patched:
        away = UnavailableError("the log does not answer")
        patched.setattr(type(deployment.log), "complete", lambda *_: (_ for _ in ()).throw(away))
        (failed,) = table.materialize()
    assert (type(failed), failed.code) == (FailedStep, UnavailableError.code)
    assert table.query("SELECT DISTINCT _version FROM " + table.view(Mirror(), "__rows")) == [(3,)]
    (again,) = table.materialize()
    assert (again.plan.kind, again.claim.case) == (ReadKind.SNAPSHOT, Case.SAME)
    table.check()


def test_an_index_that_cannot_be_put_in_place_or_is_interrupted_stops_no_sibling(
    deployment, monkeypatch
):
    table = Table.make(deployment, Mirror(), FullText("name"))
    table.insert(1, 2)
    replace_ = IndexStore.publish_tenants

    def refuse(store, rows, **named):
        if store.shape.index.name == "mirror":
            raise UnavailableError("no answer")
        return replace_(store, rows, **named)

    monkeypatch.setattr(IndexStore, "publish_tenants", refuse)
    found = {type(each): each for each in table.materialize()}
    assert found[FailedStep].code == UnavailableError.code
    assert found[FailedStep].claim.key.job_name == "mirror"
    assert found[RowDelivery].claim.key.job_name == "text"
    assert table.query("SELECT count() FROM {text}") == [(2,)]
    states = {job.key.job_name: job.watermark.version for job in table.jobs()}
    assert states == {"mirror": -1, "text": 1}
    monkeypatch.undo()
    table.materialize()
    table.check()
    # A run that is interrupted between the two gives the job back that is not done.
    table.insert(3)
    outcomes = deliveries(deployment, table.source, table.iteration("a"), run_id="stopped")
    publish_all(deployment, next(outcomes))
    with pytest.raises(KeyboardInterrupt):
        outcomes.throw(KeyboardInterrupt)
    states = [job.state for job in table.jobs()]
    assert sorted(states) == [JobState.CANCELED, JobState.COMPLETED]
    table.follow()
    table.check()


def test_an_index_is_not_served_before_it_is_built_by_a_job_that_nobody_changes_meanwhile(
    deployment,
):
    """It says how far it is. A changed job starts over as it is by then."""
    table = Table.make(deployment, Mirror())
    table.insert(1, 2, 3)
    found = one_by_one(deployment, table.source, table.iteration("a"), run_id="building")
    delivery = next(found)
    (job,) = table.jobs()
    there = (
        "SELECT name FROM system.tables WHERE database = {db:String} AND name NOT LIKE '%\\_\\_%'"
    )
    assert table.query(there, db=table.source.database) == []
    assert read_progress(deployment, table.source, job) == Progress(done=3, total=3)

    class Meanwhile:
        """A person changes the job between the last look at it and its completion."""

        def __getattr__(self, called):
            return getattr(deployment.log, called)

        def complete(self, steps):
            deployment.log.update("a", job.name, SpecUpdate(priority=9), interrupt=True)
            deployment.log.pause("a", job.name)
            return deployment.log.complete(steps)

    with pytest.raises(FenceError):
        publish_one(replace(deployment, log=Meanwhile()), delivery)
    found.close()
    (changed,) = table.jobs()
    assert (changed.spec.detail.priority, changed.paused_at is None) == (9, False)
    assert changed.watermark == START
    deployment.log.resume("a", job.name)
    table.follow()
    assert table.query(there, db=table.source.database) == [("rows_mirror",)]
    table.check()


def test_what_is_registered_again_while_garbage_is_cleared_stays(deployment):
    table = Table.make(deployment, Mirror())
    table.insert(1)
    table.follow()
    (job,) = table.jobs()
    deployment.log.unregister("a", job.name)
    found = find_garbage(deployment, [table.source], retention=timedelta(seconds=-60))
    assert [each.scope for each in found] == ["table"]
    table.materialize()
    assert delete_garbage(deployment, [table.source], found) == 0
    table.check()


def test_a_scan_that_lost_its_jobs_frees_the_cores(spark_deployment, tmp_path):
    cores, spark = os.cpu_count(), spark_deployment.spark()
    began = tmp_path / "began"
    began.mkdir()

    def stuck(batches, folder=str(began)):
        Path(folder, str(next(iter(batches))["id"][0])).touch()
        threading.Event().wait()
        yield

    def held():
        return len(list(began.iterdir())) < cores

    with (
        raises_naming(FenceError, "Spark"),
        interrupt_when_lost(spark, held, every=0.05),
        wrap_spark_errors("nothing"),
    ):
        spark.range(0, cores, 1, cores).mapInArrow(stuck, "id bigint").collect()
    meet_on_all_cores(spark, tmp_path / "met", cores)


def meet_on_all_cores(spark, folder, cores):
    """Wait until as many tasks run at once as there are cores; fail after a minute."""
    folder.mkdir()

    # Defined within a function, so that it is pickled by value for Spark's workers.
    def meet(batches, place=str(folder), all_=cores):
        deadline = time.monotonic() + 60
        for batch in batches:
            Path(place, str(batch["id"][0])).touch()
            while len(list(Path(place).iterdir())) < all_:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"only {len(list(Path(place).iterdir()))} cores are free")
                threading.Event().wait(0.01)
            yield batch

    assert len(spark.range(0, cores, 1, cores).mapInArrow(meet, "id bigint").collect()) == cores


def test_rows_of_tenants_that_a_recreated_table_lacks_cease_to_be_served(deployment):
    """Not before a person builds the table again, or registers its jobs."""
    table = Table.make(deployment, Mirror())
    table.insert(1, 2, 3)
    table.insert(1, tenant="gone")
    table.follow()

    def recreate(*ids):
        before = table.query("SELECT tenant, id FROM {mirror} ORDER BY ALL")
        shutil.rmtree(table.path)
        table.create()
        if ids:
            table.insert(*ids, name="other")
        assert table.follow() == []
        assert table.query("SELECT tenant, id FROM {mirror} ORDER BY ALL") == before

    recreate(2)
    table.materialize("a", "gone")
    table.check()
    table.insert(4, tenant="gone")
    table.follow()
    jobs = Jobs(deployment=deployment, sources=[table.source], cancel_runs=pytest.fail)
    name = JobID(db=table.source.database, table=table.source.table, job="mirror")
    for ids in ((5,), ()):
        recreate(*ids)
        jobs.register_job("*", name, jobs.get_default_spec(name))
        table.follow()
        assert table.query("SELECT id FROM {mirror}") == [(each,) for each in ids]
        assert jobs.wait(table.source.name, timeout=0) == table.version


CRASHES = {
    "claimed": ("after", "claim_jobs"),
    "scanned": ("after", "nothing"),
    "published": ("before", "complete"),
    "completed": ("after", "complete"),
}


def crash(table, iteration, point, **life):
    """Run the iteration in a process that dies at `point`."""
    life = CrashPoint(*CRASHES[point], **life)
    if point != "scanned":
        run_until_crash(table, iteration, life)
        return
    deployment = make_crashing_table(table, life).deployment
    written = deliveries(deployment, table.source, iteration, run_id="dead")
    next(written)
    life.dead = True
    with pytest.raises(Crash):
        written.throw(Crash)


def crash_of_two(table, point, iteration):
    """As `crash`, for two tenants; check that the dead run left their jobs as they were.

    A row of `odd` is set aside in its mirror, and another writer takes the jobs of `taken` at once.
    """
    log = table.deployment.log
    taken = [key for key in iteration.jobs if key.tenant == f"taken {point}"]
    crash(table, iteration, point, meanwhile={"claim_jobs": lambda: log.cancel(taken)})
    begun = (JobState.RUNNING, Phase.BEFORE)
    first = (JobState.COMPLETED, Phase.AFTER) if point == "completed" else begun
    left = {"odd": [begun, first], "taken": [(JobState.CANCELED, Phase.BEFORE)] * 2}
    found = {}
    for job in table.jobs():
        if job.key in iteration.jobs:
            ended = job.batch.phase is Phase.AFTER
            assert job.watermark == (iteration.to if ended else iteration.from_)
            found.setdefault(job.key.tenant.split()[0], []).append((job.state, job.batch.phase))
    assert {who: sorted(each, key=lambda one: one[0].value) for who, each in found.items()} == left
    assert log.list_active_runs() == {"dead"}
    assert len(log.recover_run_jobs({"dead"})) == (1 if point == "completed" else 2)


def check_of_two(table, dead):
    """Check that all indexes agree; the mirrors lack `dead` rows of `odd`, each set aside once."""
    assert [
        each for each in read_positions(table.deployment, table.source) if not each.in_step
    ] == []
    for each in table.verdicts():
        aside = dead if each.index == "mirror" and each.tenant.startswith("odd") else 0
        wrong = (each.missing, each.extra, each.different, each.dead)
        assert wrong == (aside, 0, 0, aside), each
    for index in ("mirror", "text"):
        ((rows, keys),) = table.query(f"SELECT count(), uniqExact(tenant, id) FROM {{{index}}}")
        assert rows == keys


def test_a_run_that_dies_at_any_point_loses_and_doubles_nothing_of_any_tenant(deployment):
    mirror = Mirror(types={"n": "UInt8"}, errors="dead_letter")
    columns = "tenant STRING, id BIGINT, name STRING, n INT"
    table = Table.make(deployment, mirror, FullText("name"), columns=columns)
    pairs = {point: [f"{who} {point}" for who in ("odd", "taken")] for point in CRASHES}

    def put(*ids):
        """Insert these rows of each tenant; the mirror cannot hold the last one of `odd`."""
        values = [
            f"('{tenant}', {id_}, 'some words', {300 if 'odd' in tenant and id_ == ids[-1] else 1})"
            for tenants in pairs.values()
            for tenant in tenants
            for id_ in ids
        ]
        table.sql(f"INSERT INTO {{t}} VALUES {', '.join(values)}")

    put(1, 2, 3)
    for point in ("scanned", "completed"):
        crash_of_two(table, point, table.iteration(*pairs[point]))
    table.follow()
    check_of_two(table, dead=1)
    table.sql("UPDATE {t} SET name = 'changed' WHERE id = 1")
    table.sql("DELETE FROM {t} WHERE id = 2")
    put(4)
    dying = ("claimed", "published")
    iterations = {point: table.iteration(*pairs[point]) for point in dying}
    more = ", ".join(f"('{tenant}', 5, 'some words', 1)" for tenant in pairs["claimed"])
    table.sql(f"INSERT INTO {{t}} VALUES {more}")
    for point, iteration in iterations.items():
        crash_of_two(table, point, iteration)
    table.follow()
    check_of_two(table, dead=2)


def test_a_run_that_was_thought_dead_writes_nothing_and_cancels_no_heir(deployment):
    table = Table.make(deployment, Mirror(), FullText("name"))
    table.insert(1, 2)
    zombie = one_by_one(deployment, table.source, table.iteration("a"), run_id="zombie")
    late = next(zombie)
    deployment.log.recover_run_jobs({"zombie"})
    table.insert(3)
    with closing(one_by_one(deployment, table.source, table.iteration("a"), run_id="heir")) as heir:
        delivery = next(heir)
        zombie.close()
        with raises_naming(FenceError, "zombie"):
            publish_one(deployment, late)
        with pytest.raises(FenceError):
            complete(deployment.log, late.claim, late.to, {})
        publish_one(deployment, delivery)
        for other in heir:
            publish_one(deployment, other)
    assert {job.run_id for job in table.jobs()} == {"heir"}
    table.check()
    with pytest.raises(FenceError):
        publish_one(deployment, late)
    table.check()


def test_an_heir_that_follows_changes_clears_what_a_zombie_staged(deployment):
    table = Table.make(deployment, Mirror())
    table.insert(1, 2)
    table.follow()
    table.sql("UPDATE {t} SET name = 'changed' WHERE id = 1")
    dying = table.iteration("a")
    outcomes = one_by_one(deployment, table.source, dying, run_id="dead")
    store = replace(next(outcomes).store, attempt=make_attempt_id("dead"))
    outcomes.close()
    store.create_staging_table()
    deployment.log.recover_run_jobs({"dead"})
    table.follow()
    assert store.data.list_staging_tables() == []
    table.check()


TAMPERED = {
    "nothing": ("", (0, 0, 0)),
    "missing": ("1, 'n', 1, 1", (1, 0, 0)),
    "extra": ("9, 'n', 1, 0", (0, 1, 0)),
    "another text": ("1, 'N', 1, 0", (0, 0, 1)),
    "null for NaN": ("2, 'n', NULL, 0", (0, 0, 1)),
    "NaN for null": ("3, 'n', nan, 0", (0, 0, 1)),
}


def test_verify_sees_what_is_missing_or_extra_or_different(spark_deployment, monkeypatch):
    monkeypatch.setattr(verification, "ROWS_A_SLICE", 2)
    columns = "tenant STRING, id BIGINT, name STRING, x DOUBLE"
    held = ("1, 'n', 1", "2, 'n', CAST('NaN' AS DOUBLE)", "3, 'n', NULL")
    rows = ", ".join(f"('{tenant}', {row})" for tenant in TAMPERED for row in held)
    with near() as spark:
        table = Table.make(served(spark_deployment, spark), Mirror(), columns=columns)
        table.sql(f"INSERT INTO {{t}} VALUES {rows}")
        table.run(table.iteration(*TAMPERED))
    table = replace(table, deployment=spark_deployment)
    rows = table.view(table.source.indexes[0], "__rows")
    for tenant, (values, _) in TAMPERED.items():
        if values:
            spark_deployment.endpoint.get_client().command(
                f"INSERT INTO {rows} (tenant, id, name, x, _deleted, _version) "
                f"VALUES ('{tenant}', {values}, 99)",
                settings=ANYWAY,
            )
    found = {each.tenant: each for each in table.verdicts()}
    assert {
        tenant: (each.missing, each.extra, each.different) for tenant, each in found.items()
    } == {tenant: counts for tenant, (_, counts) in TAMPERED.items()}
    assert found["extra"].samples == ("the row with id = 9 is not in the source",)
