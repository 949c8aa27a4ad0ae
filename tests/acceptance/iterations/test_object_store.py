"""Source tables in an S3-compatible store: detection, snapshots, tails and comparison."""

from dataclasses import replace

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from iscp_dagster import FullText, Mirror
from iscp_dagster.delta import filescan
from iscp_dagster.delta.log.deltalog import MARK_CHECK_SECONDS, DeltaLog
from iscp_dagster.delta.read_plans import ReadKind
from iscp_dagster.joblog.iterations import FailedStep
from iscp_dagster.local.stack.ports import find_free_port
from iscp_dagster.model.errors import FeedGoneError, UnavailableError
from iscp_dagster.spark.quoting import quote_identifier
from support.lake.delta_tables import Table, kinds
from support.services.object_store import SECRET, running_store

ODD = ("a", "b c", "ü#%41?", "x=y+z")


@pytest.fixture(scope="module")
def store(tmp_path_factory, store_port):
    with running_store(tmp_path_factory.mktemp("store"), store_port) as running:
        yield running


@pytest.fixture
def lake(store, monkeypatch):
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)
    return store.lake


def follow(table):
    outcomes = table.follow()
    assert not [each for each in outcomes if isinstance(each, FailedStep)]
    return set(kinds(outcomes))


def put(table, *tenants, ids):
    """Commit with delta-rs, since Spark has no driver for the store here."""
    path, count = table.path, len(ids)
    rows = pa.table(
        {
            "tenant": [tenant for tenant in tenants for _ in ids],
            "id": pa.array([*ids] * len(tenants), pa.int64()),
            "name": [f"some words {n}" for n in ids] * len(tenants),
            "place": pa.array([{"x": n} for n in ids] * len(tenants), pa.struct([("x", "int32")])),
            "counts": pa.array(
                [[("n", n)] for n in ids] * len(tenants), pa.map_(pa.string(), pa.int32())
            ),
        }
    )
    assert count
    write_deltalake(
        path,
        rows,
        mode="append",
        partition_by=["tenant"],
        configuration={"delta.enableChangeDataFeed": "true"},
    )


def declared(deployment, lake, *indexes):
    return Table.make(
        replace(deployment, lake=lake), *indexes or (Mirror(), FullText("name")), create=False
    )


def held(table):
    found = table.query("SELECT tenant, id, name, place.x, counts['n'] FROM {mirror}")
    return sorted(found)


def stored(table):
    rows = DeltaTable(table.path).to_pyarrow_table().to_pylist()
    return sorted(
        (row["tenant"], row["id"], row["name"], row["place"]["x"], dict(row["counts"])["n"])
        for row in rows
    )


def test_tables_in_a_store_are_followed_and_compared(deployment, lake):
    table = declared(deployment, lake)
    put(table, *ODD, ids=range(5))
    assert follow(table) == {ReadKind.SNAPSHOT}
    table.check()
    put(table, *ODD[:3], ids=range(5, 9))
    DeltaTable(table.path).update({"name": "'another'"}, predicate="id = 2")
    DeltaTable(table.path).delete("id = 3")
    assert follow(table) == {ReadKind.TAIL}
    table.check()
    assert held(table) == stored(table)
    assert table.follow() == []


def test_spark_hands_out_what_its_workers_then_read_in_the_store(spark_deployment, lake):
    table = declared(spark_deployment, lake)
    put(table, *ODD, ids=range(200))
    assert follow(table) == {ReadKind.SNAPSHOT}
    assert held(table) == stored(table)
    put(table, *ODD[:3], ids=range(200, 220))
    DeltaTable(table.path).delete("id = 3")
    assert follow(table) == {ReadKind.TAIL}
    assert held(table) == stored(table)


def test_spark_reads_in_the_store_what_is_left_to_it_and_compares(stack, spark_deployment, lake):
    """The stack was started for that lake, and so with S3A."""
    table = declared(spark_deployment, lake)
    put(table, *ODD, ids=range(20))
    assert follow(table) == {ReadKind.SNAPSHOT}
    table.check()
    where = f"delta.{quote_identifier(table.path)}"
    asked = table.deployment.spark().sql
    asked(f"ALTER TABLE {where} SET TBLPROPERTIES (delta.enableDeletionVectors = true)")
    # Neither change has files of its own, and Arrow does not read changes from vectors.
    asked(f"DELETE FROM {where} WHERE id % 7 = 3")
    asked(f"UPDATE {where} SET name = 'another' WHERE id = 2")
    put(table, ODD[1], ids=range(20, 22))
    assert follow(table) == {ReadKind.TAIL}
    table.check()
    assert (ODD[0], 3) not in {each[:2] for each in held(table)}
    assert SECRET not in (stack.home / "logs" / "spark.log").read_text()


def test_a_file_that_is_gone_is_read_anew_later(deployment, lake, store):
    table = declared(deployment, lake)
    put(table, "a", ids=range(3))
    log = table.deployment.make_delta_log(table.source)
    (file,) = log.list_data_files(0, ["a"])
    store.remove(f"{table.path.removeprefix('s3://lake/')}/{file.path}")
    (one, other) = table.run(table.iteration("a"))
    assert {one.code, other.code} == {FeedGoneError.code}
    assert "is gone" in one.message
    assert SECRET not in one.message


def test_a_store_that_is_away_is_tried_again(deployment, tmp_path, monkeypatch):
    with running_store(tmp_path, find_free_port()) as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        table = declared(deployment, store.lake)
        put(table, "a", ids=range(3))
        iteration = table.iteration("a")
        scan = filescan.plan_tasks

        def planned(*asked):
            """Stop the store once the read is planned."""
            found = scan(*asked)
            store.warded.stop()
            return found

        monkeypatch.setattr(filescan, "plan_tasks", planned)
        outcomes = table.run(iteration)
    assert {each.code for each in outcomes} == {UnavailableError.code}
    assert SECRET not in outcomes[0].message


def test_an_idle_look_is_few_requests(deployment, lake, store):
    table = declared(deployment, lake)
    put(table, "a", ids=range(3))
    follow(table)
    table.look()
    before = len(store.asked())
    for _ in range(10):
        assert table.look().dispatches == []
    asked = store.asked()[before:]
    # Two requests for the next commit: deltalake lists a folder of that name, then looks for it.
    assert len(asked) == 10 * 2
    assert all("00000000000000000001.json" in path for _, path in asked)


@pytest.mark.parametrize("then", ["snapshot", "tail"])
def test_an_iteration_asks_for_a_small_file_once_and_for_the_log_a_few_times(
    deployment, lake, store, then, monkeypatch
):
    # On a busy machine an iteration takes longer than the latest commit is believed.
    monkeypatch.setattr("iscp_dagster.delta.log.deltalog.LATEST_SECONDS", 600.0)
    table = declared(deployment, lake)
    put(table, *ODD, ids=range(3))
    if then == "tail":
        follow(table)
        put(table, *ODD, ids=range(3, 5))
    (due,) = table.look().dispatches
    before = len(store.asked())
    table.run(due.iteration, queued_as=due.name)
    asked = store.asked()[before:]
    files = [(method, path) for method, path in asked if path.endswith(".parquet")]
    assert len(files) == len(set(files)) == len(ODD)
    assert {method for method, _ in files} == {"GET"}
    # Opening the table takes six of them, and the test opens it once more.
    assert len(asked) - len(files) <= 24


def test_a_table_that_took_another_ones_place_is_noticed_within_a_minute(deployment, lake, store):
    table = declared(deployment, lake)
    put(table, "a", ids=range(3))
    now = [0.0]
    log = DeltaLog(table.path, "tenant", monotonic=lambda: now[0])
    before = log.poll(log.poll())
    store.remove(f"{table.path.removeprefix('s3://lake/')}/_delta_log/00000000000000000000.json")
    # The store's times are whole seconds, so only the size may differ.
    put(table, "a", "b", ids=range(4))
    assert log.poll(before) == before
    now[0] = MARK_CHECK_SECONDS
    after = log.poll(before)
    assert not after.is_same_table(before)
