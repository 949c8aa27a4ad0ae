"""An index on two ClickHouse servers: each row on one of them, each of them in step by itself."""

from __future__ import annotations

from dataclasses import replace

import pytest
from servers import running_servers
from tables import Table, engine_at

from iscp_dagster import Mirror
from iscp_dagster.core.states import JobState
from iscp_dagster.core.tables import spread
from iscp_dagster.engine.standing import standings

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

BY_ID = {"hash_function": "cityHash64", "key": ["id"]}
MINE = "cityHash64(id) % 2"


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    with running_servers(tmp_path_factory.mktemp("shards"), 2) as found:
        yield found


@pytest.fixture
def engine(servers, spark_remote, tmp_path):
    shards = tuple(each.endpoint for each in servers)
    return engine_at(servers[0].url, spark_remote, tmp_path, shards=shards)


@pytest.fixture
def table(engine):
    return sharded(engine, Mirror(sharding=BY_ID))


def sharded(engine, *indexes, **declared):
    table = Table.make(engine, *indexes, **declared)
    return replace(table, source=spread(table.source, len(engine.endpoints)))


def held(table, shard, query="SELECT tenant, id, name FROM {view} ORDER BY tenant, id"):
    view = f"{table.source.database}.{table.source.table}_mirror"
    client = table.engine.endpoints[shard].client()
    return [tuple(row) for row in client.query(query.replace("{view}", view)).result_rows]


def check(table):
    """Every shard is in step and holds its own rows; together they are the source."""
    assert [each for each in standings(table.engine, table.source) if not each.in_step] == []
    assert [each for each in table.verdicts() if not each.agrees] == []
    wanted = [tuple(row) for row in table.sql("SELECT tenant, id, name FROM {t} ORDER BY 1, 2")]
    for shard, _ in enumerate(table.engine.endpoints):
        assert held(table, shard, f"SELECT count() FROM {{view}} WHERE {MINE} != {shard}") == [(0,)]
    found = [row for shard, _ in enumerate(table.engine.endpoints) for row in held(table, shard)]
    assert sorted(found) == wanted
    assert sum(each.rows for each in table.verdicts()) == len(wanted)


def test_snapshot_and_changes_are_each_on_their_shard(table):
    table.insert(*range(40))
    table.insert(*range(30), tenant="b")
    table.follow()
    assert {job.key.job_name for job in table.jobs()} == {"mirror_shard_0", "mirror_shard_1"}
    assert all(held(table, shard) for shard in (0, 1))
    check(table)
    table.sql("UPDATE {t} SET name = 'other' WHERE id % 3 = 0")
    table.sql("DELETE FROM {t} WHERE id % 5 = 0 AND tenant = 'a'")
    table.insert(*range(100, 120), tenant="b")
    table.follow()
    check(table)
    assert {job.state for job in table.jobs()} == {JobState.COMPLETED}
