"""The change feed's files read with Arrow, against a plain model of the feed."""

import pickle
from collections import Counter
from dataclasses import replace
from datetime import date, datetime, timezone
from decimal import Decimal as Number
from itertools import groupby
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
from iscp_dagster.delta.filescan import NotPlainError
from iscp_dagster.delta.log.commit import FeedFile, Metadata
from iscp_dagster.delta.log.deltalog import DeltaLog
from iscp_dagster.delta.log.facts import TableFacts
from iscp_dagster.model.declared.schema import Decimal, DeltaField, Primitive, Struct
from iscp_dagster.model.errors import FeedGoneError
from iscp_dagster.model.moment import Moment

FIELDS = (
    DeltaField(name="tenant", type=Primitive("string")),
    DeltaField(name="k", type=Primitive("string")),
    DeltaField(name="n", type=Decimal(10, 2)),
    DeltaField(name="at", type=Primitive("timestamp")),
    DeltaField(name="v", type=Primitive("double")),
)
SCHEMA = pa.schema(
    [
        ("k", pa.string()),
        ("n", pa.decimal128(10, 2)),
        ("at", pa.timestamp("us", "UTC")),
        ("v", pa.float64()),
    ]
)
KEY = ("k", "n", "at")
KINDS = {
    "add": ("insert",),
    "remove": ("delete",),
    "cdc": ("insert", "delete", "update_preimage", "update_postimage"),
}
UPSERTS = {"insert", "update_postimage"}
INSTANT = datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=timezone.utc)


def facts_of(*fields, by=("tenant",), **more):
    metadata = Metadata(table_id="t", schema="", partition_columns=by)
    return TableFacts(version=9, metadata=metadata, fields=fields or FIELDS, **more)


@st.composite
def feeds(draw):
    """Draw files in the order of their commits: (version, kind of file, tenant, rows)."""
    found = []
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
        found.append((version, kind, tenant, draw(st.lists(row, max_size=5))))
    return found


def written(folder, feed):
    """Write the files as a writer does, and yield them as the log names them."""
    for number, (version, kind, tenant, rows) in enumerate(feed):
        name = f"part {number}.parquet"
        schema = SCHEMA.append(pa.field("_change_type", pa.string())) if kind == "cdc" else SCHEMA
        pq.write_table(pa.Table.from_pylist(rows, schema), Path(folder, name))
        file = FeedFile(kind, quote(name), (("tenant", tenant),))
        yield Moment(version, version * 1_000), file


def scanned(folder, files, facts=None, *, output, identity=("tenant", "k"), keyed=True):
    """Return the scan of these files of a table whose tenants are in the column `tenant`."""
    return plan_feed(
        str(folder),
        facts or facts_of(),
        list(files),
        output=output,
        identity=identity,
        tenant="tenant",
        keyed=keyed,
    )


def read(scan):
    batches = list(pickle.loads(pickle.dumps(scan)).read_batches([pa.record_batch({"id": [0]})]))
    return pa.Table.from_batches(batches).to_pylist() if batches else []


def place(row, names):
    """Return a sort key like Spark's: nulls first, texts by their bytes."""
    values = [row[name] for name in names]
    bare = [each.encode() if isinstance(each, str) else each for each in values]
    return [(each is not None, 0 if each is None else each) for each in bare]


def stamped(feed):
    for version, _, tenant, rows in feed:
        for row in rows:
            stamps = {"_version": version, "_timestamp": version * 1_000}
            yield row | {"tenant": tenant} | stamps


def last_changes(feed):
    """Return the rows that `reader.changes` promises, computed one by one."""
    by = ("tenant", *KEY)
    rows = sorted(stamped(feed), key=lambda row: place(row, by))
    for _, same in groupby(rows, key=lambda row: place(row, by)):
        newest = sorted(same, key=lambda r: (-r["_version"], r["_change_type"] not in UPSERTS))
        upserts = [row["_change_type"] in UPSERTS for row in newest]
        twin = any(
            older and newer and (a["_version"] == b["_version"] or a["_change_type"] == "insert")
            for a, b, newer, older in zip(newest, newest[1:], upserts, upserts[1:], strict=False)
        )
        found = {name: newest[0][name] for name in (*by, "_version", "_timestamp")}
        yield found | {"_deleted": not upserts[0], "_repeats": twin, "_fresh": upserts[-1]}


@settings(max_examples=150, deadline=None)
@given(feeds())
def test_the_last_change_of_each_key_in_the_order_of_the_keys(feed):
    with TemporaryDirectory() as folder:
        whole = ("tenant", *KEY)
        scan = scanned(folder, written(folder, feed), output=whole, identity=whole)
        assert read(scan) == list(last_changes(feed))


@settings(max_examples=100, deadline=None)
@given(feeds())
def test_without_a_key_each_row_by_tenant_version_and_values(feed):
    with TemporaryDirectory() as folder:
        files, identity = written(folder, feed), ("tenant", *KEY)
        found = read(scanned(folder, files, output=KEY, identity=identity, keyed=False))
    expected = [
        {name: row[name] for name in (*KEY, "_version", "_timestamp")}
        | {"_deleted": False, "_repeats": row["_change_type"] != "insert"}
        for row in sorted(
            stamped(feed),
            key=lambda row: (
                place(row, ("tenant",)),
                row["_version"],
                place(row, ("tenant", *KEY)),
            ),
        )
    ]
    assert Counter(map(tuple, map(dict.items, found))) == Counter(
        map(tuple, map(dict.items, expected))
    )
    told = (*KEY, "_version")
    assert [[row[name] for name in told] for row in found] == [
        [row[name] for name in told] for row in expected
    ]


def test_values_of_the_row_are_those_of_its_last_change(tmp_path):
    rows = [
        {"k": "a", "v": 1.0, "_change_type": "update_preimage"},
        {"k": "a", "v": 2.0, "_change_type": "update_postimage"},
        {"k": "b", "v": 3.0, "_change_type": "delete"},
    ]
    files = written(tmp_path, [(1, "cdc", "x", rows)])
    scan = scanned(tmp_path, files, output=("k", "v", "at"))
    assert [(row["k"], row["v"], row["at"], row["_deleted"]) for row in read(scan)] == [
        ("a", 2.0, None, False),
        ("b", 3.0, None, True),
    ]


PARTITIONS = [
    ("string", "a b", "a b"),
    ("string", "", None),
    ("string", None, None),
    ("integer", "-7", -7),
    ("long", "9007199254740993", 9_007_199_254_740_993),
    ("date", "1582-10-04", date(1582, 10, 4)),
    ("boolean", "true", True),
    ("boolean", "false", False),
]


@pytest.mark.parametrize(("type_", "text", "value"), PARTITIONS)
def test_what_the_log_says_of_a_partition_is_in_its_rows(tmp_path, type_, text, value):
    pq.write_table(pa.table({"k": ["a"]}), tmp_path / "f.parquet")
    fields = (DeltaField(name="tenant", type=Primitive(type_)), FIELDS[1])
    file = FeedFile("add", "f.parquet", (("tenant", text),))
    scan = scanned(tmp_path, [(Moment(1), file)], facts_of(*fields), output=("tenant", "k"))
    assert [row["tenant"] for row in read(scan)] == [value]


@pytest.mark.parametrize(
    ("type_", "text", "spark"),
    [
        ("string", "", True),
        ("string", None, False),
        ("string", "x", False),
        ("date", "", False),
        ("date", "2020-02-29", False),
        ("date", "+12345-04-02", True),
        ("date", "-0221-09-04", True),
        ("integer", "seven", True),
        ("integer", "7", False),
    ],
)
def test_a_partition_value_that_spark_alone_reads_is_left_to_it_where_it_is_asked_for(
    tmp_path, type_, text, spark
):
    facts = facts_of(*FIELDS, DeltaField(name="part", type=Primitive(type_)), by=("tenant", "part"))
    file = FeedFile("add", "f.parquet", (("tenant", "x"), ("part", text)))

    def plan(*output):
        return scanned(tmp_path, [(Moment(1), file)], facts, output=output)

    assert (plan("v", "part") is None) is spark
    assert plan("v") is not None


def test_what_spark_must_read(tmp_path):
    file = FeedFile("add", "f.parquet", (("tenant", "x"),))

    def plan(facts=None, file=file, location=tmp_path, **named):
        return scanned(location, [(Moment(1), file)], facts, output=["v"], **named)

    assert plan() is not None
    assert plan(location="gs://bucket/t") is None
    assert plan(file=file._replace(path="file:///elsewhere/f.parquet")) is None
    assert plan(facts_of(reader_features=frozenset({"typeWidening"}))) is None
    assert plan(identity=("tenant", "v")) is None, "NaN is a number like others there"
    struct = replace(FIELDS[1], type=Struct((FIELDS[1],)))
    assert plan(facts_of(FIELDS[0], struct, *FIELDS[2:])) is None, "a key that Arrow cannot sort"
    assert plan(facts_of(FIELDS[0], struct, *FIELDS[2:]), identity=("tenant", "n")) is not None


def test_a_file_that_is_gone_or_unlike_is_met_before_any_row(tmp_path):
    good, other = written(tmp_path, [(1, "add", "x", [{"k": "a"}]), (2, "add", "x", [{"k": "b"}])])
    scan = scanned(tmp_path, [good, other], output=["k"], identity=["k"])
    upper = pq.read_table(tmp_path / "part 1.parquet").rename_columns(["K", "n", "at", "v"])
    pq.write_table(upper, tmp_path / "part 1.parquet")
    with pytest.raises(NotPlainError, match="in another case"):
        next(scan.read_batches([pa.record_batch({"id": [0]})]))
    (tmp_path / "part 1.parquet").unlink()
    with pytest.raises(FeedGoneError, match="is gone"):
        next(scan.read_batches([pa.record_batch({"id": [0]})]))


def test_few_rows_are_all_of_the_feed_unless_spark_has_to_read_them(tmp_path):
    feed = [(1, "cdc", "x", [{"k": "a", "_change_type": "delete"}]), (2, "add", "y", [{"k": "b"}])]
    files = list(written(tmp_path, feed))

    def few(most=1_000):
        return plan_rows(str(tmp_path), facts_of(), files, ["tenant", "k"], "tenant").read_if_small(
            most
        )

    rows = few().to_pylist()
    assert [tuple(row.values()) for row in rows] == [
        ("x", "a", 1, 1_000, False, False),
        ("y", "b", 2, 2_000, True, True),
    ]
    assert few(most=10) is None
    good = pq.read_table(tmp_path / "part 1.parquet")
    for unlike in (
        good.rename_columns(["K", "n", "at", "v"]),
        good.set_column(0, "k", pa.array([b"\xff"]).view(pa.string())),
    ):
        pq.write_table(unlike, tmp_path / "part 1.parquet")
        assert few() is None
    (tmp_path / "part 1.parquet").unlink()
    with pytest.raises(FeedGoneError, match="is gone"):
        few()


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

    def listed(*tenants, after=0):
        found = log.feed_files(after, upto, set(tenants))
        return [(version, file.kind) for version, file in found]

    assert listed("a", "b", after=-1)[:2] == [(0, "add"), (0, "add")]
    assert listed("a") == [(1, "cdc")]
    assert {kind for _, kind in listed("b")} <= {"cdc", "remove"}
    assert len(listed("b")) == 1
    assert listed("nobody") == []
