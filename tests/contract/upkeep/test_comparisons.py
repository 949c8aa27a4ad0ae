"""What `verify` reports where some of a table's indexes or tenants cannot be compared."""

from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from iscp_dagster import Mirror
from iscp_dagster.cli import verdicts
from iscp_dagster.clickhouse.connect.failures import ClickHouseError
from iscp_dagster.delta.log.deltalog import DeltaLog
from iscp_dagster.model.errors import ConfigError, FeedGoneError
from iscp_dagster.upkeep import verify_indexes as verification
from iscp_dagster.upkeep.verify_indexes import MovingError, compare_indexes, compare_or_raise
from iscp_dagster.upkeep.verify_tables import compare_tables
from support.errors import assert_names, raises_naming
from support.lake.delta_tables import Table, deployment_at
from support.lake.row_writer import ANYWAY

NARROW = Mirror(name="narrow", columns=["name"])


@pytest.fixture
def deployment(clickhouse_url, near_spark, tmp_path):
    return deployment_at(clickhouse_url, near_spark, tmp_path)


@pytest.fixture
def table(deployment):
    """Return a table with two indexes of three tenants, in step."""
    table = Table.make(deployment, Mirror(), NARROW)
    for tenant in "abc":
        table.insert(1, 2, tenant=tenant)
    table.follow()
    return table


def compare(table):
    return compare_tables(table.deployment, [(table.source, None)])


def list_agreeing(comparison):
    """Return index and tenant of all that agrees."""
    return {(each.index, each.tenant) for _, each in comparison.verdicts if each.agrees}


def list_failed(comparison):
    """Return index, tenants and error of what could not be compared."""
    return {(each.index, each.tenants, type(each.error)) for _, each in comparison.failures}


def name_pairs(tenants):
    """Return each of the two indexes with each of the tenants."""
    return {(name, tenant) for name in ("mirror", "narrow") for tenant in tenants}


@pytest.fixture
def print_text(capsys):
    """Give a function that returns what is printed of a comparison, in one line."""

    def print_one(comparison):
        verdicts.print_comparison(comparison, as_json=False)
        return " ".join(capsys.readouterr().out.split())

    return print_one


def test_an_index_that_cannot_be_compared_stops_no_other(table, print_text):
    table = table.with_indexes(Mirror(), replace(NARROW, columns=["gone"]))
    comparison = compare(table)
    assert list_agreeing(comparison) == {("mirror", tenant) for tenant in "abc"}
    ((_, failure),) = comparison.failures
    assert (failure.index, failure.tenants, failure.as_of) == ("narrow", ("a", "b", "c"), None)
    assert (comparison.differs, comparison.empty, comparison.complete) == (False, False, False)
    name = f"{table.source.name}/narrow"
    assert_names(print_text(comparison), f"{name}, tenants a, b, c", "'gone'")
    with raises_naming(ConfigError, name, "'gone'"):
        compare_or_raise(table.deployment, table.source)
    # What an earlier version lacks is reported for that version.
    at = table.version
    table.insert(3, tenant="b")
    comparison = compare(table)
    assert {failure.as_of for _, failure in comparison.failures} == {None, at}
    assert_names(print_text(comparison), "narrow, tenant b", f"version {at}")


def test_a_tenant_or_table_that_cannot_be_read_stops_no_other(table, monkeypatch):
    read_snapshot = verification.read_snapshot

    def lose_file(spark, selection, at):
        if "b" in selection.tenants:
            raise FeedGoneError("a file of tenant b is lost")
        return read_snapshot(spark, selection, at)

    with monkeypatch.context() as patch:
        patch.setattr(verification, "read_snapshot", lose_file)
        comparison = compare(table)
    assert list_agreeing(comparison) == name_pairs("ac")
    assert list_failed(comparison) == {
        (name, ("b",), FeedGoneError) for name in ("mirror", "narrow")
    }
    table.query(f"DROP VIEW {table.view(NARROW)}")
    table.query(f"DROP TABLE {table.view(NARROW, '__rows')}")
    comparison = compare(table)
    assert list_agreeing(comparison) == {("mirror", tenant) for tenant in "abc"}
    assert list_failed(comparison) == {("narrow", ("a", "b", "c"), ClickHouseError)}
    # Where every tenant fails alone, not all are tried.
    tried = []

    def fail(*arguments):
        tried.append(arguments[-1])
        raise FeedGoneError("all is lost")

    monkeypatch.setattr(verification, "_read_verdicts", fail)
    monkeypatch.setattr(verification, "TENANTS_TRIED", 1)
    results = compare_indexes(table.deployment, table.source, indexes=["mirror"])
    assert sorted(failure.tenants for failure in results) == [("a",), ("b", "c")]
    assert len(tried) == 3


def test_rows_that_differ_are_named(deployment, print_text):
    table = Table.make(deployment, Mirror())
    table.insert(1, 2, 3, 4)
    table.follow()
    tamper(
        table,
        "(tenant, id, name, v, _deleted, _version)",
        "('a', 1, 'other', [1, 1], 0, 99), ('a', 2, 'x', [2, 1], 1, 99), "
        "('a', 9, 'extra', [1, 1], 0, 99), ('a', 3, 'other', [0, 0], 0, 99)",
    )
    comparison = compare(table)
    ((_, verdict),) = comparison.verdicts
    changed, missing, both = verdict.samples
    assert_names(changed, "id = 1", "name")
    assert_names(missing, "id = 2", "missing")
    assert_names(both, "id = 3", "name, v")
    text = print_text(comparison)
    assert f"{table.source.name}/mirror, tenant a: {changed}" in text
    assert both in text
    assert text.endswith("1 more")


def test_rows_that_differ_without_a_key_are_shown_whole(deployment):
    table = Table.make(deployment, Mirror(append=True), key=())
    table.insert(1)
    table.follow()
    tamper(table, "(tenant, id, name, v)", "('a', 1, 'some words 1', [1, 1]), ('a', 9, 'x', [1])")
    ((_, verdict),) = compare(table).verdicts
    doubled, extra = verdict.samples
    assert_names(doubled, "some words 1", "once", "2 times")
    assert_names(extra, "x", "0 times", "once")


def test_rows_that_no_reader_sees_are_missed_by_the_count_of_the_log(table, print_text):
    """A fault in the filter on tenants would hide rows from the path and from the comparison."""
    (added,) = DeltaLog(table.path, "tenant").list_data_files(table.version, ["c"])
    (commit,) = (
        path
        for path in Path(table.path, "_delta_log").glob("*.json")
        if added.path in path.read_text()
    )
    text = commit.read_text()
    assert added.rows == 2
    assert text.count('numRecords\\":2') == 1
    commit.write_text(text.replace('numRecords\\":2', 'numRecords\\":3'))
    comparison = compare(table)
    assert {(each.tenant, each.logged, each.agrees) for _, each in comparison.verdicts} == {
        ("a", 2, True),
        ("b", 2, True),
        ("c", 3, False),
    }
    assert comparison.differs
    text = print_text(comparison)
    assert_names(text, f"{table.source.name}/mirror, tenant c: 2 rows", "log counts 3")


def tamper(table, columns, values):
    stored = table.view(table.source.indexes[0], "__rows")
    client = table.deployment.endpoint.get_client()
    client.command(f"INSERT INTO {stored} {columns} VALUES {values}", settings=ANYWAY)


def test_an_index_that_keeps_moving_stops_no_other(table, monkeypatch):
    compare_built, ids = verification._compare_built, count(10)

    def compare_while_moving(*arguments):
        yield from compare_built(*arguments)
        table.insert(next(ids), tenant="b")
        table.follow()

    monkeypatch.setattr(verification, "_compare_built", compare_while_moving)
    comparison = compare(table)
    assert list_agreeing(comparison) == name_pairs("ac")
    failed = {(tenants, error) for _, tenants, error in list_failed(comparison)}
    assert failed == {(("b",), MovingError)}
