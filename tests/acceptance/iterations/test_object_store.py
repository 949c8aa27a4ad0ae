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
    count = len(tenants)
    rows = pa.table(
        {
            "tenant": [tenant for tenant in tenants for _ in ids],
            "id": pa.array([*ids] * count, pa.int64()),
            "name": [f"some words {n}" for n in ids] * count,
            "place": pa.array([{"x": n} for n in ids] * count, pa.struct([("x", "int32")])),
            "counts": pa.array([[("n", n)] for n in ids] * count, pa.map_(pa.string(), pa.int32())),
        }
    )
    write_deltalake(
        table.path,
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


def test_tables_in_a_store_are_followed_with_few_requests_and_compared(
    deployment, lake, store, monkeypatch
):
    # On a busy machine an iteration takes longer than the latest commit is believed.
    monkeypatch.setattr("iscp_dagster.delta.log.deltalog.LATEST_SECONDS", 600.0)
    table = declared(deployment, lake)
    for kind, ids in ((ReadKind.SNAPSHOT, range(5)), (ReadKind.TAIL, range(5, 9))):
        put(table, *ODD, ids=ids)
        (due,) = table.look().dispatches
        before = len(store.asked())
        assert set(kinds(table.run(due.iteration, queued_as=due.name))) == {kind}
        asked = store.asked()[before:]
        files = [(method, path) for method, path in asked if path.endswith(".parquet")]
        assert len(files) == len(set(files)) == len(ODD)
        assert {method for method, _ in files} == {"GET"}
        # Opening the table takes six of them, and the test opens it once more.
        assert len(asked) - len(files) <= 24
    DeltaTable(table.path).update({"name": "'another'"}, predicate="id = 2")
    DeltaTable(table.path).delete("id = 3")
    assert follow(table) == {ReadKind.TAIL}
    table.check()
    assert held(table) == stored(table)
    before = len(store.asked())
    for _ in range(3):
        assert table.look().dispatches == []
    asked = store.asked()[before:]
    # Two requests for the next commit: deltalake lists a folder of that name, then looks for it.
    assert len(asked) == 3 * 2
    assert all("00000000000000000004.json" in path for _, path in asked)


def test_spark_reads_in_the_store_itself_and_through_its_workers(
    stack, spark_deployment, lake, monkeypatch
):
    """The stack was started for that lake, and so with S3A."""
    table = declared(spark_deployment, lake, Mirror())
    put(table, *ODD, ids=range(20))
    assert follow(table) == {ReadKind.SNAPSHOT}
    put(table, ODD[2], ids=range(20, 22))
    assert follow(table) == {ReadKind.TAIL}
    # A worker does not read alone what is given to several tasks.
    monkeypatch.setattr("iscp_dagster.sync.reading.reader.SMALL_BYTES", 1)
    put(table, *ODD[:2], ids=range(22, 24))
    DeltaTable(table.path).delete("id = 3")
    assert follow(table) == {ReadKind.TAIL}
    assert held(table) == stored(table)
    table.check()
    assert SECRET not in (stack.home / "logs" / "spark.log").read_text()


def test_a_store_that_is_away_is_tried_again_and_a_file_that_is_gone_is_read_anew_later(
    deployment, lake, store, monkeypatch
):
    table = declared(deployment, lake)
    put(table, "a", ids=range(3))
    scan = filescan.plan_tasks

    with monkeypatch.context() as patched:

        def plan(*asked, **named):
            """Have the read that is planned find no server."""
            patched.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{find_free_port()}")
            return scan(*asked, **named)

        patched.setattr(filescan, "plan_tasks", plan)
        away = table.run(table.iteration("a"))
    log = table.deployment.make_delta_log(table.source)
    (file,) = log.list_data_files(0, ["a"])
    store.remove(f"{table.path.removeprefix('s3://lake/')}/{file.path}")
    gone = table.run(table.iteration("a"))
    assert [each.code for each in away] == [UnavailableError.code] * 2
    assert [each.code for each in gone] == [FeedGoneError.code] * 2
    assert "is gone" in gone[0].message
    assert all(SECRET not in each.message for each in (*away, *gone))


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
