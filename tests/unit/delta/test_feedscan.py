"""The change feed's files read with Arrow, against a plain model of the feed."""

import pickle
from collections import Counter
from dataclasses import replace
from datetime import date, datetime, timezone
from decimal import Decimal as Number
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from iscp_dagster.delta.feedscan import plan_feed, plan_rows
from iscp_dagster.delta.filescan import NotPlainError, TenantFilter
from iscp_dagster.delta.log.commit import FeedFile, Metadata
from iscp_dagster.delta.log.deltalog import DeltaLog
from iscp_dagster.delta.log.facts import TableFacts
from iscp_dagster.model.declared.schema import DeltaField, Primitive, Struct
from iscp_dagster.model.errors import FeedGoneError
from iscp_dagster.model.moment import Moment
from support.errors import raises_naming
from support.lake.row_writer import make_fields
from support.spark.fake_spark import keep_latest, make_sort_key

FIELDS = make_fields(tenant="string", k="string", n="decimal(10,2)", at="timestamp", v="double")
KEY = ("k", "n", "at")
KEY_TYPES = (pa.string(), pa.decimal128(10, 2), pa.timestamp("us", "UTC"))
SCHEMA = pa.schema([*zip(KEY, KEY_TYPES, strict=True), ("v", pa.float64())])
KINDS = {
    "add": ("insert",),
    "remove": ("delete",),
    "cdc": ("insert", "delete", "update_preimage", "update_postimage"),
}
IDENTITY = ("tenant", *KEY)
INSTANT = datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=timezone.utc)
ADDED = FeedFile("add", "f.parquet", (("tenant", "x"),))
TASK = pa.record_batch({"id": [0]})


def make_facts(*fields, by=("tenant",), **more):
    metadata = Metadata(table_id="t", schema="", partition_columns=by)
    return TableFacts(version=9, metadata=metadata, fields=fields or FIELDS, **more)


@st.composite
def feeds(draw):
    """Draw files in the order of their commits: (version, kind of file, tenant, rows)."""
    files = []
    for version in sorted(draw(st.lists(st.integers(1, 4), max_size=6))):
        kind = draw(st.sampled_from(sorted(KINDS)))
        row = st.fixed_dictionaries(
            {
                "k": st.sampled_from([None, "", "a", "B", "é"]),
                "n": st.sampled_from([None, Number("-1.50"), Number("2.00")]),
                "at": st.sampled_from([None, INSTANT]),
                "v": st.floats(width=32, allow_nan=False),
                "_change_type": st.sampled_from(KINDS[kind]),
            }
        )
        tenant = draw(st.sampled_from(["x", "y/z é"]))
        files.append((version, kind, tenant, draw(st.lists(row, max_size=5))))
    return files


OF_NOBODY = TenantFilter(column="tenant", tenants=frozenset())
"""Unused where files are selected by their partition."""


def write_feed(folder, feed):
    """Write the files as a writer does, and yield them as the log names them."""
    for number, (version, kind, tenant, rows) in enumerate(feed):
        name = f"part {number}.parquet"
        schema = SCHEMA.append(pa.field("_change_type", pa.string())) if kind == "cdc" else SCHEMA
        pq.write_table(pa.Table.from_pylist(rows, schema), Path(folder, name))
        file = FeedFile(kind, quote(name), (("tenant", tenant),))
        yield Moment(version, version * 1_000), file


def plan_scan(folder, files, facts=None, **options):
    """Return the scan of these files of a table whose tenants are in the column `tenant`."""
    options = {"identity": ("tenant", "k"), "keyed": True, "tenant_filter": OF_NOBODY} | options
    return plan_feed(str(folder), facts or make_facts(), list(files), **options)


def read(scan):
    batches = list(pickle.loads(pickle.dumps(scan)).read_batches([TASK]))
    return pa.Table.from_batches(batches).to_pylist() if batches else []


def list_changes(feed):
    for version, _, tenant, rows in feed:
        stamps = {"tenant": tenant, "_version": version, "_timestamp": version * 1_000}
        yield from (row | stamps for row in rows)


@settings(max_examples=150, deadline=None)
@given(feeds())
def test_the_last_change_of_each_key_in_the_order_of_the_keys(feed):
    with TemporaryDirectory() as folder:
        files = write_feed(folder, feed)
        rows = read(plan_scan(folder, files, output=IDENTITY, identity=IDENTITY))
    names = (*IDENTITY, "_version", "_timestamp", "_deleted", "_repeats", "_fresh")
    latest = keep_latest(list_changes(feed), IDENTITY)
    assert rows == [{name: row[name] for name in names} for row in latest]


@settings(max_examples=100, deadline=None)
@given(feeds())
def test_without_a_key_each_row_by_tenant_version_and_values(feed):
    def make_place(row):
        return row["tenant"], row["_version"], make_sort_key(row, KEY)

    with TemporaryDirectory() as folder:
        files = write_feed(folder, feed)
        rows = read(plan_scan(folder, files, output=KEY, identity=IDENTITY, keyed=False))
    names = (*KEY, "_version")
    expected = [
        {name: row[name] for name in (*names, "_timestamp")}
        | {"_deleted": False, "_repeats": row["_change_type"] != "insert"}
        for row in sorted(list_changes(feed), key=make_place)
    ]
    counts = [Counter(tuple(row.items()) for row in some) for some in (rows, expected)]
    assert counts[0] == counts[1]
    # The order of rows that are equal but for their kind is left open.
    orders = [[[row[name] for name in names] for row in some] for some in (rows, expected)]
    assert orders[0] == orders[1]


def test_values_of_the_row_are_those_of_its_last_change(tmp_path):
    rows = [
        {"k": "a", "v": 1.0, "_change_type": "update_preimage"},
        {"k": "a", "v": 2.0, "_change_type": "update_postimage"},
        {"k": "b", "v": 3.0, "_change_type": "delete"},
    ]
    files = write_feed(tmp_path, [(1, "cdc", "x", rows)])
    scan = plan_scan(tmp_path, files, output=("k", "v", "at"))
    found = [(row["k"], row["v"], row["at"], row["_deleted"]) for row in read(scan)]
    assert found == [("a", 2.0, None, False), ("b", 3.0, None, True)]


@pytest.mark.parametrize(
    ("type_", "text", "value"),
    [
        ("string", "a b", "a b"),
        ("string", "", None),
        ("string", None, None),
        ("integer", "-7", -7),
        ("long", "9007199254740993", 9_007_199_254_740_993),
        ("date", "1582-10-04", date(1582, 10, 4)),
        ("boolean", "true", True),
        ("boolean", "false", False),
    ],
)
def test_a_partition_value_of_the_log_is_in_the_rows_of_the_file(tmp_path, type_, text, value):
    pq.write_table(pa.table({"k": ["a"]}), tmp_path / "f.parquet")
    facts = make_facts(DeltaField(name="tenant", type=Primitive(type_)), FIELDS[1])
    file = FeedFile("add", "f.parquet", (("tenant", text),))
    scan = plan_scan(tmp_path, [(Moment(1), file)], facts, output=("tenant", "k"))
    assert [row["tenant"] for row in read(scan)] == [value]


@pytest.mark.parametrize(
    ("type_", "text", "spark"),
    [
        ("string", "", True),
        ("string", None, False),
        ("date", "", False),
        ("date", "2020-02-29", False),
        ("date", "+12345-04-02", True),
        ("date", "-0221-09-04", True),
        ("integer", "seven", True),
    ],
)
def test_a_partition_value_that_only_spark_reads_is_left_to_it_if_it_is_selected(
    tmp_path, type_, text, spark
):
    part = DeltaField(name="part", type=Primitive(type_))
    facts = make_facts(*FIELDS, part, by=("tenant", "part"))
    file = FeedFile("add", "f.parquet", (("tenant", "x"), ("part", text)))

    def plan(*output):
        return plan_scan(tmp_path, [(Moment(1), file)], facts, output=output)

    assert (plan("v", "part") is None) is spark
    assert plan("v") is not None


def test_only_spark_reads_files_elsewhere_and_rows_that_arrow_cannot_sort(tmp_path):
    def plan(facts=None, file=ADDED, location=tmp_path, **named):
        return plan_scan(location, [(Moment(1), file)], facts, output=["v"], **named)

    assert plan() is not None
    assert plan(location="gs://bucket/t") is None
    assert plan(file=ADDED._replace(path="file:///elsewhere/f.parquet")) is None
    assert plan(make_facts(reader_features=frozenset({"typeWidening"}))) is None
    assert plan(identity=("tenant", "v")) is None, "Spark compares NaN as a number"
    struct = replace(FIELDS[1], type=Struct((FIELDS[1],)))
    facts = make_facts(FIELDS[0], struct, *FIELDS[2:])
    assert plan(facts) is None, "a key that Arrow cannot sort"
    assert plan(facts, identity=("tenant", "n")) is not None


def test_a_missing_or_different_file_is_noticed_before_any_row(tmp_path):
    feed = [(1, "add", "x", [{"k": "a"}]), (2, "add", "x", [{"k": "b"}])]
    scan = plan_scan(tmp_path, write_feed(tmp_path, feed), output=["k"], identity=["k"])
    other = tmp_path / "part 1.parquet"
    pq.write_table(pq.read_table(other).rename_columns(["K", "n", "at", "v"]), other)
    with raises_naming(NotPlainError, quote(other.name), "'k'", "case"):
        next(scan.read_batches([TASK]))
    other.unlink()
    with raises_naming(FeedGoneError, tmp_path, quote(other.name)):
        next(scan.read_batches([TASK]))


def test_few_rows_are_all_of_the_feed_unless_spark_has_to_read_them(tmp_path):
    feed = [(1, "cdc", "x", [{"k": "a", "_change_type": "delete"}]), (2, "add", "y", [{"k": "b"}])]
    files = list(write_feed(tmp_path, feed))

    def read_few(most=1_000):
        rows = plan_rows(str(tmp_path), make_facts(), files, ["tenant", "k"], OF_NOBODY)
        return rows.read_if_small(most)

    found = [tuple(row.values()) for row in read_few().to_pylist()]
    assert found == [("x", "a", 1, 1_000, False, False), ("y", "b", 2, 2_000, True, True)]
    assert read_few(most=10) is None
    other = tmp_path / "part 1.parquet"
    rows = pq.read_table(other)
    for different in (
        rows.rename_columns(["K", "n", "at", "v"]),
        rows.set_column(0, "k", pa.array([b"\xff"]).view(pa.string())),
    ):
        pq.write_table(different, other)
        assert read_few() is None
    other.unlink()
    with raises_naming(FeedGoneError, tmp_path, quote(other.name)):
        read_few()


def test_the_log_says_which_files_make_the_feed(tmp_path):
    path = str(tmp_path / "t")
    feed = {"delta.enableChangeDataFeed": "true"}
    rows = pa.table({"tenant": ["a", "b"], "k": [1, 2]})
    write_deltalake(path, rows, partition_by=["tenant"], configuration=feed)
    DeltaTable(path).update(updates={"k": "3"}, predicate="tenant = 'a'")
    DeltaTable(path).optimize.compact()
    DeltaTable(path).delete("tenant = 'b'")
    log = DeltaLog(path, "tenant")
    upto = log.get_latest_moment().version

    def list_kinds(*tenants, after=0):
        files = log.list_feed_files(after, upto, set(tenants))
        return [(version, file.action) for version, file in files]

    assert list_kinds("a", "b", after=-1)[:2] == [(0, "add"), (0, "add")]
    assert list_kinds("a") == [(1, "cdc")]
    ((_, kind),) = list_kinds("b")
    assert kind in {"cdc", "remove"}
    assert list_kinds("nobody") == []
