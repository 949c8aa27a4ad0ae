"""An index on two ClickHouse servers: each row on one of them, each server in step by itself."""

from dataclasses import replace
from datetime import timedelta
from threading import Thread
from uuid import uuid4

import dagster as dg
import pytest
from test_generations import api

from iscp_dagster import FullText, Mirror
from iscp_dagster.api.jobs import ALL_TENANTS
from iscp_dagster.clickhouse.connect.endpoint import ClickHouseEndpoint, parse_endpoints
from iscp_dagster.clickhouse.tables.generations import IndexGenerations
from iscp_dagster.clickhouse.write.inserts import ATTEMPTS
from iscp_dagster.delta.read_plans import ReadKind
from iscp_dagster.joblog.iterations import FailedStep
from iscp_dagster.location.build import build_definitions
from iscp_dagster.location.names import get_index_asset_key, get_partitions_name, get_sync_job_name
from iscp_dagster.location.resources.iscp import ClickHouse, ClickHouseTables, Iscp, IscpLog, Lake
from iscp_dagster.location.resources.spark import Spark
from iscp_dagster.model.clock import get_utc_now
from iscp_dagster.model.declared.tables import expand_shards
from iscp_dagster.model.errors import SchemaError, UnavailableError
from iscp_dagster.model.jobs import JobID
from iscp_dagster.model.states import JobState
from iscp_dagster.sync.iteration.outcomes import RowDelivery
from iscp_dagster.sync.writing.serving import serve_all
from iscp_dagster.upkeep.dead_letters import find_letters, replay_letters
from iscp_dagster.upkeep.maintenance import delete_garbage, find_garbage
from iscp_dagster.upkeep.position import read_positions
from iscp_dagster.upkeep.progress import Progress, read_progress
from iscp_dagster.upkeep.verify_indexes import compare_or_raise
from support.lake.delta_tables import Table, deployment_at
from support.lake.row_writer import ANYWAY
from support.services.clickhouse_servers import running_servers
from support.services.fault_proxy import LATE, faulty
from support.services.insert_gate import insert_gate
from support.workers.killable import Crash, CrashingProxy, CrashPoint

BY_ID = {"hash_function": "cityHash64", "key": ["id"]}
MINE = "cityHash64(id) % 2"


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    with running_servers(tmp_path_factory.mktemp("shards"), 2) as found:
        yield found


@pytest.fixture
def deployment(servers, near_spark, tmp_path):
    shards = tuple(each.endpoint for each in servers)
    return deployment_at(servers[0].url, near_spark, tmp_path, shards=shards)


@pytest.fixture
def table(deployment):
    return sharded(deployment, Mirror(sharding=BY_ID))


def sharded(deployment, *indexes, **declared):
    """Make a table whose indexes are spread as when a deployment's tables are loaded."""
    table = Table.make(deployment, *indexes, **declared)
    return replace(table, source=expand_shards(table.source, len(deployment.endpoints)))


def on(table, deployment, count, *indexes):
    """Return the table with these indexes, in a deployment of the first `count` servers."""
    deployment = replace(deployment, shards=deployment.endpoints[:count])
    source = expand_shards(replace(table.source, indexes=indexes), count)
    return replace(table, deployment=deployment, source=source)


def later(table):
    """Return the table at a time when every wait after a failure is over."""
    clock = lambda: get_utc_now() + timedelta(days=2)  # noqa: E731
    return replace(table, deployment=replace(table.deployment, clock=clock))


def name(table, job):
    return JobID(db=table.source.database, table=table.source.table, job=job)


def states(table):
    return {job.key.job_name: job for job in table.jobs()}


def tables(table, shard):
    view = f"{table.source.table}_mirror"
    endpoint = table.deployment.endpoints[shard]
    database = endpoint.resolve_database(table.source.database)
    return IndexGenerations(endpoint=endpoint, database=database, view=view).list_tables()


def held(table, shard, query="SELECT tenant, id, name FROM {view} ORDER BY tenant, id"):
    endpoint = table.deployment.endpoints[shard]
    view = f"{endpoint.resolve_database(table.source.database)}.{table.source.table}_mirror"
    found = endpoint.get_client().query(query.replace("{view}", view))
    return [tuple(row) for row in found.result_rows]


def check(table):
    """Check that every shard is in step with its own rows, and together they are the source."""
    assert [
        each for each in read_positions(table.deployment, table.source) if not each.in_step
    ] == []
    rows = table.agreed()
    wanted = [tuple(row) for row in table.sql("SELECT tenant, id, name FROM {t} ORDER BY 1, 2")]
    for shard, _ in enumerate(table.deployment.endpoints):
        assert held(table, shard, f"SELECT count() FROM {{view}} WHERE {MINE} != {shard}") == [(0,)]
    found = [
        row for shard, _ in enumerate(table.deployment.endpoints) for row in held(table, shard)
    ]
    assert sorted(found) == wanted
    assert sum(rows[name] for name in rows if name.startswith("mirror_shard_")) == len(wanted)


def test_snapshot_and_changes_are_each_on_their_shard(deployment):
    """An index without shards shares the scan."""
    table = sharded(deployment, Mirror(sharding=BY_ID), FullText("name"))
    table.insert(*range(40))
    table.insert(*range(30), tenant="b")
    outcomes = table.follow()
    found = sorted((each.tenant, each.claim.key.job_name) for each in outcomes)
    jobs = ("mirror_shard_0", "mirror_shard_1", "text")
    assert found == [(tenant, job) for tenant in ("a", "b") for job in jobs]
    assert len({each.plan.kind for each in outcomes}) == 1
    assert all(held(table, shard) for shard in (0, 1))
    # The number of rows that a shard will have is not known before.
    of_shards = [job for job in table.jobs() if job.key.job_name != "text"]
    found = [read_progress(deployment, table.source, job) for job in of_shards]
    assert found == [Progress(done=0, total=None)] * 4
    check(table)
    table.sql("UPDATE {t} SET name = 'other words' WHERE id % 3 = 0")
    table.sql("DELETE FROM {t} WHERE id % 5 = 0 AND tenant = 'a'")
    table.insert(*range(100, 120), tenant="b")
    table.follow()
    check(table)
    assert {job.state for job in table.jobs()} == {JobState.COMPLETED}
    others = table.sql("SELECT count(*) FROM {t} WHERE name = 'other words'")
    check_text = "SELECT count() FROM {text} WHERE hasAllTokens(name, 'other')"
    assert table.query(check_text) == [tuple(others[0])]
    # A row on the wrong shard is missing on one and extra on the other.
    ((tenant, id_, said), *_) = held(table, 0)
    rows = f"{table.source.database}.{table.source.table}_mirror__rows"
    first, second = (each.get_client() for each in deployment.endpoints)
    second.insert(
        rows.partition(".")[2],
        [(tenant, id_, said, [float(id_), 1.0], 1, 0)],
        column_names=["tenant", "id", "name", "v", "_version", "_deleted"],
        database=table.source.database,
        settings=ANYWAY,
    )
    where = f"id = {id_} AND tenant = '{tenant}'"
    first.command(f"DELETE FROM {rows} WHERE {where}", settings={"lightweight_deletes_sync": 2})
    found = {
        each.index: (each.missing, each.extra, each.different)
        for each in table.verdicts()
        if each.tenant == tenant
    }
    assert found == {"mirror_shard_0": (1, 0, 0), "mirror_shard_1": (0, 1, 0), "text": (0, 0, 0)}


def test_databases_of_one_server_are_shards_too(clickhouse_url, near_spark, tmp_path):
    names = [f"shards_{uuid4().hex[:8]}_{shard}" for shard in (0, 1)]
    shards = parse_endpoints("", " ".join(f"{clickhouse_url}/?database={name}" for name in names))
    deployment = deployment_at(
        clickhouse_url, near_spark, tmp_path, endpoint=shards[0], shards=shards
    )
    table = sharded(deployment, Mirror(sharding=BY_ID, errors="dead_letter"), FullText("name"))
    table.insert(*range(40))
    table.insert(*range(30), tenant="b")
    table.follow()
    check(table)
    database, short = table.source.database, table.source.table
    client = shards[0].get_client()
    for each in names:
        constraint = "ADD CONSTRAINT no_other CHECK name != 'other'"
        client.command(f"ALTER TABLE `{each}`.`{short}_mirror__rows` {constraint}")
    table.sql("UPDATE {t} SET name = 'other' WHERE id % 3 = 0")
    table.sql("DELETE FROM {t} WHERE id % 5 = 0 AND tenant = 'a'")
    table.follow()
    # Letters lie with their shard and are replayed there.
    letters = find_letters(deployment, [table.source], index=f"{table.source.name}/mirror")
    assert letters == find_letters(deployment, [table.source])
    jobs = [f"{table.source.name}/mirror_shard_{shard}" for shard in (0, 1)]
    for job, name_ in zip(jobs, ("mirror_shard_0", "mirror_shard_1"), strict=True):
        own = find_letters(deployment, [table.source], index=job)
        assert own
        assert own == [each for each in letters if each.index == job]
        dead = [each.dead for each in table.verdicts() if each.index == name_]
        assert 0 < sum(dead) <= len(own)
    for each in names:
        client.command(f"ALTER TABLE `{each}`.`{short}_mirror__rows` DROP CONSTRAINT no_other")
    assert {each.error for each in replay_letters(deployment, [table.source], letters)} == {None}
    assert find_letters(deployment, [table.source]) == []
    check(table)
    # An index without sharding lies on the first server.
    where = (
        "SELECT DISTINCT database FROM system.tables "
        "WHERE database IN {names:Array(String)} AND name LIKE {view:String}"
    )
    found = client.query(where, {"names": names, "view": f"{short}_text%"}).result_rows
    assert found == [(names[0],)]
    there = "SELECT count() FROM system.databases WHERE name = {name:String}"
    assert client.query(there, {"name": database}).result_rows == [(0,)]
    # Each is rebuilt in its own database, and dropped only there.
    api(table).rebuild_job(ALL_TENANTS, name(table, "mirror_shard_1"))
    table.follow()
    check(table)
    rebuilt = {f"{short}_mirror__rows_1": 1}
    assert [tables(table, shard) for shard in (0, 1)] == [{f"{short}_mirror__rows": 0}, rebuilt]
    api(table).unregister_job(ALL_TENANTS, name(table, "mirror_shard_0"))
    without = [replace(table.source, indexes=[])]
    later_ = later(table).deployment
    delete_garbage(later_, without, find_garbage(later_, without))
    assert [tables(table, shard) for shard in (0, 1)] == [{}, rebuilt]


def test_a_shard_that_dies_in_the_middle_of_a_scan_holds_up_no_other_and_catches_up(table, servers):
    table.insert(*range(30))
    table.insert(*range(30), tenant="b")
    table.follow()
    rows = f"{table.source.database}.{table.source.table}_mirror__rows"
    second = table.deployment.endpoints[1].get_client()
    with insert_gate(second.command, rows) as gate:

        def kill():
            gate.met.wait(60)
            servers[1].stop()

        killer = Thread(target=kill)
        killer.start()
        table.insert(*range(30, 60))
        table.sql("DELETE FROM {t} WHERE id < 10")
        table.follow()
        killer.join()
        assert gate.met.is_set()
        is_up_alone(table)
        # A later commit reaches the server that is up, while the other waits.
        table.sql("UPDATE {t} SET name = 'while it is down' WHERE id % 2 = 0")
        table.follow()
        is_up_alone(table)
        in_step = {
            each.job_name: each.in_step for each in read_positions(table.deployment, table.source)
        }
        assert in_step == {"mirror_shard_0": True, "mirror_shard_1": False}
        wanted = "SELECT count() FROM {view} WHERE name = 'while it is down'"
        assert held(table, 0, wanted)[0][0] > 0
        verdicts = compare_or_raise(table.deployment, table.source, indexes=["mirror_shard_0"])
        assert verdicts
        assert all(each.agrees and each.rows for each in verdicts)
        # It is still down when its wait is over.
        waited = later(table)
        for due in waited.look().dispatches:
            waited.run(due.iteration, queued_as=due.name)
        is_up_alone(table)
        servers[1].start()
    later(table).follow()
    check(table)


def is_up_alone(table):
    """Check that the second shard's jobs wait for its server, and the first is in step."""
    for job in table.jobs():
        up = job.key.job_name == "mirror_shard_0"
        assert job.state is JobState.COMPLETED
        assert job.status.code == (0 if up else UnavailableError.code)
        assert not up or job.watermark.version == table.version


def test_another_number_of_shards_stops_the_jobs_until_they_are_built_anew(deployment):
    index = Mirror(sharding=BY_ID)
    one = on(Table.make(deployment), deployment, 1, index)
    one.insert(*range(30))
    one.follow()
    assert len(held(one, 0)) == 30
    two = on(one, deployment, 2, index)
    two.insert(*range(30, 40))
    two.follow()
    jobs = states(two)
    assert jobs["mirror_shard_0"].status.code == SchemaError.code
    assert f"iscp job rebuild {two.source.name}/mirror_shard_0" in (
        jobs["mirror_shard_0"].status.message
    )
    # The new shard exists, and the old one serves the same rows as before.
    assert (len(held(two, 0)), jobs["mirror_shard_1"].status.code) == (30, 0)
    assert api(two).rebuild_job(ALL_TENANTS, name(two, "mirror_shard_0")) is True
    two.follow()
    check(two)
    assert set(tables(two, 0).values()) == {1}


def dies(table, proxy):
    """Let a run give up because the network holds its inserts into the second shard."""
    proxy.coming_to["__rows"] = [LATE] * ATTEMPTS
    shards = (table.deployment.endpoints[0], ClickHouseEndpoint.parse(proxy.url))
    behind = replace(table, deployment=replace(table.deployment, shards=shards))
    outcomes = behind.run(table.iteration("a"), "dies")
    proxy.coming_to.clear()
    assert {each.claim.key.job_name: type(each) for each in outcomes} == {
        "mirror_shard_0": RowDelivery,
        "mirror_shard_1": FailedStep,
    }


def test_what_one_shard_gets_late_changes_nothing(deployment, servers):
    """Meanwhile its heirs have published on all shards: a snapshot, then changes."""
    table = sharded(deployment, Mirror(append=True, sharding=BY_ID), key=())
    table.insert(*range(20))
    table.follow()
    with faulty(servers[1].url) as proxy:
        for heirs in (ReadKind.SNAPSHOT, ReadKind.TAIL):
            first = 20 if heirs is ReadKind.SNAPSHOT else 50
            table.insert(*range(first, first + 20))
            dies(table, proxy)
            if heirs is ReadKind.SNAPSHOT:
                table.sql("DELETE FROM {t} WHERE id >= 30")
                deployment.log.rebuild([job.key for job in table.jobs()])
            else:
                table.insert(*range(80, 90))
            outcomes = table.materialize("a")
            assert {each.claim.key.job_name for each in outcomes} == {
                "mirror_shard_0",
                "mirror_shard_1",
            }
            assert {each.plan.kind for each in outcomes} == {heirs}
            said = proxy.land()
            assert len(said) == ATTEMPTS
            assert all("iscp_barrier_" in each for each in said), said
            check(table)


def test_the_hourly_jobs_serve_a_shard_that_is_built_and_drop_the_data_of_dropped_ones(table):
    table.insert(*range(20))
    table.follow()
    api(table).rebuild_job(ALL_TENANTS, name(table, "mirror_shard_1"))
    (dispatch,) = table.look().dispatches
    mortal_log = CrashingProxy(table.deployment.log, CrashPoint("before", "find_unbuilt_tenants"))
    mortal = replace(table, deployment=replace(table.deployment, log=mortal_log))
    with pytest.raises(Crash):
        mortal.run(dispatch.iteration, queued_as=dispatch.name)
    assert set(tables(table, 1).values()) == {0, 1}
    assert serve_all(table.deployment, [table.source]).indexes == [name(table, "mirror_shard_1")]
    assert set(tables(table, 1).values()) == {1}
    assert serve_all(table.deployment, [table.source]).indexes == []
    check(table)
    for job in ("mirror_shard_0", "mirror_shard_1"):
        assert api(table).unregister_job(ALL_TENANTS, name(table, job)) is True
    deployment = later(table).deployment
    without = [replace(table.source, indexes=[])]
    found = find_garbage(deployment, without)
    assert [each.scope for each in found] == ["table", "table"]
    assert delete_garbage(deployment, without, found) == 2
    assert (tables(table, 0), tables(table, 1)) == ({}, {})


def test_what_was_not_sharded_becomes_so_and_its_job_takes_no_shard_along(deployment):
    whole = Table.make(deployment, Mirror(errors="dead_letter"))
    whole.insert(*range(20))
    whole.follow()
    rows = f"{whole.source.database}.{whole.source.table}_mirror__rows"
    whole.deployment.endpoint.get_client().command(
        f"ALTER TABLE {rows} ADD CONSTRAINT no_odd CHECK NOT startsWith(name, 'odd')"
    )
    whole.insert(20, name="odd")
    whole.follow()
    index = Mirror(sharding=BY_ID)
    table = on(whole, deployment, 2, index)
    table.deployment.log.unregister("a", name(table, "mirror"))
    table.follow()
    api(table).rebuild_job(ALL_TENANTS, name(table, "mirror_shard_0"))
    table.follow()
    check(table)
    assert len(find_letters(deployment, [whole.source])) == 1
    deployment = later(table).deployment
    found = find_garbage(deployment, [table.source])
    assert [each.scope for each in found] == ["nothing"]
    assert delete_garbage(deployment, [table.source], found) == 1
    assert find_letters(deployment, [whole.source]) == []
    check(table)


def test_a_shard_whose_server_is_named_no_more_is_forgotten_without_it(table):
    table.insert(*range(20))
    table.follow()
    api(table).unregister_job(ALL_TENANTS, name(table, "mirror_shard_1"))
    fewer = later(on(table, table.deployment, 1, Mirror(sharding=BY_ID))).deployment
    without = [replace(table.source, indexes=[])]
    assert delete_garbage(fewer, without, find_garbage(fewer, without)) == 1
    assert tables(table, 1)


def test_dagster_has_an_asset_a_shard_and_reads_each(table, servers, tmp_path):
    table.insert(*range(20))
    deployment, source = table.deployment, table.source
    iscp = Iscp(
        clickhouse=ClickHouse(urls=" ".join(each.url for each in servers)),
        lake=Lake(root=deployment.lake),
        log=IscpLog(url=f"sqlite:///{tmp_path / 'iscp_log.sqlite'}"),
        spark=Spark(remote="sc://127.0.0.1:9"),
    )
    first, second = (get_index_asset_key(source, each) for each in source.indexes)
    assert second.path[-1] == f"{source.table}_mirror_shard_1"
    seen = {}

    @dg.asset(
        ins={"one": dg.AssetIn(first), "other": dg.AssetIn(second)},
        partitions_def=dg.DynamicPartitionsDefinition(name=get_partitions_name(source)),
    )
    def both(one, other):
        seen["a"] = [one["id"].to_pylist(), other["id"].to_pylist()]

    kinds = {"clickhouse": ClickHouseTables(iscp=iscp)}
    defs = build_definitions([source], {"iscp": iscp, **kinds})
    defs = dg.Definitions.merge(defs, dg.Definitions(assets=[both]))
    home = tmp_path / "dagster"
    home.mkdir()
    quiet = {"telemetry": {"enabled": False}}
    with dg.DagsterInstance.ephemeral(str(home), settings=quiet) as instance:
        instance.add_dynamic_partitions(get_partitions_name(source), ["a"])
        done = defs.resolve_job_def(get_sync_job_name(source)).execute_in_process(
            instance=instance, partition_key="a"
        )
        shown = [each.materialization for each in done.get_asset_materialization_events()]
        names = {each.metadata["dagster/table_name"].value for each in shown}
        assert names == {f"{source.database}.{source.table}_mirror"}
        assert sum(each.metadata["rows_inserted"].value for each in shown) == 20
        defs.resolve_implicit_global_asset_job_def().execute_in_process(
            instance=instance, asset_selection=[both.key], partition_key="a"
        )
    served = [[id_ for _, id_, _ in held(table, shard)] for shard in (0, 1)]
    assert [sorted(each) for each in seen["a"]] == served
    assert all(seen["a"])
    check(table)
