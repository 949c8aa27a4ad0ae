"""The stand-in gives the same as Spark, for random histories and for damaged indexes."""

import random
from dataclasses import replace

import pytest

from iscp_dagster import Mirror
from iscp_dagster.delta import reader
from iscp_dagster.model.moment import Moment
from iscp_dagster.upkeep.verify_indexes import compare_or_raise
from support.lake.delta_tables import Table, deployment_at, rows
from support.lake.row_writer import ANYWAY
from support.spark.fake_spark import NearSpark, changes, near, snapshot

OTHER = "b c/d'é"
HISTORY = (
    lambda n: f"INSERT INTO {{t}} VALUES {rows(n, n + 1)}, {rows(n, tenant=OTHER)}",
    lambda n: f"INSERT INTO {{t}} VALUES {rows(n % 7, name='once more')}",
    lambda n: f"UPDATE {{t}} SET name = 'changed {n}' WHERE id % 3 = {n % 3}",
    lambda n: f"UPDATE {{t}} SET id = {100 + n} WHERE id = {n % 5}",
    lambda n: f"DELETE FROM {{t}} WHERE id % 4 = {n % 4} AND tenant = 'a'",
    lambda _: "OPTIMIZE {t}",
)


@pytest.fixture
def table(clickhouse_url, tmp_path):
    """Make a table with a history, in a deployment with the stand-in."""
    with near() as spark:
        table = Table.make(deployment_at(clickhouse_url, spark, tmp_path), Mirror())
    table.insert(*range(6))
    table.insert(*range(6), tenant=OTHER)
    history = [*HISTORY] * 2
    random.Random(17).shuffle(history)
    for n, change in enumerate(history):
        table.sql(change(n))
    return table


def told(frame):
    """Return the rows as comparable values, in their order."""
    return [{n: str(v) for n, v in row.asDict().items()} for row in frame.collect()]


def unordered(found):
    return sorted(found, key=lambda row: sorted(row.items()))


@pytest.mark.parametrize("keys", [("id",), ()], ids=["keyed", "append-only"])
def test_each_range_and_each_version(table, spark_deployment, keys):
    spark, log = spark_deployment.spark(), table.deployment.make_delta_log(table.source)
    selection = reader.TableSelection(
        path=table.path, columns=("tenant", "id", "name"), keys=keys, tenant_column="tenant"
    )
    chosen = replace(selection, tenants=frozenset({OTHER}))
    last = log.get_latest_moment().version
    from_, to = log.get_moment(last // 2 if keys else 0), log.get_moment(last)
    wanted = told(reader.read_changes(spark, selection, from_, to))
    found = told(changes(NearSpark(), selection, from_, to))
    if keys:
        assert found == wanted
    assert unordered(found) == unordered(wanted)
    assert len({(row["_deleted"], row["_repeats"]) for row in wanted}) > 1
    some = told(changes(NearSpark(), chosen, from_, to, partitions=3))
    assert unordered(some) == unordered(row for row in wanted if row["tenant"] == OTHER)
    if keys:
        at = Moment(last // 2, 7)
        wanted = told(reader.read_snapshot(spark, selection, at))
        assert unordered(told(snapshot(NearSpark(), selection, at))) == unordered(wanted)


@pytest.mark.parametrize("append", [False, True], ids=["keyed", "append-only"])
def test_comparisons(clickhouse_url, spark_deployment, append):
    with near() as spark:
        by_us = replace(spark_deployment, spark=lambda: spark)
        options = {"key": ()} if append else {}
        table = Table.make(by_us, Mirror(append=append), **options)
        table.insert(1, 2, 3)
        table.insert(1, 2, tenant=OTHER)
        table.follow()
        if append:
            table.deployment.endpoint.get_client().command(
                f"INSERT INTO {table.view(table.source.indexes[0], '__rows')} (tenant, id, name, v)"
                " VALUES ('a', 1, 'some words 1', [1, 1]), ('a', 9, 'extra', [1, 1])",
                settings=ANYWAY,
            )
        else:
            table.deployment.endpoint.get_client().command(
                f"INSERT INTO {table.view(table.source.indexes[0], '__rows')} "
                "(tenant, id, name, v, _deleted, _version) VALUES ('a', 1, 'other', [1, 1], 0, 99),"
                " ('a', 2, 'some words 2', [2, 1], 1, 99), ('a', 9, 'extra', [1, 1], 0, 99)",
                settings=ANYWAY,
            )
        found = compare_or_raise(by_us, table.source)
    assert {each.tenant: each.agrees for each in found} == {"a": False, OTHER: True}
    wanted = compare_or_raise(spark_deployment, table.source)
    if append:
        found, wanted = ([replace(v, samples=()) for v in some] for some in (found, wanted))
    assert found == wanted
