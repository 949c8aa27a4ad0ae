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
from iscp_dagster.model.declared.schema import Array, DeltaField, Primitive, Struct
from iscp_dagster.model.errors import FeedGoneError, SourceError, UnavailableError

LONG = Primitive("long")
LONGS = Array(element=LONG)
TENANTS = ("a", "b c", "d/e%20é'\"", "名\\n", "100%41")


def table_of(values, keys=4):
    return pa.table(
        {
            "tenant": [value for value in values for _ in range(keys)],
            "k": list(range(keys)) * len(values),
            "v": [[0.5, float(key)] for key in range(keys)] * len(values),
        }
    )


def write(folder, rows, by=("tenant",), **options):
    write_deltalake(Path(folder).as_uri(), rows, partition_by=list(by), mode="append", **options)
    return str(folder)


def scan_of(path, *, tenants=TENANTS, tenant="tenant", columns=("tenant", "k", "v"), least=2):
    log = DeltaLog(path, tenant)
    version = log.get_latest_moment().version
    files = log.list_data_files(version, frozenset(tenants))
    return plan_tasks(path, log.get_facts(version), files, columns, least)


def read(scan):
    scan = pickle.loads(pickle.dumps(scan))
    numbers = [pa.record_batch({"id": [number]}) for number in range(len(scan.tasks))]
    return sorted(map(str, pa.Table.from_batches(list(scan.read_batches(numbers))).to_pylist()))


def expected(path, wanted=TENANTS, columns=("tenant", "k", "v")):
    rows = pa.table(DeltaTable(Path(path).as_uri()).to_pyarrow_table()).select(list(columns))
    return sorted(str(row) for row in rows.to_pylist() if row.get("tenant") in wanted)


def test_tenants_of_any_name_are_read(tmp_path):
    path = write(tmp_path / "a b#", table_of(TENANTS))
    assert read(scan_of(path)) == expected(path)
    assert len(expected(path)) == 4 * len(TENANTS)
    some = TENANTS[1:3]
    assert read(scan_of(path, tenants=some)) == expected(path, some)


def test_a_table_without_tenants_and_without_rows(tmp_path):
    path = write(tmp_path / "t", table_of(["x"]).slice(0, 0), by=())
    scan = scan_of(path, tenants={"default"}, tenant=None, least=1)
    assert [len(task) for task in scan.tasks] == [0]
    assert list(scan.read_batches([pa.record_batch({"id": [0]})])) == []


def test_a_column_that_came_later_is_null_before(tmp_path):
    path = write(tmp_path / "t", table_of(["a"]))
    more = table_of(["a"]).append_column("later", pa.array([1, 2, 3, 4]))
    write(path, more, schema_mode="merge")
    columns = ("tenant", "later", "k")
    assert read(scan_of(path, columns=columns)) == expected(path, columns=columns)


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
    rows = table_of(values).set_column(
        0, "tenant", pa.array([value for value in values for _ in range(4)], type_)
    )
    rows = rows.append_column("day", pa.array(["x", None] * 4))
    path = write(tmp_path / "t", rows, by=("tenant", "day"))
    named = {str(value).lower() for value in values}
    for columns in (("tenant", "k"), ("k", "day", "tenant")):
        scan = scan_of(path, tenants=named, columns=columns)
        assert read(scan) == expected(path, values, columns)


FAR = pa.array([3_789_482, -800_000, 0, None], pa.int32())
"""Days since 1970: in the years 12345 and -221, outside Python's dates, and one within them."""
FAR_TEXTS = ("+12345-04-02", "-0221-09-04", "1970-01-01")


def test_a_date_that_python_cannot_hold_stops_no_other_tenant_or_column(tmp_path):
    rows = table_of(["a", "b"], keys=2).append_column("day", FAR.cast(pa.date32()))
    path = write(tmp_path / "t", rows, by=("tenant", "day"))
    for columns in (("tenant", "k", "v"), ("k",)):
        assert read(scan_of(path, tenants="ab", columns=columns)) == sorted(
            str({name: row[name] for name in columns}) for row in table_of("ab", 2).to_pylist()
        )
    shown = ("tenant", "day")
    assert scan_of(path, tenants="a", columns=shown) is None
    assert read(scan_of(path, tenants="b", columns=shown)) == sorted(
        str({"tenant": "b", "day": day}) for day in (date(1970, 1, 1), None)
    )
    assert sorted(DeltaLog(path, "tenant").get_tenant_sizes()) == ["a", "b"]


def test_tenants_that_are_dates_of_any_year_are_told_by_their_text(tmp_path):
    rows = pa.table({"day": FAR.cast(pa.date32()), "k": [1, 2, 3, 4]})
    path = write(tmp_path / "t", rows, by=("day",))
    log = DeltaLog(path, "day")
    assert log.list_tenants() == sorted(FAR_TEXTS)
    assert log.list_changed_tenants(-1, 0) == set(log.get_tenant_sizes()) == set(FAR_TEXTS)
    for number, text in enumerate(FAR_TEXTS, start=1):
        assert len(log.list_data_files(0, {text})) == 1
        scan = scan_of(path, tenants={text}, tenant="day", columns=("k",))
        assert read(scan) == [str({"k": number})]
    assert scan_of(path, tenants=FAR_TEXTS, tenant="day", columns=("day", "k")) is None


def test_an_empty_text_that_spark_reads_as_such_is_left_to_it(tmp_path):
    rows = table_of(["a", "b"], keys=2).append_column("q", pa.array(["", "x", "y", "z"]))
    path = write(tmp_path / "t", rows, by=("tenant", "q"))
    shown = ("tenant", "q", "k")
    assert scan_of(path, columns=shown) is None
    assert read(scan_of(path, tenants="b", columns=shown)) == expected(path, ("b",), shown)
    assert read(scan_of(path)) == expected(path)


def test_an_empty_text_is_no_tenant(tmp_path):
    path = write(tmp_path / "t", table_of(["a", ""]))
    assert read(scan_of(path, tenants=("a", ""))) == expected(path, ("a",))
    assert DeltaLog(path, "tenant").get_unnamed_size().files == 1


def test_large_files_are_read_in_shares(tmp_path, monkeypatch):
    groups = WriterProperties(max_row_group_size=1_000)
    path = write(tmp_path / "t", table_of(["a"], keys=4_000), writer_properties=groups)
    file = next(Path(path).rglob("*.parquet"))
    assert pq.ParquetFile(file).num_row_groups == 4
    monkeypatch.setattr(filescan, "BYTES_PER_TASK", file.stat().st_size // 3 + 1)
    scan = scan_of(path, least=1)
    assert sorted(share.part for task in scan.tasks for share in task) == [0, 1, 2]
    assert len(scan.tasks) == 3
    assert read(scan) == expected(path)


def test_a_file_that_vacuum_took(tmp_path):
    path = write(tmp_path / "t", table_of(["a"]))
    scan = scan_of(path)
    next(Path(path).rglob("*.parquet")).unlink()
    with pytest.raises(FeedGoneError, match=r"parquet is gone"):
        read(scan)


def test_a_file_that_is_broken(tmp_path):
    path = write(tmp_path / "t", table_of(["a"]))
    next(Path(path).rglob("*.parquet")).write_bytes(b"PAR1 and no more")
    with pytest.raises(SourceError, match=r"parquet cannot be read.*Restore the file"):
        read(scan_of(path))


def test_a_file_that_the_system_refuses_is_tried_again(tmp_path):
    path = write(tmp_path / "t", table_of(["a"]))
    scan = scan_of(path)
    file = next(Path(path).rglob("*.parquet"))
    file.unlink()
    file.symlink_to(file.name)
    with pytest.raises(UnavailableError, match="cannot be read now"):
        read(scan)


def test_a_file_that_spark_would_read_otherwise_is_left_to_spark(tmp_path):
    rows = table_of(["a"]).append_column("day", pa.array([date(1500, 1, 1)] * 4))
    path = write(tmp_path / "t", rows)
    columns = ("tenant", "k", "day")
    assert read(scan_of(path, columns=columns)) == expected(path, columns=columns)
    without_times = expected(path)
    file = next(Path(path).rglob("*.parquet"))
    held = pq.ParquetFile(file).read()
    pq.write_table(held.rename_columns(["K", "v", "day"]), file)
    with pytest.raises(NotPlainError, match="'k' in another case"):
        read(scan_of(path, columns=columns))
    pq.write_table(held.replace_schema_metadata({"org.apache.spark.legacyDateTime": ""}), file)
    with pytest.raises(NotPlainError, match="times of the old calendar"):
        read(scan_of(path, columns=columns))
    assert read(scan_of(path)) == without_times


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
    ("written_by", "refused"),
    [
        ("2.4.8", OLD),
        ("3.0.3", {"int96", "int96s"}),
        ("3.1.0", set()),
        ("4.2.0", set()),
        ("10.0.1", set()),
        (None, set()),
    ],
)
def test_times_of_sparks_with_the_old_calendar_are_left_to_spark(
    tmp_path, kind, written_by, refused
):
    value, type_ = TIMES[kind]
    path = write(tmp_path / "t", table_of(["a"], 1).append_column("x.y", pa.array([value], type_)))
    columns = ("tenant", "k", "x.y")
    shown = expected(path, columns=columns)
    file = next(Path(path).rglob("*.parquet"))
    held = pq.ParquetFile(file).read()
    said = {"org.apache.spark.version": written_by} if written_by else {}
    rows = held.replace_schema_metadata(said)
    pq.write_table(rows, file, use_deprecated_int96_timestamps=kind.startswith("int96"))
    scan = scan_of(path, columns=columns)
    if kind in refused:
        with pytest.raises(NotPlainError, match="times of the old calendar"):
            read(scan)
    else:
        assert read(scan) == shown
    assert len(read(scan_of(path, columns=("k", "tenant")))) == 1, "no times are read"


@pytest.mark.parametrize(
    ("type_", "held"),
    [
        ("string", pa.array([7], pa.int32())),
        ("integer", pa.array([True])),
        ("integer", pa.array([7], pa.int64())),
        ("date", pa.array([0], pa.timestamp("us"))),
        ("float", pa.array([1e300])),
    ],
)
def test_values_that_arrow_would_cast_and_spark_refuses_are_left_to_spark(tmp_path, type_, held):
    with pytest.raises(NotPlainError, match=f"stores {type_} as {held.type}".replace("[", r"\[")):
        read(nested(tmp_path / "t", "v", held, Primitive(type_)))


@pytest.mark.parametrize("rewrite", ["update", "delete"])
def test_what_delta_rs_writes_anew_is_read_too(tmp_path, rewrite):
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
    where = "k = 3"
    if rewrite == "update":
        DeltaTable(path).update({"text": "'other'"}, predicate=where)
    else:
        DeltaTable(path).delete(where)
    (file,) = (Path(path, each) for each in DeltaTable(path).file_uris())
    assert "view" in str(pq.ParquetFile(file).schema_arrow)
    columns = tuple(rows.column_names)
    assert read(scan_of(path, columns=columns)) == expected(path, columns=columns)


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
    ],
)
def test_values_are_read_whatever_layout_arrow_has_for_them(tmp_path, type_, values, stored):
    wanted = Primitive(type_) if isinstance(type_, str) else type_
    scan = nested(tmp_path / "t", "v", pa.array(values, to_arrow_type(wanted)), wanted)
    file = next((tmp_path / "t").rglob("*.parquet"))
    held = pa.table({"v": pa.array(values, stored)})
    pq.write_table(held, file)
    found = read(scan)
    assert found == sorted(str({"v": value, "tenant": "a"}) for value in values)


def test_two_columns_that_case_alone_tells_apart_are_left_to_spark(tmp_path):
    path = write(tmp_path / "t", table_of(["a"]))
    file = next(Path(path).rglob("*.parquet"))
    held = pq.ParquetFile(file).read()
    pq.write_table(held.append_column("V", held["v"]), file)
    with pytest.raises(NotPlainError, match="'v' in another case"):
        read(scan_of(path))


def nested(path, name, column, type_, **more):
    """Return the scan of one file whose column `name` was later declared as `type_`."""
    rows = pa.table({"tenant": ["a"] * len(column), name: column})
    write(path, rows)
    log = DeltaLog(str(path), "tenant")
    facts = log.get_facts()
    fields = [
        replace(each, type=type_, **more) if each.name == name else each for each in facts.fields
    ]
    found = replace(facts, fields=tuple(fields))
    return plan_tasks(
        str(path), found, log.list_data_files(0, TENANTS), [fields[1].name, "tenant"], 1
    )


def test_a_struct_that_gained_and_lost_fields_since(tmp_path):
    inner = (DeltaField(name="new", type=Primitive("string")), DeltaField(name="b", type=LONG))
    column = pa.array([{"a": 1, "b": 2}, None, {"a": None, "b": None}])
    scan = nested(tmp_path / "t", "s", column, Struct(inner))
    assert read(scan) == sorted(
        str({"s": value, "tenant": "a"})
        for value in ({"new": None, "b": 2}, None, {"new": None, "b": None})
    )


def test_a_column_that_is_stored_under_another_name(tmp_path):
    scan = nested(tmp_path / "t", "k", pa.array([1, 2]), LONG, physical="k")
    renamed = replace(scan.files.fields[0], name="shown", physical="k")
    files = replace(scan.files, fields=(renamed, scan.files.fields[1]))
    assert read(replace(scan, files=files)) == [
        str({"shown": number, "tenant": "a"}) for number in (1, 2)
    ]


def test_rows_that_a_deletion_vector_has_are_not_there(tmp_path, monkeypatch):
    monkeypatch.setattr(filescan, "SCANNING", {**filescan.SCANNING, "batch_size": 3})
    path = write(tmp_path / "t", table_of(["a"], keys=10))
    log = DeltaLog(path, "tenant")
    gone = array("q", [0, 2, 3, 9]).tobytes()
    files = [replace(each, deleted=gone) for each in log.list_data_files(0, TENANTS)]
    scan = plan_tasks(path, log.get_facts(), files, ["tenant", "k"], 2)
    numbers = [pa.record_batch({"id": [number]}) for number in range(len(scan.tasks))]
    found = pa.Table.from_batches(list(scan.read_batches(numbers)))
    assert found["k"].to_pylist() == [1, 4, 5, 6, 7, 8]
    assert set(found["tenant"].to_pylist()) == {"a"}


@pytest.mark.parametrize(
    ("held", "wrong"),
    [({"B": 2}, "has 'b' in another case"), ({"c": 3}, "has a struct without any of its fields")],
)
def test_a_struct_that_spark_would_read_otherwise_is_left_to_spark(tmp_path, held, wrong):
    fields = (DeltaField(name="a", type=LONG), DeltaField(name="b", type=LONG))
    first = {"a": 1} if "B" in held else {}
    for number, (column, type_) in enumerate(
        [
            (pa.array([first | held]), Struct(fields)),
            (pa.array([[first | held]]), Array(element=Struct(fields))),
        ]
    ):
        with pytest.raises(NotPlainError, match=wrong):
            read(nested(tmp_path / str(number), "s", column, type_))


def test_what_spark_must_read(tmp_path):
    path = write(tmp_path / "t", table_of(["a"]))
    log = DeltaLog(path, "tenant")
    facts = log.get_facts()
    files = log.list_data_files(0, TENANTS)
    assert plan_tasks(path, facts, files, ["k"], 1) is not None
    assert plan_tasks("gs://bucket/t", facts, files, ["k"], 1) is None
    vectors = replace(facts, reader_features=frozenset({"deletionVectors"}))
    assert plan_tasks(path, vectors, files, ["k"], 1) is None, "nobody looked for vectors"
    clone = DataFile(path="file:///elsewhere/x.parquet", bytes=1, rows=1)
    assert plan_tasks(path, facts, [*files, clone], ["k"], 1) is None


def test_only_plain_tables_are_read_so(tmp_path):
    path = write(tmp_path / "t", table_of(["a"]))
    facts = DeltaLog(path, "tenant").get_facts()
    plain = filescan.is_plain
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
def test_every_share_goes_to_one_task_and_none_is_overloaded(sizes, least):
    files = [DataFile(path=f"{n}.parquet", bytes=size, rows=None) for n, size in enumerate(sizes)]
    sized = list(filescan._slice_files(files, ["k"]))
    tasks = filescan._deal_slices(sized, least)
    dealt = Counter((share.path, share.part) for task in tasks for share in task)
    assert dealt == Counter((share.path, share.part) for _, share in sized)
    assert set(dealt.values()) <= {1}
    assert {path for path, _ in dealt} == {each.path for each in files}
    assert len(tasks) >= least
    loads = {(share.path, share.part): size for size, share in sized}
    heaviest = max(sum(loads[share.path, share.part] for share in task) for task in tasks)
    assert heaviest <= sum(loads.values()) / len(tasks) + max(loads.values(), default=0)
