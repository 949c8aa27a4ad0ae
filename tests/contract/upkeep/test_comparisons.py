"""What `verify` says where some of a table's indexes or tenants cannot be compared."""

from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from iscp_dagster import Mirror
from iscp_dagster.cli import show
from iscp_dagster.clickhouse.connect.failures import ClickHouseError
from iscp_dagster.delta.log.deltalog import DeltaLog
from iscp_dagster.model.errors import ConfigError, FeedGoneError
from iscp_dagster.upkeep import verify as verification
from iscp_dagster.upkeep.comparison import compare_tables
from iscp_dagster.upkeep.verify import MovingError, compare_indexes, verify
from support.lake.delta_tables import Table, deployment_at, rows
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


def found_in(table):
    return compare_tables(table.deployment, [(table.source, None)])


def agreeing(found):
    return {(each.index, each.tenant) for _, each in found.verdicts if each.agrees}


def test_an_index_that_cannot_be_compared_stops_no_other(table, capsys):
    table = table.with_indexes(Mirror(), replace(NARROW, columns=["gone"]))
    found = found_in(table)
    assert agreeing(found) == {("mirror", tenant) for tenant in "abc"}
    ((_, failure),) = found.failures
    assert (failure.index, failure.tenants, failure.as_of) == ("narrow", ("a", "b", "c"), None)
    assert (found.differs, found.empty, found.complete) == (False, False, False)
    show.print_comparison(found, as_json=False)
    said = " ".join(capsys.readouterr().out.split())
    name = f"{table.source.name}/narrow"
    assert (
        f"{name}, tenants a, b, c: could not be compared: Index {name}: the source has no "
        "column 'gone'; it has: tenant, id, name, v." in said
    )
    with pytest.raises(ConfigError, match="no column 'gone'"):
        verify(table.deployment, table.source)


def test_what_an_earlier_version_lacks_is_said_of_that_version(table, capsys):
    at = table.version
    table.insert(3, tenant="b")
    found = found_in(table.with_indexes(Mirror(), replace(NARROW, columns=["gone"])))
    assert {failure.as_of for _, failure in found.failures} == {None, at}
    show.print_comparison(found, as_json=False)
    said = " ".join(capsys.readouterr().out.split())
    assert f"/narrow, tenant b: could not be compared: as of version {at}, Index" in said


def test_a_tenant_that_cannot_be_read_stops_no_other(table, monkeypatch):
    read = verification.read_snapshot

    def snapshot(spark, selection, at):
        if "b" in selection.tenants:
            raise FeedGoneError("a file of tenant b is lost")
        return read(spark, selection, at)

    monkeypatch.setattr(verification, "read_snapshot", snapshot)
    found = found_in(table)
    assert agreeing(found) == {(name, of) for name in ("mirror", "narrow") for of in "ac"}
    told = {(each.index, each.tenants, type(each.error)) for _, each in found.failures}
    assert told == {(name, ("b",), FeedGoneError) for name in ("mirror", "narrow")}


def test_where_every_tenant_fails_alone_not_all_are_tried(table, monkeypatch):
    tried = []

    def fail(*arguments):
        tried.append(arguments[-1])
        raise FeedGoneError("all is lost")

    monkeypatch.setattr(verification, "_read_verdicts", fail)
    many = ", ".join(rows(1, tenant=f"t{number}") for number in range(30))
    table.sql(f"INSERT INTO {{t}} VALUES {many}")
    table.follow()
    results = compare_indexes(table.deployment, table.source, indexes=["mirror"])
    told = [tenant for failure in results for tenant in failure.tenants]
    assert len(told) == len(set(told)) == 33
    assert len(tried) < 33


def test_an_index_whose_table_is_gone_stops_no_other(table):
    table.query(f"DROP VIEW {table.view(NARROW)}")
    table.query(f"DROP TABLE {table.view(NARROW, '__rows')}")
    found = found_in(table)
    assert agreeing(found) == {("mirror", tenant) for tenant in "abc"}
    ((_, failure),) = found.failures
    assert (failure.index, type(failure.error)) == ("narrow", ClickHouseError)


def test_what_differs_is_said_in_sentences(deployment, capsys):
    table = Table.make(deployment, Mirror())
    table.insert(1, 2, 3, 4)
    table.follow()
    tamper(
        table,
        "(tenant, id, name, v, _deleted, _version)",
        "('a', 1, 'other', [1, 1], 0, 99), ('a', 2, 'x', [2, 1], 1, 99), "
        "('a', 9, 'extra', [1, 1], 0, 99), ('a', 3, 'other', [0, 0], 0, 99)",
    )
    ((_, verdict),) = found_in(table).verdicts
    assert verdict.samples == (
        "the row with id = 1 has another value of name in the index",
        "the row with id = 2 is missing from the index",
        "the row with id = 3 has another value of name, v in the index",
    )
    show.print_comparison(found_in(table), as_json=False)
    said = " ".join(capsys.readouterr().out.split())
    assert f"{table.source.name}/mirror, tenant a: the row with id = 1 has another" in said
    assert said.endswith("name, v in the index; and 1 more")


def test_what_differs_without_a_key_is_shown_whole(deployment):
    table = Table.make(deployment, Mirror(append=True), key=())
    table.insert(1)
    table.follow()
    tamper(table, "(tenant, id, name, v)", "('a', 1, 'some words 1', [1, 1]), ('a', 9, 'x', [1])")
    ((_, verdict),) = found_in(table).verdicts
    once, twice = verdict.samples
    assert "some words 1" in once
    assert once.endswith(" is once in the source and 2 times in the index")
    assert twice.endswith(" is 0 times in the source and once in the index")


def test_rows_that_no_reader_sees_are_missed_by_the_count_of_the_log(table, capsys):
    """A fault in the filter on tenants would hide rows from the path and from the comparison."""
    (added,) = DeltaLog(table.path, "tenant").list_data_files(table.version, ["c"])
    (commit,) = (
        path
        for path in Path(table.path, "_delta_log").glob("*.json")
        if added.path in path.read_text()
    )
    said = commit.read_text()
    assert added.rows == 2
    commit.write_text(said.replace('numRecords\\":2', 'numRecords\\":3'))
    assert commit.read_text() != said
    found = found_in(table)
    assert {(each.tenant, each.logged, each.agrees) for _, each in found.verdicts} == {
        ("a", 2, True),
        ("b", 2, True),
        ("c", 3, False),
    }
    assert found.differs
    show.print_comparison(found, as_json=False)
    said = " ".join(capsys.readouterr().out.split())
    name = f"{table.source.name}/mirror, tenant c"
    assert f"{name}: 2 rows were read from the source, but its log counts 3" in said


def tamper(table, columns, values):
    held = table.view(table.source.indexes[0], "__rows")
    client = table.deployment.endpoint.get_client()
    client.command(f"INSERT INTO {held} {columns} VALUES {values}", settings=ANYWAY)


def test_an_index_that_keeps_moving_stops_no_other(table, monkeypatch):
    real, ids = verification._compare_built, count(10)

    def compare(*arguments):
        yield from real(*arguments)
        table.insert(next(ids), tenant="b")
        table.follow()

    monkeypatch.setattr(verification, "_compare_built", compare)
    found = found_in(table)
    assert agreeing(found) == {(name, of) for name in ("mirror", "narrow") for of in "ac"}
    assert {(each.tenants, type(each.error)) for _, each in found.failures} == {
        (("b",), MovingError)
    }
