"""Change detection over logs written by hand: which tenants each action concerns."""

from __future__ import annotations

import json
import os
import shutil
import socket
import threading
import time
import uuid
from dataclasses import dataclass, field, replace
from itertools import combinations, pairwise, product
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from iscp_dagster.delta.checks import check_source
from iscp_dagster.delta.feed import ChangeFeed, FeedState, get_feed_state, plan_read
from iscp_dagster.delta.log import opening
from iscp_dagster.delta.log.commits import MAX_STEPS, format_commit_name
from iscp_dagster.delta.log.deltalog import DeltaLog
from iscp_dagster.delta.log.facts import SnapshotReader
from iscp_dagster.delta.log.files import (
    LocalFiles,
    ObjectFiles,
    open_log_files,
    to_local_path,
    to_spark_path,
)
from iscp_dagster.delta.log.mark import LogMark
from iscp_dagster.delta.log.opening import to_table_url
from iscp_dagster.delta.read_plans import ReadKind
from iscp_dagster.model.errors import (
    FeedGoneError,
    KeyColumnError,
    NoTableError,
    SchemaError,
    SourceError,
    UnavailableError,
)
from iscp_dagster.model.moment import START, Moment
from support.clients.scripts import run_script
from support.errors import assert_names, raises_naming
from support.jobs.one_table import METADATA, name_dead_store

FEED = {"delta.enableChangeDataFeed": "true"}
TENANT = {"name": "tenant", "type": "string", "nullable": True, "metadata": {}}
NUMBER = {"name": "n", "type": "long", "nullable": True, "metadata": {}}
KEY = {"name": "k", "type": "long", "nullable": True, "metadata": {"comment": "the key"}}
COLLATED = KEY | {"type": "string", "metadata": {"__COLLATIONS": {"k": "spark.UTF8_LCASE"}}}
CHAR = TENANT | {"metadata": {"__CHAR_VARCHAR_TYPE_STRING": "char(4)"}}
DOUBLE = TENANT | {"type": "double"}
REMEDY = ("ALTER TABLE delta.`", "SET TBLPROPERTIES (delta.enableChangeDataFeed = true)")
HINT = "_delta_log/_last_checkpoint"


def map_column(column, physical):
    """Return the column with another name in the files."""
    return column | {"metadata": {"delta.columnMapping.physicalName": physical}}


def nest(comment):
    """Return a column of structs whose field has that comment."""
    type_ = {"type": "struct", "fields": [KEY | {"metadata": {"comment": comment}}]}
    return NUMBER | {"name": "s", "type": type_}


@dataclass
class Table:
    """Writes a Delta log, commit by commit."""

    path: Path
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    version: int = -1

    def create(self, fields=(TENANT, KEY), partition=("tenant",), properties=FEED, features=()):
        reader = 3 if features else 1
        protocol = {"minReaderVersion": reader, "minWriterVersion": 7, "writerFeatures": []}
        if features:
            protocol |= {"readerFeatures": list(features), "writerFeatures": list(features)}
        return self.commit({"protocol": protocol}, self.metadata(fields, partition, properties))

    def metadata(self, fields=(TENANT, KEY), partition=("tenant",), properties=FEED):
        schema = json.dumps({"type": "struct", "fields": list(fields)})
        own = {"id": self.id, "schemaString": schema, "partitionColumns": list(partition)}
        return {"metaData": METADATA["metaData"] | own | {"configuration": properties}}

    def commit(self, *actions, info=None):
        self.version += 1
        path = self.path / format_commit_name(self.version)
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [{"commitInfo": {"timestamp": 1, "operation": "WRITE", **(info or {})}}, *actions]
        path.write_text("\n".join(map(json.dumps, lines)) + "\n")
        return self

    def add(self, *tenants):
        """Commit one file for each tenant, in commits of their own."""
        for tenant in tenants:
            self.commit(file("add", tenant))
        return self

    def forget(self, *versions):
        """Remove commits, as a clean-up of the log does."""
        for version in versions:
            (self.path / format_commit_name(version)).unlink()

    def at(self, version, seconds):
        os.utime(self.path / format_commit_name(version), (seconds, seconds))

    def log(self, tenant_column="tenant"):
        return DeltaLog(str(self.path), tenant_column)


def file(kind, tenant, *, size=10, change=True, column="tenant", path=None, **more):
    values = {} if column is None else {column: tenant}
    action = {
        "path": path or f"{uuid.uuid4()}.parquet",
        "partitionValues": values,
        "size": size,
        "dataChange": change,
        **more,
    }
    if kind == "add":
        action["modificationTime"] = 1
    if kind == "remove":
        action |= {"deletionTimestamp": 1, "extendedFileMetadata": True}
    return {kind: action}


class CountingFiles(LocalFiles):
    """A folder whose requests for marks are counted."""

    requests = 0

    def read_mark(self, name):
        self.requests += 1
        return super().read_mark(name)


class StoreFiles(CountingFiles):
    """A folder as if it were a store."""

    local = False


class ClosedFiles(CountingFiles):
    """A folder of which nothing is read but marks."""

    def read(self, name):
        raise AssertionError(name)

    def list_names(self):
        raise AssertionError


def open_log(table, kind):
    """Return the table's log with files of that class, and a clock that stands still."""
    log = DeltaLog(str(table.path), "tenant", monotonic=lambda: 1_000.0)
    log.files = log.log.files = kind(str(table.path))
    return log


@pytest.fixture
def table(tmp_path):
    return Table(tmp_path / "a table").create()


@pytest.fixture
def log(table):
    """Return the table's log, which reads nothing before it is asked."""
    return table.log()


class TestPoll:
    def test_a_commit_that_was_replaced_in_a_store_stays_invalid(self, table):
        log = open_log(table, StoreFiles)
        mark = log.poll()
        assert log.is_latest(mark)
        log = open_log(table, StoreFiles)
        (table.path / "_delta_log" / f"{mark.moment.version:020d}.json").unlink()
        Table(table.path).create()
        assert not log.is_latest(mark)
        assert not log.is_latest(mark), "a check that failed is not kept as one that passed"

    def test_a_commit_moves_the_mark_and_nothing_else_does(self, table, log):
        first = log.poll()
        assert log.poll(first) is first
        table.add("a")
        second = log.poll(first)
        assert (first.moment.version, second.moment.version) == (0, 1)
        assert second.is_same_table(first)
        assert log.poll(second) is second
        assert log.get_latest_moment() == second.moment
        table.add(*["a"] * (2 * MAX_STEPS))
        assert log.poll(second).moment.version == 1 + 2 * MAX_STEPS

    def test_idle_is_two_looks_and_no_reading(self, table):
        mark = table.log().poll()
        log = open_log(table, ClosedFiles)
        assert log.poll(mark) is mark
        assert log.files.requests == 2

    def test_idle_imports_neither_deltalake_nor_pyspark(self, table):
        mark = table.log().poll()
        code = (
            "import sys; from iscp_dagster.delta.log.deltalog import DeltaLog;"
            "from iscp_dagster.delta.log.mark import LogMark;"
            f"DeltaLog({str(table.path)!r}, 'tenant').poll(LogMark.parse({str(mark)!r}));"
            "assert not {'deltalake', 'pyspark', 'pyarrow'} & set(sys.modules)"
        )
        run_script(code)

    def test_a_mark_is_short_text(self, table):
        mark = table.log().poll()
        assert LogMark.parse(str(mark)) == mark
        assert len(str(mark)) < 60
        with raises_naming(ValueError):
            LogMark.parse("12@5")

    @pytest.mark.parametrize(
        ("kind", "commits", "by_another"),
        [
            *[(LocalFiles, 0, False), (LocalFiles, 1, False), (LocalFiles, 5, False)],
            *[(StoreFiles, 2, False), (StoreFiles, 5, False)],
            *[(LocalFiles, 1, True), (StoreFiles, 1, True)],
        ],
    )
    def test_a_table_created_anew_is_noticed_in_a_store_at_its_next_commit_or_by_another_process(
        self, table, kind, commits, by_another
    ):
        log = open_log(table.add("old"), kind)
        assert log.list_tenants() == ["old"]
        known = log.poll(log.poll())
        assert log.list_changed_tenants(0, 1) == {"old"}
        shutil.rmtree(table.path)
        new = Table(table.path).create()
        new.add(*["new"] * commits)
        found = open_log(new, kind).poll() if by_another else known
        mark = log.poll(found)
        assert mark.is_same_table(found) is by_another
        assert not mark.is_same_table(known)
        assert mark.moment.version == commits
        assert log.list_changed_tenants(0, commits) == ({"new"} if commits else set())
        assert log.get_table_id() == new.id

    def test_a_table_replaced_by_one_whose_id_begins_alike_is_noticed(self, tmp_path):
        """Ids begin alike when they start with the time, or when a writer makes its own."""
        table = Table(tmp_path, id="01932c5a~one").create()
        log = table.log()
        known = log.poll()
        assert LogMark.parse(str(known)) == known
        table.id = "01932c5a~two"
        table.commit(table.metadata(), file("add", "new"))
        assert not log.poll(known).is_same_table(known)

    def test_in_a_store_a_commit_costs_one_request_for_the_table_s_identity(self, table):
        log = open_log(table, StoreFiles)
        known = log.poll(log.poll())
        log.files.requests = 0
        assert log.poll(known) is known
        assert log.files.requests == 1
        table.commit(file("add", "a"), info={"inCommitTimestamp": 1})
        log.files.requests = 0
        assert log.poll(known).moment.version == 1
        # The next commit twice, the one after it once, the new one's time, and the final check.
        assert log.files.requests == 5

    def test_a_log_put_back_to_an_earlier_state(self, table, log):
        table.add("a")
        known = log.poll()
        table.forget(1)
        mark = log.poll(known)
        assert mark.is_same_table(known)
        assert mark.moment < known.moment

    def test_an_error_names_the_path_without_a_table(self, table, log):
        mark = log.poll()
        shutil.rmtree(table.path)
        with raises_naming(NoTableError, table.path):
            log.poll(mark)
        for make in (lambda _: None, Path.mkdir):
            make(table.path)
            with raises_naming(NoTableError, table.path):
                table.log().get_latest_moment()

    def test_a_commit_that_is_not_json(self, table):
        table.commit()
        (table.path / format_commit_name(2)).write_text("oh no\n")
        with raises_naming(SourceError, 2, "JSONDecodeError"):
            table.log().get_moment(2)

    @pytest.mark.parametrize("hint", [1, 2, 3, 9])
    def test_a_hint_that_names_a_missing_checkpoint(self, table, log, hint):
        table.add("a", "b", "c")
        (table.path / HINT).write_text(json.dumps({"version": hint, "size": 3}))
        assert (log.get_latest_moment().version, log.get_facts().version) == (3, 3)
        assert log.list_tenants() == ["a", "b", "c"]
        assert [table.log().list_tenants(version) for version in (1, 2)] == [["a"], ["a", "b"]]

    def test_such_a_hint_in_a_log_without_its_first_commit(self, table):
        table.add("a", "b")
        DeltaTable(table.path).create_checkpoint()
        table.forget(0)
        next((table.path / "_delta_log").glob("*.checkpoint.parquet")).unlink()
        with raises_naming(SourceError, table.path, HINT, "checkpoint 2"):
            table.log().list_tenants()

    def test_a_store_that_fails_past_such_a_hint_is_asked_again(self, table, monkeypatch):
        table.add("a", "b", "c")
        (table.path / HINT).write_text('{"version": 2, "size": 3}')
        open_delta_table = opening._open_delta_table

        def fail_past_hint(location, options, version):
            if version != 1:
                return open_delta_table(location, options, version)
            raise OSError("Service Unavailable")

        monkeypatch.setattr(opening, "_open_delta_table", fail_past_hint)
        with raises_naming(UnavailableError, table.path, "Service Unavailable"):
            table.log().get_facts()

    def test_a_log_with_nothing_but_a_checkpoint(self, table, log):
        table.add("a")
        DeltaTable(table.path).create_checkpoint()
        table.forget(0, 1)
        assert log.get_latest_moment().version == 1
        assert log.list_tenants() == ["a"]
        assert log.list_changed_tenants(0, 1) is None


class TestChangedTenants:
    @pytest.mark.parametrize(
        ("actions", "changed"),
        [
            ([file("add", "a"), file("remove", "b")], {"a", "b"}),
            ([file("add", "a", change=False), file("remove", "a", change=False)], set()),
            ([file("add", "a"), file("add", "b"), file("cdc", "a", change=False)], {"a"}),
            ([], set()),
            ([{"txn": {"appId": "x", "version": 1}}], set()),
            ([file("add", "a/b %é\n'`")], {"a/b %é\n'`"}),
            ([{"remove": {"path": "x", "dataChange": True}}], None),
        ],
    )
    def test_the_tenants_that_a_commit_changes(self, table, actions, changed):
        table.commit(*actions)
        assert table.log().list_changed_tenants(0, 1) == changed

    def test_ranges_are_open_to_the_left_and_each_commit_is_read_once(self, table, log):
        table.add("a", "b", "c")
        assert log.list_changed_tenants(-1, 3) == {"a", "b", "c"}
        assert log.list_changed_tenants(1, 2) == {"b"}
        assert log.list_changed_tenants(3, 3) == set()
        (table.path / format_commit_name(2)).write_text("")
        assert log.list_changed_tenants(1, 2) == {"b"}

    @pytest.mark.parametrize("column", ["k", None])
    def test_partition_values_from_before_the_table_was_partitioned_by_tenant_tell_nothing(
        self, tmp_path, column
    ):
        table = Table(tmp_path).create(partition=("k",) if column else ())
        table.commit(file("add", "1", column=column, path="old.parquet"))
        removed = file("remove", "1", column=column, path="old.parquet")
        table.commit(table.metadata(), removed, file("add", "a"))
        table.add("b")
        log = table.log()
        for after in (0, 1):
            assert log.list_changed_tenants(after, 3) is None
            assert log.list_feed_files(after, 3, {"a"}) is None
            assert not log.has_only_adds(after, 3, {"a"})
        assert log.list_changed_tenants(2, 3) == {"b"}

    @pytest.mark.parametrize(
        ("before", "after"), [(("tenant",), ("tenant", "k")), (("tenant", "k"), ("tenant",))]
    )
    def test_files_in_other_partitions_than_the_table_has_now_are_left_to_spark(
        self, tmp_path, before, after
    ):
        table = Table(tmp_path).create(partition=before)
        values = dict.fromkeys(before, "1")
        table.commit(file("add", "1", partitionValues=values, path="old.parquet"))
        removed = file("remove", "1", partitionValues=values, path="old.parquet")
        table.commit(table.metadata(partition=after), removed)
        assert len(table.log().list_feed_files(0, 1, {"1"})) == 1
        assert table.log().list_feed_files(0, 2, {"1"}) is None

    def test_a_log_that_lost_commits_cannot_tell_their_tenants(self, table, log):
        table.add("a", "b")
        log.poll()
        log.get_facts()
        table.forget(1)
        assert log.list_changed_tenants(0, 2) is None
        assert log.list_changed_tenants(1, 2) == {"b"}

    def test_without_a_tenant_column(self, tmp_path):
        table = Table(tmp_path).create(partition=())
        table.commit(file("add", None, column=None)).commit(info={"operation": "OPTIMIZE"})
        log = table.log(None)
        assert log.list_changed_tenants(0, 1) == {"default"}
        assert log.list_changed_tenants(1, 2) == set()
        assert log.list_tenants() == ["default"]
        assert log.get_tenant_sizes()["default"].bytes == 10

    def test_with_column_mapping(self, tmp_path):
        tenant, key = map_column(TENANT, "col-1"), map_column(KEY, "col-2")
        for number, column in enumerate((tenant, key), start=1):
            column["metadata"]["delta.columnMapping.id"] = number
        options = {"properties": FEED | {"delta.columnMapping.mode": "name"}}
        table = Table(tmp_path).create((tenant, key), features=["columnMapping"], **options)
        table.commit(file("add", "a", column="col-1"))
        assert table.log().list_changed_tenants(0, 1) == {"a"}
        assert table.log().list_tenants() == ["a"]

    @pytest.mark.parametrize(("null", "column"), [(None, "tenant"), ("", "tenant"), (None, None)])
    def test_rows_without_a_tenant_concern_no_tenant(self, table, log, null, column):
        """Spark omits null values from the entry of a removed file."""
        table.commit(file("add", "a"), file("add", null, path="orphan.parquet"))
        assert (log.list_changed_tenants(0, 1), log.list_tenants()) == ({"a"}, ["a"])
        assert log.has_unnamed_changes(0, 1)
        assert log.get_unnamed_size().files == 1
        table.add("b")
        assert not log.has_unnamed_changes(1, 2)
        table.commit(file("remove", null, column=column, path="orphan.parquet"))
        assert log.list_changed_tenants(2, 3) == set()
        assert log.has_unnamed_changes(2, 3)
        assert log.list_feed_files(2, 3, {"a"}) == []
        assert log.list_opened_files(3) == [(null, "orphan.parquet")]
        assert log.get_unnamed_size() is None
        # The removed rows had no tenant either.
        assert log.has_only_adds(2, 3, {"a"})
        assert log.list_tenants() == ["a", "b"]

    def test_rows_without_a_count_are_taken_for_eight_bytes_each(self, table):
        changed = {"cdc": file("add", "a", size=8_000)["add"]}
        table.commit(changed, file("add", "a", size=4), file("remove", "a", size=80))
        table.commit(file("remove", "a", size=800), file("remove", "a", stats='{"numRecords" : 7}'))
        assert table.log().list_written_volumes(0, 2, {"a"}) == [(1, (8_000, 1_000)), (2, (0, 107))]

    def test_the_sizes_of_tenants_and_changes(self, table, log):
        table.commit(file("add", "a", size=5, stats='{"numRecords":3}'), file("add", "b", size=7))
        table.commit(file("remove", "b"), file("add", "a", size=1, stats='{"numRecords":1}'))
        assert log.get_bytes_written(0, 2) == {"a": 6, "b": 7}
        # The rows of b are estimated from its bytes; removed rows count as read, too.
        assert log.list_written_volumes(0, 2, {"a"}) == [(1, (5, 3)), (2, (1, 1))]
        assert log.list_written_volumes(0, 2, {"b"}) == [(1, (7, 0)), (2, (0, 1))]
        sizes = log.get_tenant_sizes(1)
        assert (sizes["a"].rows, sizes["a"].bytes, sizes["b"].rows) == (3, 5, None)
        assert log.get_tenant_sizes()["a"].files == 2


class TestMoment:
    def test_a_moment_is_in_the_commit_else_that_of_its_file_in_milliseconds_that_grow(self, table):
        table.commit().commit().commit().commit(info={"inCommitTimestamp": 1_700_000_000_999})
        for version, second in enumerate([100.123456, 100, 90, 200]):
            table.at(version, second)
        log = table.log()
        micros = [log.get_moment(version).micros for version in range(5)]
        assert micros[:4] == [100_123_000, 100_124_000, 100_125_000, 200_000_000]
        assert micros[4] == 1_700_000_000_999_000

    def test_a_commit_that_is_no_longer_there(self, table):
        table.commit()
        table.forget(0)
        with raises_naming(FeedGoneError, "Commit 0", table.path, 1):
            table.log().get_moment(0)


def assert_snapshot(table, after, upto, *names):
    """The range must be read as a snapshot, for a reason that names these."""
    plan = plan_read(table.log(), after, upto)
    assert plan.kind is ReadKind.SNAPSHOT
    assert_names(plan.reason, *names)


class TestFeed:
    def test_a_whole_range(self, table):
        (table.path / "a file").touch()
        table.commit(file("add", "a", path="a%20file"))
        assert plan_read(table.log(), 0, 1).kind is ReadKind.TAIL
        assert get_feed_state(table.log(), 1, 1) == FeedState(available=True)

    def test_a_log_has_a_commit_only_with_its_time(self, table, log):
        table.commit().commit()
        one, last = log.get_moment(1), log.get_moment(2)
        assert all(map(log.has_moment, (START, log.get_moment(0), one, last)))
        assert not log.has_moment(replace(one, micros=one.micros + 1))
        assert not log.has_moment(Moment(3, last.micros))
        another = table.log()
        another.get_latest_moment()
        table.forget(1)
        # A commit that was cleaned up may have been the same.
        assert another.has_moment(replace(one, micros=1))

    def test_the_first_range_and_one_that_went_back_or_lacks_a_commit_are_snapshots(self, table):
        assert_snapshot(table, -1, 0, "first")
        assert_snapshot(table, 5, 0, "back", 5, 0)
        table.commit().commit().commit()
        table.forget(2)
        assert_snapshot(table, 0, 3, "commit 2")

    def test_a_feed_that_was_off_in_the_range(self, table):
        table.commit(table.metadata(properties={}))
        table.add("a")
        table.commit(table.metadata())
        table.commit()
        assert_snapshot(table, 0, 2, "off", 1)
        assert_snapshot(table, 1, 4, "off", 2)
        assert_snapshot(table, 1, 2, "off", 2)
        assert plan_read(table.log(), 3, 4).kind is ReadKind.TAIL
        assert plan_read(table.log(), 2, 4).kind is ReadKind.TAIL

    @pytest.mark.parametrize(
        ("fields", "culprits"),
        [
            ([TENANT, KEY, nest("one"), NUMBER], None),
            ([TENANT, {**KEY, "nullable": False}, nest("another")], None),
            ([TENANT, {**KEY, "type": "string"}, nest("one")], ("'k'", "long", "string", 2)),
            ([TENANT, map_column(KEY | {"name": "j"}, "k"), nest("one")], ("'k'", "'j'", 2)),
        ],
    )
    def test_columns_that_are_renamed_or_retyped_break_a_range(self, table, fields, culprits):
        table.commit(table.metadata([TENANT, KEY, nest("one")]))
        table.commit(table.metadata(fields)).commit()
        if culprits is None:
            assert plan_read(table.log(), 1, 3).kind is ReadKind.TAIL
        else:
            assert_snapshot(table, 1, 3, *culprits)
        assert plan_read(table.log(), 2, 3).kind is ReadKind.TAIL

    def test_other_partition_columns_break_a_range(self, tmp_path):
        """Its feed lacks the values of earlier files, for Spark and for any other reader."""
        path, rows = str(tmp_path / "t"), pa.table({"tenant": ["a"], "k": [1], "day": ["d"]})
        write_deltalake(path, rows, partition_by=["tenant"], configuration=FEED)
        write_deltalake(path, rows, mode="append")
        anew = {"mode": "overwrite", "schema_mode": "overwrite"}
        write_deltalake(path, rows, partition_by=["tenant", "day"], **anew)
        write_deltalake(path, rows, mode="append")
        log = DeltaLog(path, "tenant")
        plans = [plan_read(log, after, 3) for after in range(3)]
        kinds = [ReadKind.SNAPSHOT, ReadKind.SNAPSHOT, ReadKind.TAIL]
        assert [plan.kind for plan in plans] == kinds
        assert_names(plans[0].reason, "partitioned", 2)

    def test_properties_and_comments_are_no_change_of_columns(self, table, log):
        on = {"delta.enableInCommitTimestamps": "true", "delta.appendOnly": "false"}
        table.commit(table.metadata(properties=FEED | on)).add("a")
        table.commit(table.metadata([TENANT, KEY | {"metadata": {}}], properties={}))
        assert table.log().find_first_column_change(0, 3) is None
        table.commit(table.metadata([TENANT, KEY, NUMBER])).commit(table.metadata([TENANT, KEY]))
        changes = [log.find_first_column_change(after, 5) for after in range(6)]
        assert changes == [4, 4, 4, 4, 5, None]

    def test_columns_may_have_changed_where_the_log_has_lost_earlier_ones(self, table):
        table.commit().commit(table.metadata()).commit()
        logs = table.log(), table.log()
        assert [log.get_facts().version for log in logs] == [3, 3]
        table.forget(0)
        state = get_feed_state(logs[0], 1, 3)
        assert not state.available
        assert_names(state.reason, "describes", 1)
        table.forget(1)
        assert [logs[1].find_first_column_change(after, 3) for after in range(3)] == [1, 2, None]

    def test_a_dropped_column_breaks_a_range_but_at_its_start(self, table):
        table.commit().commit(table.metadata([TENANT])).commit()
        assert_snapshot(table, 0, 3, "'k'", "dropped", 2)
        assert plan_read(table.log(), 1, 3).kind is ReadKind.TAIL
        drops = [ChangeFeed(log=table.log()).find_first_drop(after, 3) for after in range(3)]
        assert drops == [2, 2, None]

    def test_a_commit_that_drops_a_column_and_does_more_is_no_start(self, table):
        table.commit(table.metadata([TENANT]), file("add", "a")).commit()
        assert_snapshot(table, 0, 2, "'k'", "dropped", 1)
        table.commit(table.metadata([NUMBER])).commit()
        assert_snapshot(table, 2, 4, "'tenant'", "dropped", 3)
        assert ChangeFeed(log=table.log()).find_first_drop(0, 4) is None

    def test_vacuum_may_have_removed_files_of_other_tenants_only(self, table, log):
        table.commit(file("add", "a", path="tenant=a/gone.parquet"))
        assert_snapshot(table, 0, 1, "VACUUM", "1 to 1")
        assert plan_read(log, 0, 1, {"b"}).kind is ReadKind.TAIL
        assert plan_read(log, 0, 1, {"a", "b"}).kind is ReadKind.SNAPSHOT
        table.commit(file("add", None, path="nobodys.parquet"))
        assert plan_read(table.log(), 1, 2, {"b"}).kind is ReadKind.SNAPSHOT

    @settings(max_examples=30)
    @given(st.data())
    def test_a_feed_answers_for_many_ranges_as_for_one(self, data):
        with TemporaryDirectory() as folder:
            table = Table(Path(folder)).create()
            owners = st.sampled_from(["a", "b", None])
            for number in range(data.draw(st.integers(1, 3))):
                additions = data.draw(st.lists(st.tuples(owners, st.booleans()), max_size=3))
                names = [f"{number}-{at}.parquet" for at in range(len(additions))]
                for name, (_, exists) in zip(names, additions, strict=True):
                    if exists:
                        (table.path / name).touch()
                pairs = zip(names, additions, strict=True)
                table.commit(*(file("add", owner, path=name) for name, (owner, _) in pairs))
            feed = ChangeFeed(log=table.log())
            ranges = combinations(range(table.version + 1), 2)
            questions = [*product(ranges, ({"a"}, {"b"}, {"a", "b"}, None))]
            for (after, upto), tenants in data.draw(st.permutations(questions)):
                state = get_feed_state(table.log(), after, upto, tenants)
                assert feed.get_state(after, upto, tenants) == state

    def test_a_deletion_vector_that_vacuum_removed(self, table):
        (table.path / "x.parquet").touch()
        common = {"sizeInBytes": 40, "cardinality": 1}
        vector = {"storageType": "u", "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^", **common}
        inline = {"storageType": "i", "pathOrInlineDv": "wi5b=000010000siXQKl0rr91000f55c8Xg0"}
        inline |= common
        table.commit(file("add", "a", path="x.parquet", deletionVector=inline))
        table.commit(file("add", "a", path="x.parquet", deletionVector=vector))
        assert plan_read(table.log(), 0, 1).kind is ReadKind.TAIL
        assert_snapshot(table, 0, 2, "VACUUM")
        path = table.path / "ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"
        path.parent.mkdir()
        path.touch()
        assert plan_read(table.log(), 0, 2).kind is ReadKind.TAIL


class TestChecks:
    def test_the_table_is_opened_once_for_versions_of_the_same_columns(self, tmp_path, monkeypatch):
        path = str(tmp_path / "t")
        for value in (pa.array([1]), pa.array([2])):
            write_deltalake(path, pa.table({"tenant": ["a"], "v": value}), mode="append")
        more = pa.table({"tenant": ["a"], "v": [3], "w": [4]})
        write_deltalake(path, more, mode="append", schema_mode="merge")
        for number in (5, 6):
            rows = pa.table({"tenant": ["a"], "v": [number], "w": [number]})
            write_deltalake(path, rows, mode="append")
        versions = []
        read_facts = SnapshotReader.read_facts

        def record(self, version):
            versions.append(version)
            return read_facts(self, version)

        monkeypatch.setattr(SnapshotReader, "read_facts", record)
        log = DeltaLog(path)
        for version in (4, 3, 2, 1, 0):
            facts = log.get_facts(version)
            assert facts == read_facts(SnapshotReader(path), version)
            assert len(facts.fields) == (3 if version >= 2 else 2)
        assert versions == [4, 1], "versions 2 to 4 are alike, and 1 and 0"

    def test_facts_of_good_tables(self, tmp_path):
        variants = Table(tmp_path / "variants").create(features=["variantType"])
        facts = check_source(variants.log(), keys=["k"], columns=["k"])
        assert facts.metadata.table_id == variants.id
        assert facts.reader_features == {"variantType"}
        names_and_comments = [(each.name, each.comment) for each in facts.fields]
        assert names_and_comments == [("tenant", ""), ("k", "the key")]
        collated = Table(tmp_path / "collated").create([TENANT, COLLATED]).log()
        assert check_source(collated, keys=[]).fields[1].collation == "spark.UTF8_LCASE"

    @pytest.mark.parametrize(
        ("options", "error", "culprits"),
        [
            ({"fields": [TENANT, COLLATED]}, KeyColumnError, ("'k'", "spark.UTF8_LCASE")),
            ({"partition": ["k"]}, SourceError, ("'tenant'", "tenant='k'")),
            ({"fields": [KEY, NUMBER], "partition": []}, SourceError, ("'tenant'", "k, n")),
            ({"fields": [DOUBLE, KEY]}, SourceError, ("'tenant'", "double")),
            ({"fields": [CHAR, KEY]}, SourceError, ("'tenant'", "CHAR", "VARCHAR")),
            ({"features": ["ofTheFuture"]}, SourceError, ("ofTheFuture",)),
            ({"features": ["catalogManaged"]}, SourceError, ("DROP FEATURE catalogManaged",)),
            ({"properties": {}}, SourceError, REMEDY),
        ],
    )
    def test_a_table_that_cannot_be_followed(self, tmp_path, options, error, culprits):
        log = Table(tmp_path).create(**options).log()
        with raises_naming(error, tmp_path, *culprits):
            check_source(log, keys=["k"])

    @pytest.mark.parametrize(
        ("names", "error"),
        [({"keys": ["id"]}, KeyColumnError), ({"keys": ["k"], "columns": ["id"]}, SchemaError)],
    )
    def test_a_column_that_the_table_lacks(self, table, names, error):
        with raises_naming(error, "'id'", "tenant, k"):
            check_source(table.log(), **names)

    def test_a_feature_that_comes_later(self, table, log):
        check_source(log, keys=["k"])
        features = {"readerFeatures": ["ofTheFuture"], "writerFeatures": ["ofTheFuture"]}
        table.commit({"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}})
        with raises_naming(SourceError, "ofTheFuture"):
            check_source(log, keys=["k"])

    @pytest.mark.parametrize("name", ["_version", "_Deleted", "_commit_version", "_repeats"])
    def test_a_column_with_the_name_of_a_system_column(self, tmp_path, name):
        table = Table(tmp_path).create([TENANT, KEY, NUMBER | {"name": name}])
        with raises_naming(SchemaError, repr(name), "_timestamp"):
            check_source(table.log(), keys=["k"])
        check_source(table.log(), keys=["k"], columns=["k"])


class TestFiles:
    @pytest.mark.parametrize("kind", [LocalFiles, ObjectFiles])
    def test_the_same_answers_from_a_folder_and_a_store(self, table, kind):
        files = kind(str(table.path) if kind is LocalFiles else table.path.as_uri())
        name = format_commit_name(0)
        assert files.read(name) == (table.path / name).read_bytes()
        assert files.list_names() == [Path(name).name]
        micros = (table.path / name).stat().st_mtime_ns // 1000
        assert files.read_mark(name).mtime_ns // 1000 == micros
        assert files.read_mark(format_commit_name(1)) is None
        assert files.read(format_commit_name(1)) is None
        assert files.find_missing([]) is None
        shutil.rmtree(table.path / "_delta_log")
        table.path.joinpath("_delta_log").mkdir()
        assert files.list_names() == []

    @pytest.mark.parametrize("refused", ["_delta_log", format_commit_name(1)])
    def test_a_log_that_the_system_refuses_is_tried_again(self, tmp_path, refused):
        if refused != "_delta_log":
            Table(tmp_path).create()
        (tmp_path / refused).symlink_to(Path(refused).name)
        log = DeltaLog(str(tmp_path), "tenant")
        with raises_naming(UnavailableError, tmp_path) as error:
            log.poll(log.poll())
        assert not error.value.permanent

    def test_a_data_file_that_the_system_refuses_is_not_missing(self, tmp_path):
        Path(tmp_path, "loop.parquet").symlink_to("loop.parquet")
        files = LocalFiles(str(tmp_path))
        with raises_naming(UnavailableError, tmp_path):
            files.find_missing(["loop.parquet"])
        assert files.find_missing(["gone.parquet"]) == "gone.parquet"

    def test_every_request_to_a_store_that_does_not_answer_is_tried_again(self, monkeypatch):
        name_dead_store(monkeypatch)
        files = open_log_files("s3://bucket/table?sig=SECRET")
        name = format_commit_name(0)
        for request in (
            files.list_names,
            lambda: files.read_mark(name),
            lambda: files.read(name),
            lambda: SnapshotReader("s3://bucket/table").read_facts(),
        ):
            refused = raises_naming(UnavailableError, "s3://bucket/table", "Connection refused")
            with refused as error:
                request()
            assert not error.value.permanent
            assert "SECRET" not in str(error.value)
            # The message must not change between looks, so that it is reported only once.
            assert "retries" not in str(error.value)

    @pytest.mark.parametrize(
        "read", [ObjectFiles.list_names, lambda files: files.read(format_commit_name(0))]
    )
    def test_a_store_that_hangs_holds_up_no_other_thread(self, monkeypatch, read):
        """One of those threads renews a run's lease."""
        beats, over = [], threading.Event()

        def beat():
            while not over.wait(0.01):
                beats.append(time.monotonic())

        with socket.create_server(("127.0.0.1", 0)) as silent:
            name_dead_store(monkeypatch)
            monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
            patience = {"timeout": "2s", "retry_timeout": "1s", "max_retries": "0"}
            heart = threading.Thread(target=beat)
            started = time.monotonic()
            heart.start()
            try:
                with raises_naming(UnavailableError, "s3://bucket/table", "timed out"):
                    read(ObjectFiles("s3://bucket/table", patience))
            finally:
                ended = time.monotonic()
                over.set()
                heart.join()
        silences = (after - before for before, after in pairwise([started, *beats, ended]))
        assert max(silences) < (ended - started) / 2

    def test_a_url_that_no_store_has_is_wrong(self):
        with raises_naming(SourceError, "foo://bucket/table", "scheme"):
            DeltaLog("foo://bucket/table").poll()

    @pytest.mark.parametrize(
        ("location", "local_path", "spark_path"),
        [
            ("/a/b c", "/a/b c", "/a/b c"),
            ("file:///a/b%20c%23d", "/a/b c#d", "file:///a/b c#d"),
            ("file:/a/b", "/a/b", "file:///a/b"),
            ("s3://bucket/a", None, "s3://bucket/a"),
        ],
    )
    def test_which_tables_are_local_and_how_spark_writes_a_path(
        self, location, local_path, spark_path
    ):
        assert to_local_path(location) == local_path
        assert isinstance(open_log_files(location), LocalFiles if local_path else ObjectFiles)
        assert to_spark_path(location) == spark_path

    def test_a_path_that_deltalake_cannot_open(self, tmp_path):
        table = Table(tmp_path / "per%41cent").create()
        with raises_naming(SourceError, table.path, "escape"):
            table.log().get_table_id()
        with raises_naming(SourceError, "s3://bucket/per%20cent", "escape", "Spark"):
            to_table_url("s3://bucket/per%20cent")
