"""Tenants found in a table's rows, held against those that partition values name."""

import datetime as dt
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from iscp_dagster.delta.log import row_tenants
from iscp_dagster.delta.log.deltalog import DeltaLog
from iscp_dagster.model.errors import SourceError
from support.errors import raises_naming

FEED = {"delta.enableChangeDataFeed": "true"}
TEXT = pa.string()
TENANTS = ("a", "b", "it's", "ü")


def make_rows(tenants, type_=TEXT):
    numbers = pa.array(range(len(tenants)), pa.int64())
    return pa.table({"tenant": pa.array(tenants, type_), "k": numbers})


def append(path, tenants, type_=TEXT, **options):
    rows = make_rows(tenants, type_)
    write_deltalake(path, rows, mode="append", configuration=FEED, **options)


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "t")


def open_log(path, **options):
    return DeltaLog(path, "tenant", tenant_in_rows=True, **options)


def test_the_tenants_of_each_commit_are_those_of_its_rows(path):
    append(path, ["a", "b", "a", None, ""])
    append(path, ["c"])
    DeltaTable(path).update({"k": "9"}, predicate="tenant = 'b'")
    DeltaTable(path).delete("tenant = 'c'")
    log = open_log(path)
    changed = [log.list_changed_tenants(version - 1, version) for version in range(4)]
    assert changed == [{"a", "b"}, {"c"}, {"b"}, {"c"}]
    assert log.find_last_changes(-1, 3) == {"a": 0, "b": 2, "c": 3}
    assert log.find_first_change("b", 0, 3) == 2
    assert log.has_unnamed_changes(-1, 0)
    assert not log.has_unnamed_changes(0, 3)
    assert log.list_tenants() == ["a", "b"]
    assert log.list_tenants(1) == ["a", "b", "c"]
    sizes = log.get_tenant_sizes(0)
    assert {tenant: size.rows for tenant, size in sizes.items()} == {"a": 2, "b": 1}
    assert log.get_unnamed_size().rows == 2
    assert log.count_rows(3, {"a"}) == {}, "statistics count files, not tenants"


def test_what_moves_rows_between_files_changes_no_tenant(path):
    for _ in range(3):
        append(path, ["a", "b"])
    DeltaTable(path).optimize.compact()
    DeltaTable(path).optimize.z_order(["tenant"])
    log = open_log(path)
    assert log.list_changed_tenants(2, log.poll().moment.version) == set()
    assert log.list_tenants() == ["a", "b"]


@pytest.mark.parametrize(
    ("type_", "values", "names"),
    [
        (pa.int64(), [7, -1, None], ["-1", "7"]),
        (pa.date32(), [dt.date(2024, 2, 29), None], ["2024-02-29"]),
        (pa.bool_(), [True, False], ["false", "true"]),
    ],
    ids=str,
)
def test_a_tenant_is_the_text_of_its_value(path, type_, values, names):
    append(path, values, type_)
    assert open_log(path).list_tenants() == names
    assert open_log(path).list_changed_tenants(-1, 0) == set(names)


def test_the_log_says_nothing_where_a_file_cannot_be_read(path, tmp_path):
    append(path, ["a"])
    append(path, ["b"])
    log = open_log(path)
    (removed,) = (file for file in DeltaTable(path).file_uris() if file in log_files(path, 1))
    DeltaTable(path).delete("tenant = 'b'")
    (tmp_path / "t" / removed.rpartition("/")[2]).unlink()
    assert log.list_changed_tenants(0, 1) is None
    assert log.list_changed_tenants(-1, 0) == {"a"}
    assert not log.can_tell_tenants(-1, 1)


def log_files(path, version):
    before, after = (DeltaTable(path, version=at).file_uris() for at in (version - 1, version))
    (file,) = {*after} - {*before}
    return [file]


def test_a_snapshot_whose_tenants_cannot_be_read_is_an_error(path):
    """Its tenants must not be taken for gone."""
    append(path, ["a"])
    append(path, ["b"])
    (lost,) = log_files(path, 1)
    log = open_log(path)
    Path(lost.removeprefix("file://")).unlink()
    for ask in (log.list_tenants, log.get_tenant_sizes, log.get_unnamed_size):
        with raises_naming(SourceError, path, "'tenant'", lost.rpartition("/")[2]):
            ask()


def test_a_large_commit_says_nothing(path, monkeypatch):
    append(path, [f"tenant {number}" for number in range(1_000)])
    monkeypatch.setattr(row_tenants, "MOST_BYTES", 100)
    assert open_log(path).list_changed_tenants(-1, 0) is None
    assert len(open_log(path).list_tenants()) == 1_000


def test_tenants_of_commits_are_forgotten_when_they_are_many(path, monkeypatch):
    monkeypatch.setattr("iscp_dagster.delta.log.deltalog.MAX_VOLUMES_HELD", 3)
    for _ in range(4):
        append(path, ["a", "b"])
    log = open_log(path)
    assert log.find_last_changes(-1, 3) == {"a": 3, "b": 3}
    assert list(log._volumes) == [3]


def test_partition_values_name_the_tenant_where_the_table_is_partitioned_by_it(path, monkeypatch):
    append(path, ["a", "b"], partition_by=["tenant"])
    monkeypatch.setattr(row_tenants.RowTenants, "_open_file", None)
    assert open_log(path).list_changed_tenants(-1, 0) == {"a", "b"}
    assert open_log(path).list_tenants() == ["a", "b"]


def test_a_column_that_the_table_lacks_is_named(path):
    append(path, ["a"])
    with raises_naming(SourceError, "'region'", "tenant, k"):
        replace(open_log(path), tenant_column="region").get_tenant_column()
    with raises_naming(SourceError, "'tenant'", "buckets=64"):
        replace(open_log(path), tenant_in_rows=False).get_tenant_column()


KINDS = st.sampled_from(["append", "update", "delete", "overwrite"])
OWNERS = st.lists(st.sampled_from([*TENANTS, None]), min_size=1, max_size=4)
STEPS = st.lists(st.tuples(KINDS, OWNERS), min_size=1, max_size=5)


@settings(max_examples=15)
@given(steps=STEPS)
def test_rows_say_what_partitions_say(tmp_path_factory, steps):
    folder = tmp_path_factory.mktemp("tables")
    paths = {partitioned: str(folder / str(partitioned)) for partitioned in (True, False)}
    for partitioned, path in paths.items():
        options = {"partition_by": ["tenant"]} if partitioned else {}
        append(path, list(TENANTS), **options)
        for what, tenants in steps:
            commit(path, what, tenants, options)
    rows, partitions = open_log(paths[False]), DeltaLog(paths[True], "tenant")
    last = partitions.poll().moment.version
    questions = [DeltaLog.list_changed_tenants, DeltaLog.find_last_changes]
    questions += [DeltaLog.has_unnamed_changes]
    questions += [partial(DeltaLog.has_only_adds, tenants={tenant}) for tenant in TENANTS]
    for after in range(-1, last):
        for upto in range(after + 1, last + 1):
            for ask in questions:
                assert ask(rows, after, upto) == ask(partitions, after, upto)
    for version in range(last + 1):
        assert count_by_tenant(rows, version) == count_by_tenant(partitions, version)


def commit(path, what, tenants, options):
    (first, *_) = tenants
    name = "" if first is None else first.replace("'", "''")
    quoted = "tenant IS NULL" if first is None else f"tenant = '{name}'"
    if what == "append":
        append(path, tenants, **options)
    elif what == "update":
        DeltaTable(path).update({"k": "k + 1"}, predicate=quoted)
    elif what == "delete":
        DeltaTable(path).delete(quoted)
    else:
        write_deltalake(path, make_rows(tenants), mode="overwrite", **options)


def count_by_tenant(log, version):
    sizes = log.get_tenant_sizes(version)
    return {tenant: size.rows for tenant, size in sizes.items()}, log.list_tenants(version)
