"""Reading real Delta tables through a real Spark Connect server, against a model of the table."""

from __future__ import annotations

import pickle
import random
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path

import pyarrow as pa
import pytest

from iscp_dagster.delta.feed import plan_read
from iscp_dagster.delta.feedscan import plan_feed
from iscp_dagster.delta.filescan import TenantFilter, plan_tasks
from iscp_dagster.delta.log.commits import format_commit_name
from iscp_dagster.delta.log.deltalog import DeltaLog
from iscp_dagster.delta.read_plans import ReadKind
from iscp_dagster.delta.reader import TableSelection, read_changes, read_snapshot
from iscp_dagster.delta.spark_errors import wrap_spark_errors
from iscp_dagster.model.declared.schema import Primitive
from iscp_dagster.model.errors import (
    ConfigError,
    FeedGoneError,
    ReadError,
    SchemaError,
    SourceError,
    UnavailableError,
)
from iscp_dagster.model.moment import Moment
from support.errors import assert_names, raises_naming
from support.lake.golden_histories import WRITER_SETTINGS, Kept, Written, to_be_written
from support.spark.fake_spark import run_sql

FEED = {"delta.enableChangeDataFeed": "true"}
DELETION_VECTORS = FEED | {"delta.enableDeletionVectors": "true"}
MAPPED = FEED | {"delta.columnMapping.mode": "name"}
TIMESTAMPS = FEED | {"delta.enableInCommitTimestamps": "true"}
COLUMNS = "tenant STRING, k BIGINT, v STRING"
TENANTS = ("a", "b c", "d/e%20é'\"", "名\\n")


@pytest.fixture(scope="module")
def spark(spark_remote):
    from pyspark.sql.connect.session import SparkSession

    session = SparkSession.builder.remote(spark_remote).create()
    for name, value in (WRITER_SETTINGS | {"spark.sql.session.timeZone": "Asia/Kolkata"}).items():
        session.conf.set(name, value)
    yield session
    session.stop()


@dataclass
class Table:
    """A Delta table `(tenant, k, v)` that is changed by SQL.

    A table without Delta's newer features is written by delta-rs, any other was by Spark, once.
    """

    spark: object
    path: str
    kept: object
    keys: tuple = ("k",)
    tenant_column: str | None = "tenant"
    by_spark: bool = False

    def create(self, properties=FEED, columns=COLUMNS, partition=None, *, by_spark=False):
        self.by_spark = by_spark or properties != FEED
        self.write(self.creation(properties, columns, partition))
        return self

    def creation(self, properties, columns=COLUMNS, partition=None):
        by = self.tenant_column if partition is None else partition
        listed = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
        return (
            f"CREATE TABLE {{t}} ({columns}) USING delta "
            f"{f'PARTITIONED BY ({by})' if by else ''} TBLPROPERTIES ({listed})"
        )

    def sql(self, text):
        return self.spark.sql(self.named(text)).collect()

    def write(self, text):
        """Run a statement that writes."""
        if self.by_spark:
            self.kept.sql(self.named(text))
        else:
            run_sql(self.named(text))

    def named(self, text):
        return text.replace("{t}", f"delta.`{self.path}`")

    def insert(self, *rows):
        self.write(f"INSERT INTO {{t}} {values(*rows)}")

    @property
    def log(self):
        return DeltaLog(self.path, self.tenant_column)

    @property
    def version(self):
        return self.log.get_latest_moment().version

    def selection(self, tenants=None, columns=("k", "v")):
        return TableSelection(
            path=self.path,
            columns=columns,
            keys=self.keys,
            tenant_column=self.tenant_column,
            tenants=None if tenants is None else frozenset(tenants),
        )

    def frame(self, after, upto, tenants=None, **more):
        selection = self.selection(tenants)
        return read_changes(self.spark, selection, Moment(after), Moment(upto), **more)

    def changes(self, after, upto, tenants=None, **more):
        with wrap_spark_errors(self.path):
            return self.frame(after, upto, tenants, **more).collect()

    def snapshot(self, version, tenants=None):
        with wrap_spark_errors(self.path):
            at = self.log.get_moment(version)
            return read_snapshot(self.spark, self.selection(tenants), at).collect()

    def state(self, version, tenants=None):
        return {(row.tenant, row.k): row.v for row in self.snapshot(version, tenants)}


def text(value):
    return "NULL" if value is None else repr(value) if isinstance(value, int) else quoted(value)


def quoted(value):
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def values(*rows):
    return "VALUES " + ", ".join(f"({', '.join(map(text, row))})" for row in rows)


@pytest.fixture
def table(spark, kept_spark, tmp_path):
    return Table(spark, str(tmp_path / "a table"), kept_spark)


def applied(state, rows):
    """Return the rows of an index after it applied the changes."""
    state = dict(state)
    for row in rows:
        if row["_deleted"]:
            state.pop((row["tenant"], row["k"]), None)
        else:
            state[row["tenant"], row["k"]] = row["v"]
    return state


@dataclass
class Model:
    """The table as a dict of (tenant, key) to value, one per version, under the same operations."""

    commit: Callable[[list[str]], int]
    random: random.Random
    states: list = field(default_factory=lambda: [{}])
    log: list = field(default_factory=lambda: ["create"])
    serial: int = 0

    def value(self):
        self.serial += 1
        return f"v{self.serial}"

    def tenant(self):
        return self.random.choice(TENANTS)

    def key(self):
        return self.random.randrange(5)

    def rows(self, count=3, **fixed):
        found = {}
        for _ in range(count):
            key = (fixed.get("tenant", self.tenant()), self.key())
            found[key] = self.value()
        return found

    def run(self, name):
        state, statements = getattr(self, name)(dict(self.states[-1]))
        made = self.commit(statements)
        if made:
            self.states += [dict(self.states[-1])] * (made - 1) + [state]
            self.log += [name] * made
        assert self.states[-1] == state, name

    def source(self, rows):
        return ", ".join(f"({text(t)}, {text(k)}, {text(v)})" for (t, k), v in rows.items())

    def insert(self, state):
        rows = {key: value for key, value in self.rows(4).items() if key not in state}
        if not rows:
            return state, []
        return state | rows, [f"INSERT INTO {{t}} VALUES {self.source(rows)}"]

    def update(self, state):
        key, value = self.key(), self.value()
        new = {each: value if each[1] == key else old for each, old in state.items()}
        return new, [f"UPDATE {{t}} SET v = '{value}' WHERE k = {key}"]

    def delete(self, state):
        tenant, key = self.tenant(), self.key()
        new = {each: v for each, v in state.items() if each[0] != tenant or each[1] < key}
        return new, [f"DELETE FROM {{t}} WHERE tenant = {text(tenant)} AND k >= {key}"]

    def change_keys(self, state):
        tenant = self.tenant()
        new = {(t, k + 5 if t == tenant else k): v for (t, k), v in state.items()}
        new = {(t, k % 10): v for (t, k), v in new.items()}
        return new, [f"UPDATE {{t}} SET k = (k + 5) % 10 WHERE tenant = {text(tenant)}"]

    def swap_tenants(self, state):
        one, other = self.random.sample(TENANTS, 2)
        names = {one: other, other: one}
        new = {(names.get(t, t), k): v for (t, k), v in state.items()}
        case = f"CASE tenant WHEN {text(one)} THEN {text(other)} ELSE {text(one)} END"
        where = f"tenant IN ({text(one)}, {text(other)})"
        return new, [f"UPDATE {{t}} SET tenant = {case} WHERE {where}"]

    def merge(self, state):
        rows, going = self.rows(4), self.key()
        new = {each: v for each, v in state.items() if each in rows or each[1] != going}
        return new | rows, [
            f"""MERGE INTO {{t}} AS old USING (SELECT * FROM VALUES {self.source(rows)}
            AS new(tenant, k, v)) AS new ON old.tenant = new.tenant AND old.k = new.k
            WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *
            WHEN NOT MATCHED BY SOURCE AND old.k = {going} THEN DELETE"""
        ]

    def merge_replacing(self, state):
        """A delete and an insert of one key in one commit."""
        if not state:
            return state, []
        (tenant, key), value = self.random.choice(sorted(state)), self.value()
        return state | {(tenant, key): value}, [
            f"""MERGE INTO {{t}} AS old USING (SELECT * FROM VALUES
            ({text(tenant)}, {key}, 'gone', 'match'), ({text(tenant)}, {key}, '{value}', 'never')
            AS new(tenant, k, v, how)) AS new
            ON old.tenant = new.tenant AND old.k = new.k AND new.how = 'match'
            WHEN MATCHED THEN DELETE
            WHEN NOT MATCHED THEN INSERT (tenant, k, v) VALUES (new.tenant, new.k, new.v)"""
        ]

    def overwrite(self, state):
        rows = self.rows(5)
        return rows, [f"INSERT OVERWRITE {{t}} VALUES {self.source(rows)}"]

    def overwrite_partitions(self, state):
        tenant = self.tenant()
        rows = self.rows(2, tenant=tenant)
        kept = {each: value for each, value in state.items() if each[0] != tenant}
        return kept | rows, [
            "SET spark.sql.sources.partitionOverwriteMode = dynamic",
            f"INSERT OVERWRITE {{t}} VALUES {self.source(rows)}",
            "SET spark.sql.sources.partitionOverwriteMode = static",
        ]

    def restore(self, state):
        version = self.random.randrange(1, len(self.states)) if len(self.states) > 1 else 0
        return self.states[version], [f"RESTORE TABLE {{t}} TO VERSION AS OF {version}"]

    def optimize(self, state):
        return state, ["OPTIMIZE {t}"]

    def truncate(self, state):
        return {}, ["TRUNCATE TABLE {t}"]


ROUND = [
    *("insert", "update", "merge", "delete", "change_keys", "optimize"),
    *("overwrite_partitions", "swap_tenants", "merge_replacing", "restore", "overwrite", "insert"),
    *("delete", "merge", "truncate", "insert"),
]


@pytest.mark.parametrize(
    ("seed", "properties"),
    [
        (1, FEED),
        (3, DELETION_VECTORS | TIMESTAMPS | MAPPED | {"delta.checkpointInterval": "4"}),
    ],
    ids=["plain", "every feature"],
)
def test_changes_lead_from_each_version_to_each_later_one(table, seed, properties, request):
    chance = random.Random(seed)
    model = written(table, request.node.callspec.id, seed, properties, chance)
    log, last = table.log, table.version
    read_by_arrow = 0
    for version in range(1, last + 1):
        direct = by_arrow(table, version - 1, version, set(TENANTS))
        if direct is not None:
            read_by_arrow += 1
            assert applied(model.states[version - 1], direct) == model.states[version]
        touched = {t for t, _ in differing(model.states[version - 1], model.states[version])}
        assert touched <= log.list_changed_tenants(version - 1, version), model.log[version]
        if model.log[version] == "optimize":
            assert log.list_changed_tenants(version - 1, version) == set()
    pairs = [*chance.sample(list(combinations(range(last + 1), 2)), 1), (0, last)]
    for number, (after, upto) in enumerate(pairs):
        assert plan_read(log, after, upto).kind is ReadKind.TAIL
        found = table.changes(after, upto)
        where = (after, upto, model.log[after + 1 : upto + 1])
        assert applied(model.states[after], found) == model.states[upto], where
        assert not any(row["_repeats"] for row in found), where
        assert len({(row.tenant, row.k) for row in found}) == len(found), where
        assert {row["_timestamp"] for row in found} <= {
            log.get_moment(version).micros for version in range(after + 1, upto + 1)
        }
        some = set(chance.sample(TENANTS, 1 + number % 2))
        for tenants in (set(TENANTS), some):
            direct = by_arrow(table, after, upto, tenants)
            wanted = [row.asDict() for row in found if row.tenant in tenants]
            assert direct is None or direct == wanted, where
            assert direct is not None or properties != FEED, where
        if not number:
            part = table.changes(after, upto, some)
            assert sorted(part) == sorted(row for row in found if row.tenant in some), where
    assert read_by_arrow > last // 3
    assert table.state(last // 2) == model.states[last // 2]
    for version in range(1, last + 1):
        held = {(row["tenant"], row["k"]): row["v"] for row in held_by_arrow(table, version)}
        assert held == model.states[version], model.log[version]
    assert sorted(log.list_tenants()) == sorted({tenant for tenant, _ in model.states[-1]})


def written(table, name, seed, properties, chance):
    """Return the model of a table that Spark wrote once."""
    if to_be_written():
        history = Written(table.sql, Path(table.path))
    else:
        history = Kept(name, Path(table.path))
    model = Model(history.commit, chance)
    history.commit([table.creation(properties)])
    for step in list(ROUND) if seed == 1 else ["insert", *chance.sample(ROUND, len(ROUND))]:
        model.run(step)
    if to_be_written():
        history.keep(name)
    return model


def held_by_arrow(table, version):
    """Return the snapshot as tasks read it themselves."""
    log, columns = table.log, ("tenant", "k", "v")
    files = log.list_data_files(version, set(TENANTS))
    scan = plan_tasks(log.location, log.get_facts(version), files, columns, 2)
    numbers = [pa.record_batch({"id": [number]}) for number in range(len(scan.tasks))]
    return [row for batch in scan.read_batches(numbers) for row in batch.to_pylist()]


def by_arrow(table, after, upto, tenants):
    """Return the changes as one task reads them itself; None where it leaves them to Spark."""
    log, selection = table.log, table.selection(tenants)
    files = log.list_feed_files(after, upto, tenants)
    scan = None
    if files is not None:
        scan = plan_feed(
            log.location,
            log.get_facts(upto),
            [(log.get_moment(version), file) for version, file in files],
            output=selection.output,
            identity=selection.identity if selection.keys else selection.ordering,
            tenant_filter=TenantFilter(column="tenant", tenants=frozenset(tenants)),
            keyed=bool(selection.keys),
        )
    if scan is None:
        return None
    number = pa.record_batch({"id": [0]})
    return [
        row
        for batch in pickle.loads(pickle.dumps(scan)).read_batches([number])
        for row in batch.to_pylist()
    ]


def differing(one, other):
    return {each for each in one.keys() | other.keys() if one.get(each) != other.get(each)}


class TestRows:
    def test_system_columns_beside_the_row(self, table):
        table.create(TIMESTAMPS)
        table.insert(("a", 1, "x"), ("a", 2, "x"))
        table.write("DELETE FROM {t} WHERE k = 2")
        log = table.log
        first, second = log.get_moment(1), log.get_moment(2)
        kept, gone = sorted(table.changes(0, 2), key=lambda row: row["k"])
        written = {"tenant": "a", "k": 1, "v": "x"}
        system = {"_version": 1, "_timestamp": first.micros, "_deleted": False}
        marks = {"_repeats": False, "_fresh": True}
        assert kept.asDict() == written | system | marks
        system |= {"_version": 2, "_timestamp": second.micros}
        assert gone.asDict() == written | {"k": 2} | system | marks | {"_deleted": True}
        (row,) = table.snapshot(2)
        assert row.asDict() == written | system
        # A writer can rely on the types.
        assert [
            (each.name, each.dataType.simpleString()) for each in table.frame(0, 2).schema.fields
        ][-5:] == [
            *[("_version", "bigint"), ("_timestamp", "bigint")],
            *[("_deleted", "boolean"), ("_repeats", "boolean"), ("_fresh", "boolean")],
        ]
        assert table.changes(0, 2, set()) == table.snapshot(2, set()) == []
        with raises_naming(ConfigError, "(1, 1]"):
            table.frame(1, 1)
        with raises_naming(SchemaError, "'_Version'"):
            table.selection(columns=("k", "_Version"))

    def test_without_a_tenant_column(self, table):
        table.tenant_column = None
        table.create(columns="k BIGINT, v STRING")
        table.insert((1, "x"), (2, "y"))
        table.write("UPDATE {t} SET v = 'z' WHERE k = 2")
        rows = table.changes(0, 2, {"default"})
        assert sorted((row.k, row.v) for row in rows) == [(1, "x"), (2, "z")]
        assert table.changes(0, 2, {"other"}) == []
        assert len(table.snapshot(2, {"default"})) == 2

    def test_a_tenant_column_of_another_type(self, table, spark):
        table.create(columns="tenant INT, k BIGINT, v STRING")
        table.insert((1, 1, "x"), (10, 1, "y"))
        log = table.log
        selection = TableSelection(
            path=table.path,
            columns=("v",),
            keys=("k",),
            tenant_column="tenant",
            types={"tenant": Primitive("integer")},
            tenants=frozenset(log.list_tenants()[:1]),
        )
        assert log.list_changed_tenants(0, 1) == {"1", "10"}
        frame = read_changes(spark, selection, log.get_moment(0), log.get_moment(1))
        assert [row.v for row in frame.collect()] == ["x"]
        assert [row.v for row in read_snapshot(spark, selection, log.get_moment(1)).collect()] == [
            "x"
        ]

    def test_rows_without_a_tenant_are_left_out(self, table):
        table.create(by_spark=True)
        table.insert(("a", 1, "x"), ("", 2, "x"), (None, 3, "x"))
        assert [row.k for row in table.changes(0, 1)] == [1]
        assert [row.k for row in table.snapshot(1)] == [1]
        assert table.log.list_changed_tenants(0, 1) == {"a"}
        assert table.log.get_unnamed_size().rows == 2


class TestPlans:
    def test_partitions_of_other_tenants_are_not_opened(self, table):
        table.create()
        table.insert(("a", 1, "x"), ("b", 1, "x"))
        table.write("UPDATE {t} SET v = 'y'")
        for path in Path(table.path).rglob("*.parquet"):
            if "tenant=b" in str(path):
                path.unlink()
        assert [row.v for row in table.changes(0, 2, {"a"})] == ["y"]
        assert [row.v for row in table.snapshot(2, {"a"})] == ["y"]
        with pytest.raises(FeedGoneError, match="FILE_NOT_EXIST"):
            table.changes(0, 2, {"b"})

    def test_rows_are_in_order_and_a_small_range_is_read_without_a_shuffle(self, table):
        from pyspark.sql.connect.functions import spark_partition_id

        table.create()
        keys = {(f"t{n % 3}", n) for n in range(-50, 300)}
        table.insert(*((*key, "x") for key in keys))
        frame = table.frame(0, 1, partitions=3)
        rows = frame.withColumn("part", spark_partition_id()).collect()
        found = [(row.part, row.tenant, row.k) for row in rows]
        assert found == sorted(found)
        assert {part for part, _, _ in found} == {0, 1, 2}
        assert {(tenant, key) for _, tenant, key in found} == keys
        assert "Exchange" not in table.frame(0, 1)._explain_string("simple")
        assert re.search(r"PushedFilters: \[.*In\(tenant, \[a,b\]\)", pushed(table, {"a", "b"}))
        assert exchanges(table.frame(0, 1, partitions=2)) == 1


def pushed(table, tenants):
    return table.frame(0, 1, tenants)._explain_string("simple")


def exchanges(frame):
    plan = frame._explain_string("simple")
    assert plan.count("Sort [") == 1
    return plan.count("Exchange")


class TestTwins:
    """A key that was inserted while it existed."""

    def marks(self, table, after, upto):
        return {row.k: (row["_repeats"], row["_fresh"]) for row in table.changes(after, upto)}

    def test_in_one_commit_or_in_two_it_repeats_also_once_put_right(self, table):
        table.create()
        table.insert(("a", 1, "x"), ("a", 1, "y"), ("a", 2, "x"))
        table.insert(("a", 2, "y"))
        table.insert(("a", 3, "x"), ("a", 3, "y"))
        table.write("DELETE FROM {t} WHERE v = 'x' AND k = 3")
        assert self.marks(table, 0, 4) == dict.fromkeys((1, 2, 3), (True, True))
        # Without a key every change is a row.
        rows = replace(table, keys=()).changes(0, 2)
        assert sorted((row.k, row.v, row["_deleted"]) for row in rows) == [
            *[(1, "x", False), (1, "y", False), (2, "x", False), (2, "y", False)],
        ]

    def test_fresh_is_what_comes_in_and_was_neither_changed_nor_deleted_before(self, table):
        table.create()
        table.insert(("a", 1, "x"), ("a", 2, "x"), ("a", 3, "x"))
        table.write("UPDATE {t} SET v = 'y' WHERE k = 1")
        table.write("DELETE FROM {t} WHERE k = 2")
        table.insert(("a", 2, "z"), ("a", 4, "x"))
        table.write("UPDATE {t} SET v = 'y' WHERE k = 4")
        table.write("UPDATE {t} SET k = 5 WHERE k = 3")
        assert self.marks(table, 1, 6) == {
            1: (False, False),
            2: (False, False),
            3: (False, False),
            4: (False, True),
            5: (False, True),
        }


class TestFeedGone:
    def gone(self, table, after, upto, reason, condition):
        """Check that the plan predicts it, and that Spark's refusal becomes this error."""
        plan = plan_read(table.log, after, upto)
        assert plan.kind is ReadKind.SNAPSHOT
        assert reason in plan.reason
        with pytest.raises(FeedGoneError, match=condition):
            table.changes(after, upto)
        assert held_by_arrow(table, table.version)

    def test_vacuum_of_deletion_vectors_alone(self, table):
        table.create(DELETION_VECTORS)
        table.write("INSERT INTO {t} SELECT 'a', id, 'x' FROM range(0, 100, 1, 1)")
        for key in (1, 2):
            table.write(f"DELETE FROM {{t}} WHERE k = {key}")
        table.write("VACUUM {t} RETAIN 0 HOURS")
        assert table.log.list_changed_tenants(3, table.version) == set()
        self.gone(table, 1, 3, "VACUUM removed", "this range cannot be read")

    def test_log_cleanup(self, table):
        table.create(FEED | {"delta.checkpointInterval": "2"})
        for key in (1, 2, 3):
            table.insert(("a", key, "x"))
        for version in (0, 1):
            (Path(table.path) / format_commit_name(version)).unlink()
        self.gone(table, 0, 3, "commit 1 is no longer in the log", "DELTA_LOG_FILE_NOT_FOUND")
        assert sorted(row.k for row in table.changes(1, 3)) == [2, 3]
        with raises_naming(FeedGoneError, "Commit 1"):
            table.snapshot(1)

    def test_no_feed(self, table):
        table.create({"delta.enableChangeDataFeed": "false"})
        table.insert(("a", 1, "x"))
        table.write("ALTER TABLE {t} SET TBLPROPERTIES (delta.enableChangeDataFeed = true)")
        table.insert(("a", 2, "x"))
        self.gone(table, 0, 3, "was off at version 1", "DELTA_MISSING_CHANGE_DATA")
        assert plan_read(table.log, 1, 3).kind is ReadKind.TAIL
        assert [row.k for row in table.changes(1, 3)] == [2]

    def test_renamed_and_dropped(self, table):
        table.create(MAPPED, "tenant STRING, k BIGINT, v STRING, w STRING")
        table.insert(("a", 1, "x", "w"))
        mismatch = "INCOMPATIBLE_DATA_SCHEMA"
        table.write("ALTER TABLE {t} RENAME COLUMN w TO v2")
        self.gone(table, 0, 2, "column 'w' was renamed to 'v2' at version 2", mismatch)
        table.write("UPDATE {t} SET v = 'y'")
        assert [row.v for row in table.changes(2, 3)] == ["y"]
        assert plan_read(table.log, 1, 3).kind is ReadKind.SNAPSHOT
        table.write("ALTER TABLE {t} DROP COLUMN v2")
        self.gone(table, 2, 4, "column 'v2' was dropped at version 4", mismatch)
        table.write("UPDATE {t} SET v = 'z'")
        assert plan_read(table.log, 3, 5).kind is ReadKind.TAIL
        assert [row.v for row in table.changes(3, 5)] == ["z"]
        assert [row.v for row in table.changes(3, 4)] == []

    def test_replaced_by_another_schema(self, table):
        table.create(by_spark=True)
        table.insert(("a", 1, "x"))

        def overwrite(spark):
            frame = spark.sql("SELECT 'a' AS tenant, '5' AS k, 'x' AS v")
            writer = frame.write.format("delta").mode("overwrite").partitionBy("tenant")
            writer.option("overwriteSchema", "true").save(table.path)

        table.kept.write("overwrite with k as text", Path(table.path), overwrite)
        self.gone(table, 0, 2, "column 'k' changed from long to string", "INCOMPATIBLE_DATA_SCHEMA")
        with pytest.raises(FeedGoneError, match="INCOMPATIBLE_DATA_SCHEMA"):
            table.changes(0, 1)

    def test_an_added_column(self, table):
        table.create(by_spark=True)
        table.insert(("a", 1, "x"))
        table.write("ALTER TABLE {t} ADD COLUMN w INT COMMENT 'new'")
        table.write("INSERT INTO {t} VALUES ('a', 2, 'x', 5)")
        log = table.log
        assert plan_read(log, 0, 3).kind is ReadKind.TAIL
        selection = table.selection(columns=("k", "w"))
        rows = read_changes(table.spark, selection, log.get_moment(0), log.get_moment(3)).collect()
        assert {row.k: row.w for row in rows} == {1: None, 2: 5}
        assert len(rows) == 2
        assert [row.k for row in table.changes(0, 1)] == [1]


class TestFailures:
    def test_no_table(self, table):
        at, selection = Moment(1), table.selection()
        with pytest.raises(SourceError, match="PATH_NOT_FOUND"), wrap_spark_errors(table.path):
            read_changes(table.spark, selection, Moment(0), at).collect()
        with (
            pytest.raises(SourceError, match="FileNotFoundException"),
            wrap_spark_errors(table.path),
        ):
            read_snapshot(table.spark, selection, at).collect()

    @pytest.mark.parametrize("host", ["127.0.0.1:9", "nohost.invalid:9"])
    def test_a_store_that_does_not_answer(self, table, host):
        path = f"hdfs://{host}/orders"
        selection = replace(table.selection(), path=path)
        with (
            pytest.raises(UnavailableError) as error,
            wrap_spark_errors(path),
        ):
            read_snapshot(table.spark, selection, Moment(1)).collect()
        assert not error.value.permanent
        assert_names(str(error.value), path)

    def test_no_such_column(self, table):
        table.create()
        table.insert(("a", 1, "x"))
        selection = table.selection(columns=("nothing",))
        with pytest.raises(SourceError, match="nothing"), wrap_spark_errors(table.path):
            read_snapshot(table.spark, selection, Moment(1)).collect()

    def test_a_table_created_anew_with_fewer_versions(self, table):
        table.create()
        table.insert(("a", 1, "x"))
        table.insert(("a", 2, "x"))
        known = table.log.poll()
        shutil.rmtree(table.path)
        table.create()
        assert not table.log.poll(known).is_same_table(known)
        assert "went back" in plan_read(table.log, 2, 0).reason
        with pytest.raises(FeedGoneError), wrap_spark_errors(table.path):
            read_changes(table.spark, table.selection(), Moment(1), Moment(2)).collect()

    def test_what_spark_fails_over_is_told_in_its_words(self, table):
        with (
            raises_naming(ReadError, "/a", "odd") as error,
            wrap_spark_errors("/a"),
        ):
            table.spark.sql("SELECT raise_error('odd')").collect()
        assert "\n" not in str(error.value)

    def test_an_error_of_ours_comes_through(self, table):
        def fail(_):
            raise UnavailableError("ClickHouse is not there.")

        with (
            pytest.raises(UnavailableError, match=r"^ClickHouse is not there\.$"),
            wrap_spark_errors("/a"),
        ):
            table.spark.range(1).mapInArrow(fail, "id bigint").collect()

    def test_other_errors_pass(self, table):
        with pytest.raises(ZeroDivisionError), wrap_spark_errors(table.path):
            raise ZeroDivisionError

    def test_no_server(self):
        from pyspark.sql.connect.client import SparkConnectClient
        from pyspark.sql.connect.client.retries import DefaultPolicy

        client = SparkConnectClient("sc://127.0.0.1:1")
        client.set_retry_policies([DefaultPolicy(max_retries=0)])
        with (
            pytest.warns(UserWarning, match="RETRIES_EXCEEDED"),
            raises_naming(UnavailableError, "/a", "Spark"),
            wrap_spark_errors("/a"),
        ):
            client.get_configs("spark.sql.session.timeZone")
        client.close()
