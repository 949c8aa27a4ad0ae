"""Reading a snapshot's files with Arrow, against deltalake's own reader."""

import pickle
from array import array
from collections import Counter
from dataclasses import replace
from datetime import date, datetime, timezone
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, WriterProperties, write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from iscp_dagster.delta import filescan
from iscp_dagster.delta.arrow import to_arrow_type
from iscp_dagster.delta.filescan import NotPlainError, plan_tasks
from iscp_dagster.delta.log.deltalog import DeltaLog
from iscp_dagster.delta.log.facts import DataFile
from iscp_dagster.model.declared.schema import Array, DeltaField, Map, Primitive, Struct
from iscp_dagster.model.errors import FeedGoneError, SourceError, UnreadableError
from support.errors import raises_naming
from support.lake.row_writer import make_fields

LONG = Primitive("long")
LONGS = Array(element=LONG)
PAIR = Struct(make_fields(a="long", new="string"))
TENANTS = ("a", "b c", "d/e%20é'\"", "名\\n", "100%41")


def make_rows(values, keys=4):
    tenants = [value for value in values for _ in range(keys)]
    vectors = [[0.5, float(key)] for key in range(keys)] * len(values)
    return pa.table({"tenant": tenants, "k": list(range(keys)) * len(values), "v": vectors})


def write(folder, rows, by=("tenant",), **options):
    write_deltalake(Path(folder).as_uri(), rows, partition_by=list(by), mode="append", **options)
    return str(folder)


def get_file(path):
    """Return the only data file of a table."""
    (file,) = Path(path).rglob("*.parquet")
    return file


def plan_scan(path, *, tenants=TENANTS, tenant="tenant", columns=("tenant", "k", "v"), least=2):
    log = DeltaLog(path, tenant)
    version = log.get_latest_moment().version
    files = log.list_data_files(version, frozenset(tenants))
    return plan_tasks(path, log.get_facts(version), files, columns, least)


def read_table(scan):
    numbers = [pa.record_batch({"id": [number]}) for number in range(len(scan.tasks))]
    return pa.Table.from_batches(list(scan.read_batches(numbers)))


def read(scan):
    return sorted(map(str, read_table(pickle.loads(pickle.dumps(scan))).to_pylist()))


def read_with_deltalake(path, tenants=TENANTS, columns=("tenant", "k", "v")):
    rows = pa.table(DeltaTable(Path(path).as_uri()).to_pyarrow_table()).select(list(columns))
    return sorted(str(row) for row in rows.to_pylist() if row.get("tenant") in tenants)


def test_tenants_of_any_name_are_read(tmp_path):
    path = write(tmp_path / "a b#", make_rows(TENANTS))
    assert read(plan_scan(path)) == read_with_deltalake(path)
    assert len(read_with_deltalake(path)) == 4 * len(TENANTS)
    tenants = TENANTS[1:3]
    assert read(plan_scan(path, tenants=tenants)) == read_with_deltalake(path, tenants)


def test_a_table_without_tenants_and_without_rows(tmp_path):
    path = write(tmp_path / "t", make_rows(["x"]).slice(0, 0), by=())
    scan = plan_scan(path, tenants={"default"}, tenant=None, least=1)
    assert [len(task) for task in scan.tasks] == [0]
    assert list(scan.read_batches([pa.record_batch({"id": [0]})])) == []


def test_a_column_that_came_later_is_null_before(tmp_path):
    path = write(tmp_path / "t", make_rows(["a"]))
    more = make_rows(["a"]).append_column("later", pa.array([1, 2, 3, 4]))
    write(path, more, schema_mode="merge")
    columns = ("tenant", "later", "k")
    assert read(plan_scan(path, columns=columns)) == read_with_deltalake(path, columns=columns)


@pytest.mark.parametrize(
    ("values", "type_"),
    [
        ([1, 2], pa.int8()),
        ([1, 2], pa.int64()),
        ([date(2020, 1, 1), date(1969, 2, 3)], pa.date32()),
        ([True, False], pa.bool_()),
    ],
)
def test_a_tenant_of_every_type_and_a_second_partition_column(tmp_path, values, type_):
    column = pa.array([value for value in values for _ in range(4)], type_)
    rows = make_rows(values).set_column(0, "tenant", column)
    rows = rows.append_column("day", pa.array(["x", None] * 4))
    path = write(tmp_path / "t", rows, by=("tenant", "day"))
    tenants = {str(value).lower() for value in values}
    for columns in (("tenant", "k"), ("k", "day", "tenant")):
        scan = plan_scan(path, tenants=tenants, columns=columns)
        assert read(scan) == read_with_deltalake(path, values, columns)


FAR = pa.array([3_789_482, -800_000, 0, None], pa.int32())
"""Days since 1970: in the years 12345 and -221, outside Python's dates, and one within them."""
FAR_TEXTS = ("+12345-04-02", "-0221-09-04", "1970-01-01")


def test_a_date_that_python_cannot_hold_stops_no_other_tenant_or_column(tmp_path):
    rows = make_rows(["a", "b"], keys=2).append_column("day", FAR.cast(pa.date32()))
    path = write(tmp_path / "t", rows, by=("tenant", "day"))
    for columns in (("tenant", "k", "v"), ("k",)):
        assert read(plan_scan(path, tenants="ab", columns=columns)) == sorted(
            str({name: row[name] for name in columns}) for row in make_rows("ab", 2).to_pylist()
        )
    columns = ("tenant", "day")
    assert plan_scan(path, tenants="a", columns=columns) is None
    days = sorted(str({"tenant": "b", "day": day}) for day in (date(1970, 1, 1), None))
    assert read(plan_scan(path, tenants="b", columns=columns)) == days
    assert sorted(DeltaLog(path, "tenant").get_tenant_sizes()) == ["a", "b"]


def test_tenants_that_are_dates_of_any_year_are_named_by_their_text(tmp_path):
    rows = pa.table({"day": FAR.cast(pa.date32()), "k": [1, 2, 3, 4]})
    path = write(tmp_path / "t", rows, by=("day",))
    log = DeltaLog(path, "day")
    assert log.list_tenants() == sorted(FAR_TEXTS)
    assert log.list_changed_tenants(-1, 0) == set(log.get_tenant_sizes()) == set(FAR_TEXTS)
    for number, text in enumerate(FAR_TEXTS, start=1):
        assert len(log.list_data_files(0, {text})) == 1
        scan = plan_scan(path, tenants={text}, tenant="day", columns=("k",))
        assert read(scan) == [str({"k": number})]
    assert plan_scan(path, tenants=FAR_TEXTS, tenant="day", columns=("day", "k")) is None


def test_an_empty_text_is_no_tenant_and_where_spark_reads_it_as_such_left_to_it(tmp_path):
    rows = make_rows(["a", "b"], keys=2).append_column("q", pa.array(["", "x", "y", "z"]))
    path = write(tmp_path / "t", rows, by=("tenant", "q"))
    columns = ("tenant", "q", "k")
    assert plan_scan(path, columns=columns) is None
    scan = plan_scan(path, tenants="b", columns=columns)
    assert read(scan) == read_with_deltalake(path, ("b",), columns)
    assert read(plan_scan(path)) == read_with_deltalake(path)
    path = write(tmp_path / "tenants", make_rows(["a", ""]))
    assert read(plan_scan(path, tenants=("a", ""))) == read_with_deltalake(path, ("a",))
    assert DeltaLog(path, "tenant").get_unnamed_size().files == 1


def test_large_files_are_read_in_shares(tmp_path, monkeypatch):
    groups = WriterProperties(max_row_group_size=1_000)
    path = write(tmp_path / "t", make_rows(["a"], keys=4_000), writer_properties=groups)
    file = get_file(path)
    assert pq.ParquetFile(file).num_row_groups == 4
    monkeypatch.setattr(filescan, "BYTES_PER_TASK", file.stat().st_size // 3 + 1)
    scan = plan_scan(path, least=1)
    assert sorted(share.number for task in scan.tasks for share in task) == [0, 1, 2]
    assert len(scan.tasks) == 3
    assert read(scan) == read_with_deltalake(path)


def break_file(file):
    file.write_bytes(b"PAR1 and no more")


def make_loop(file):
    file.unlink()
    file.symlink_to(file.name)


@pytest.mark.parametrize(
    ("damage", "error"),
    [(Path.unlink, FeedGoneError), (break_file, SourceError), (make_loop, UnreadableError)],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path, damage, error):
    path = write(tmp_path / "t", make_rows(["a"]))
    scan, file = plan_scan(path), get_file(path)
    damage(file)
    with raises_naming(error, file.name):
        read(scan)


def test_a_file_that_spark_would_read_differently_is_left_to_spark(tmp_path):
    rows = make_rows(["a"]).append_column("day", pa.array([date(1500, 1, 1)] * 4))
    path = write(tmp_path / "t", rows)
    columns = ("tenant", "k", "day")
    assert read(plan_scan(path, columns=columns)) == read_with_deltalake(path, columns=columns)
    without_times = read_with_deltalake(path)
    file = get_file(path)
    stored = pq.ParquetFile(file).read()
    for names in (["K", "v", "day"], ["k", "K", "day"]):
        pq.write_table(stored.rename_columns(names), file)
        with raises_naming(NotPlainError, file.name, "'k'", "case"):
            read(plan_scan(path, columns=columns))
    pq.write_table(stored.replace_schema_metadata({"org.apache.spark.legacyDateTime": ""}), file)
    with raises_naming(NotPlainError, file.name, "calendar"):
        read(plan_scan(path, columns=columns))
    assert read(plan_scan(path)) == without_times


INSTANT = datetime(1500, 1, 1, tzinfo=timezone.utc)
TIMES = {
    "date": (date(1500, 1, 1), pa.date32()),
    "micros": (INSTANT, pa.timestamp("us", "UTC")),
    "int96": (INSTANT, pa.timestamp("us", "UTC")),
    "dates": ([date(1500, 1, 1)], pa.list_(pa.date32())),
    "int96s": ([INSTANT], pa.list_(pa.timestamp("us", "UTC"))),
    "text": ("1500-01-01", pa.string()),
}
OLD = {"date", "micros", "int96", "dates", "int96s"}


@pytest.mark.parametrize("kind", TIMES)
@pytest.mark.parametrize(
    ("version", "refused"),
    [
        ("2.4.8", OLD),
        ("3.0.3", {"int96", "int96s"}),
        ("3.1.0", set()),
        ("4.2.0", set()),
        ("10.0.1", set()),
        (None, set()),
    ],
)
def test_times_of_sparks_with_the_old_calendar_are_left_to_spark(tmp_path, kind, version, refused):
    value, type_ = TIMES[kind]
    path = write(tmp_path / "t", make_rows(["a"], 1).append_column("x.y", pa.array([value], type_)))
    columns = ("tenant", "k", "x.y")
    expected = read_with_deltalake(path, columns=columns)
    file = get_file(path)
    metadata = {"org.apache.spark.version": version} if version else {}
    rows = pq.ParquetFile(file).read().replace_schema_metadata(metadata)
    pq.write_table(rows, file, use_deprecated_int96_timestamps=kind.startswith("int96"))
    scan = plan_scan(path, columns=columns)
    if kind in refused:
        with raises_naming(NotPlainError, file.name, "calendar"):
            read(scan)
    else:
        assert read(scan) == expected
    assert len(read(plan_scan(path, columns=("k", "tenant")))) == 1, "no times are read"


@pytest.mark.parametrize(
    ("type_", "stored"),
    [
        ("string", pa.array([7], pa.int32())),
        ("integer", pa.array([True])),
        ("integer", pa.array([7], pa.int64())),
        ("date", pa.array([0], pa.timestamp("us"))),
        ("float", pa.array([1e300])),
    ],
)
def test_values_that_arrow_would_cast_and_spark_refuses_are_left_to_spark(tmp_path, type_, stored):
    with raises_naming(NotPlainError, type_, stored.type):
        read(plan_cast(tmp_path / "t", "v", stored, Primitive(type_)))


@pytest.mark.parametrize("rewrite", ["update", "delete"])
def test_files_that_delta_rs_rewrites_are_read_too(tmp_path, rewrite):
    """Then delta-rs stores text and bytes as views, whose type Arrow finds in the file."""
    rows = pa.table(
        {
            "tenant": ["a"] * 3,
            "k": [1, 2, 3],
            "text": ["x", None, "z"],
            "bytes": [b"x", None, b"z"],
            "texts": [["x", None], None, []],
            "pair": [{"text": "x", "bytes": b"y"}, None, {"text": None, "bytes": None}],
            "named": pa.array([[("x", "y")], None, []], pa.map_(pa.string(), pa.string())),
        }
    )
    path = write(tmp_path / "t", rows)
    if rewrite == "update":
        DeltaTable(path).update({"text": "'other'"}, predicate="k = 3")
    else:
        DeltaTable(path).delete("k = 3")
    (file,) = (Path(path, uri) for uri in DeltaTable(path).file_uris())
    assert "view" in str(pq.ParquetFile(file).schema_arrow)
    columns = tuple(rows.column_names)
    assert read(plan_scan(path, columns=columns)) == read_with_deltalake(path, columns=columns)


@pytest.mark.parametrize(
    ("type_", "values", "stored"),
    [
        ("string", ["x", None], pa.large_string()),
        ("string", ["x", None], pa.string_view()),
        ("string", ["x", None], pa.dictionary(pa.int32(), pa.string())),
        ("binary", [b"x", None], pa.large_binary()),
        ("binary", [b"x", None], pa.binary_view()),
        (LONGS, [[1, None], None, []], pa.large_list(pa.int64())),
        (LONGS, [[1, 2], None, [3, 4]], pa.list_(pa.int64(), 2)),
        (LONGS, [[1, None], None, []], pa.list_view(pa.int64())),
        # A field of it went, and one came.
        (PAIR, [{"a": 1, "new": None}, None], pa.struct({"old": pa.int64(), "a": pa.int64()})),
    ],
)
def test_values_are_read_whatever_layout_arrow_has_for_them(tmp_path, type_, values, stored):
    column_type = Primitive(type_) if isinstance(type_, str) else type_
    column = pa.array(values, to_arrow_type(column_type))
    scan = plan_cast(tmp_path / "t", "v", column, column_type)
    pq.write_table(pa.table({"v": pa.array(values, stored)}), get_file(tmp_path))
    assert read(scan) == sorted(str({"v": value, "tenant": "a"}) for value in values)


def plan_cast(path, name, column, type_):
    """Return the scan of one file whose column `name` was later declared as `type_`."""
    rows = pa.table({"tenant": ["a"] * len(column), name: column})
    write(path, rows)
    log = DeltaLog(str(path), "tenant")
    facts = log.get_facts()
    fields = [replace(each, type=type_) if each.name == name else each for each in facts.fields]
    facts, files = replace(facts, fields=tuple(fields)), log.list_data_files(0, TENANTS)
    return plan_tasks(str(path), facts, files, [fields[1].name, "tenant"], 1)


def test_rows_that_a_deletion_vector_has_are_not_there(tmp_path, monkeypatch):
    monkeypatch.setattr(filescan, "SCANNING", {**filescan.SCANNING, "batch_size": 3})
    path = write(tmp_path / "t", make_rows(["a"], keys=10))
    log = DeltaLog(path, "tenant")
    deleted = array("q", [0, 2, 3, 9]).tobytes()
    files = [replace(file, deleted=deleted) for file in log.list_data_files(0, TENANTS)]
    rows = read_table(plan_tasks(path, log.get_facts(), files, ["tenant", "k"], 2))
    assert rows["k"].to_pylist() == [1, 4, 5, 6, 7, 8]
    assert set(rows["tenant"].to_pylist()) == {"a"}


@pytest.mark.parametrize(
    ("value", "culprit"), [({"a": 1, "B": 2}, "'b'"), ({"c": 3}, "struct")], ids=str
)
@pytest.mark.parametrize("within", ["", "array", "map"])
def test_a_struct_that_spark_would_read_differently_is_left_to_spark(
    tmp_path, value, culprit, within
):
    struct = Struct(make_fields(a="long", b="long"))
    column, type_ = pa.array([value]), struct
    if within == "array":
        column, type_ = pa.array([[value]]), Array(element=struct)
    elif within == "map":
        column = pa.array([[("k", value)]], pa.map_(pa.string(), column.type))
        type_ = Map(key=Primitive("string"), value=struct)
    with raises_naming(NotPlainError, culprit):
        read(plan_cast(tmp_path / "t", "s", column, type_))


def test_spark_reads_files_elsewhere_vectors_that_were_not_looked_up_and_odd_tables(tmp_path):
    path = write(tmp_path / "t", make_rows(["a"]))
    log = DeltaLog(path, "tenant")
    facts = log.get_facts()
    files = log.list_data_files(0, TENANTS)
    assert plan_tasks(path, facts, files, ["k"], 1) is not None
    assert plan_tasks("gs://bucket/t", facts, files, ["k"], 1) is None
    vectors = replace(facts, reader_features=frozenset({"deletionVectors"}))
    assert plan_tasks(path, vectors, files, ["k"], 1) is None, "nobody looked for vectors"
    clone = DataFile(path="file:///elsewhere/x.parquet", bytes=1, rows=1)
    assert plan_tasks(path, facts, [*files, clone], ["k"], 1) is None
    plain = filescan.can_arrow_read
    assert plain(facts, facts.fields)
    for feature in ("typeWidening", "variantType", "anything"):
        assert not plain(replace(facts, reader_features=frozenset({feature})), facts.fields)
    for feature in ("timestampNtz", "deletionVectors", "columnMapping"):
        assert plain(replace(facts, reader_features=frozenset({feature})), facts.fields)
    for mode in ("none", "name", "id"):
        mapped = replace(facts.metadata, configuration={"delta.columnMapping.mode": mode})
        assert plain(replace(facts, metadata=mapped), facts.fields) is (mode != "id")
    variant = DeltaField(name="x", type=Primitive("variant"))
    for type_ in (Struct((variant,)), Primitive("variant"), Primitive("interval")):
        assert not plain(facts, [replace(facts.fields[1], type=type_)])
    tenant = next(each for each in facts.fields if each.name == "tenant")
    assert not plain(facts, [replace(tenant, type=Primitive("timestamp"))])
    assert not plain(facts, [replace(tenant, padded=True)]), "CHAR(n)"


SIZES = st.lists(st.integers(0, 5 * filescan.BYTES_PER_TASK), max_size=30)


@given(SIZES, st.integers(1, 5))
def test_every_slice_goes_to_one_task_and_none_is_overloaded(sizes, least):
    files = [DataFile(path=f"{n}.parquet", bytes=size, rows=None) for n, size in enumerate(sizes)]
    slices = list(filescan._slice_files(files, ["k"]))
    tasks = filescan._deal_slices(slices, least)
    loads = {(each.path, each.number): size for size, each in slices}
    assert len(loads) == len(slices)
    assert Counter((each.path, each.number) for task in tasks for each in task) == Counter([*loads])
    assert {path for path, _ in loads} == {file.path for file in files}
    assert len(tasks) >= least
    heaviest = max(sum(loads[each.path, each.number] for each in task) for task in tasks)
    assert heaviest <= sum(loads.values()) / len(tasks) + max(loads.values(), default=0)
