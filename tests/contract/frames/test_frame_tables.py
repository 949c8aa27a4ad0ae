"""Frames in ClickHouse: replaced as a whole or by partition, by whoever comes, once or twice."""

import itertools
from dataclasses import replace
from datetime import date, datetime, timezone
from decimal import Decimal

import pyarrow as pa
import pytest

from iscp_dagster.clickhouse.connect.endpoint import ClickHouseEndpoint
from iscp_dagster.clickhouse.connect.failures import ClickHouseError
from iscp_dagster.clickhouse.tables.frames import STAGED, FrameTable
from iscp_dagster.model.errors import SchemaError, UnavailableError
from support.errors import raises_naming

NUMBERS = itertools.count()


@pytest.fixture
def table(clickhouse_url):
    return FrameTable(
        endpoint=ClickHouseEndpoint.parse(clickhouse_url),
        database=f"frames{next(NUMBERS)}",
        name="daily sums",
        partition="tenant",
        order_by=("day",),
    )


@pytest.fixture
def whole(table):
    """Return the table without partitions and order."""
    return replace(table, partition=None, order_by=())


def frame(*rows, **more):
    tenants, days, amounts = zip(*rows, strict=True) if rows else ((), (), ())
    return pa.table(
        {
            "tenant": pa.array(tenants, pa.string()),
            "day": pa.array(days, pa.date32()),
            "amount": pa.array(amounts, pa.int64()),
            **more,
        }
    )


def read_rows(table, columns="tenant, day, amount"):
    sql = f"SELECT {columns} FROM `{table.database}`.`{table.name}` ORDER BY ALL"
    return [tuple(row) for row in table.endpoint.get_client().query(sql).result_rows]


def list_staged(table):
    sql = f"SELECT name FROM system.tables WHERE database = '{table.database}'"
    rows = table.endpoint.get_client().query(sql).result_rows
    return [name for (name,) in rows if STAGED in name]


MONDAY, TUESDAY = date(2026, 11, 23), date(2026, 11, 24)
ACME = [("acme", MONDAY, 1), ("acme", TUESDAY, 2)]
ODD = [("o'dd \\ `tenant`", MONDAY, 3)]


def test_a_partition_is_replaced_and_the_others_stay(table):
    for _ in range(2):
        table.replace(frame(*ACME), partitions=["acme"], run_id="one")
    table.replace(frame(*ODD), partitions=[ODD[0][0]], run_id="two")
    assert read_rows(table) == sorted([*ACME, *ODD])
    table.replace(frame(ACME[1]), partitions=["acme"], run_id="three")
    assert read_rows(table) == sorted([ACME[1], *ODD])
    table.replace(frame(), partitions=["acme"], run_id="four")
    assert read_rows(table) == ODD
    assert list_staged(table) == []


def test_without_partitions_all_rows_and_columns_are_replaced(table):
    whole = replace(table, partition=None)
    whole.replace(frame(*ACME, *ODD), run_id="one")
    assert read_rows(whole) == sorted([*ACME, *ODD])
    whole.replace(pa.table({"day": pa.array(["x"])}), run_id="two")
    assert read_rows(whole, "*") == [("x",)]
    assert list_staged(whole) == []


def test_partitions_of_other_types_are_named_by_text(table):
    daily = replace(table, partition="day", order_by=())
    daily.replace(frame(*ACME), partitions=["2026-11-23", "2026-11-24"], run_id="one")
    daily.replace(frame(), partitions=["2026-11-24"], run_id="two")
    assert read_rows(daily) == ACME[:1]


def test_rows_of_another_partition_are_refused_and_change_nothing(table):
    table.replace(frame(*ACME), partitions=["acme"], run_id="one")
    with raises_naming(SchemaError, table.qualified_name, "'globex'", "'tenant'", "'acme'"):
        table.replace(frame(("globex", MONDAY, 9)), partitions=["acme"], run_id="two")
    assert read_rows(table) == ACME
    assert list_staged(table) == []


def test_a_column_that_is_new_is_added_and_one_of_another_type_refused(table):
    table.replace(frame(*ACME), partitions=["acme"], run_id="one")
    more = {"note": pa.array(["new"])}
    table.replace(frame(*ODD, **more), partitions=[ODD[0][0]], run_id="two")
    assert {row[-1] for row in read_rows(table, "*")} == {None, "new"}
    other = frame(*ODD).set_column(2, "amount", pa.array(["3"]))
    with raises_naming(SchemaError, "'amount'", "Nullable(Int64)", "Nullable(String)"):
        table.replace(other, partitions=[ODD[0][0]], run_id="three")
    with raises_naming(SchemaError, table.qualified_name, "'day'"):
        table.replace(pa.table({"tenant": ["acme"]}), partitions=["acme"], run_id="four")


def test_every_type_comes_as_it_was(whole):
    at = datetime(2026, 11, 27, 12, 0, 0, 123456, tzinfo=timezone.utc)
    values = {
        "u64": pa.array([2**64 - 1], pa.uint64()),
        "u32": pa.array([2**32 - 1], pa.uint32()),
        "money": pa.array([Decimal("12.50")], pa.decimal128(10, 2)),
        "at": pa.array([at], pa.timestamp("us", "UTC")),
        "word": pa.array(["x"], pa.string()).dictionary_encode(),
        "tags": pa.array([["a", None]], pa.list_(pa.string())),
        "sizes": pa.array([[("s", 1)]], pa.map_(pa.string(), pa.int64())),
        "place": pa.array([{"x": 1, "y": None}], pa.struct([("x", pa.int32()), ("y", pa.int32())])),
        "none": pa.array([None], pa.float64()),
    }
    whole.replace(pa.table(values), run_id="one")
    ((u64, u32, money, time, word, tags, sizes, place, none),) = read_rows(whole, "*")
    assert (int(u64), u32, money, word, none) == (2**64 - 1, 2**32 - 1, Decimal("12.50"), "x", None)
    assert (time.replace(tzinfo=timezone.utc), tags, sizes) == (at, ["a", None], {"s": 1})
    assert list(place.values() if isinstance(place, dict) else place) == [1, None]
    nanos = pa.table({"at": pa.array([1], pa.timestamp("ns"))})
    with raises_naming(SchemaError, "timestamp[ns]"):
        whole.replace(nanos, run_id="two")


def test_unsigned_numbers_within_others_keep_their_values(whole):
    lists = {
        "list": pa.list_(pa.uint8()),
        "large": pa.large_list(pa.uint16()),
        "pair": pa.list_(pa.uint32(), 2),
    }
    values = {name: pa.array([[200, 255]], type_) for name, type_ in lists.items()}
    values["place"] = pa.array([{"x": 255}], pa.struct([("x", pa.uint8())]))
    values["sizes"] = pa.array([[("s", [2**64 - 1])]], pa.map_(pa.string(), pa.list_(pa.uint64())))
    whole.replace(pa.table(values), run_id="one")
    assert read_rows(whole, "list, large, pair, place.x, sizes['s']") == [
        ([200, 255], [200, 255], [200, 255], 255, [Decimal(2**64 - 1)])
    ]
    # A map whose values are never null keeps its type.
    type_ = pa.map_(pa.string(), pa.field("value", pa.uint8(), nullable=False))
    whole.replace(pa.table({"sizes": pa.array([[("s", 200)]], type_)}), run_id="two")
    assert read_rows(whole, "toTypeName(sizes), sizes['s']") == [("Map(String, Int16)", 200)]


def test_what_cannot_be_loaded_is_an_error_of_clickhouse(table, whole):
    """Neither a table that does not exist nor one without the column of partitions."""
    for code in (81, 47):
        with raises_naming(ClickHouseError, code):
            table.load(["acme"])
        whole.replace(pa.table({"n": [1]}), run_id="one")


@pytest.mark.parametrize("zone", ["UTC", "Etc/UTC", "+00:00", "Europe/Berlin", "-05:30"])
def test_an_instant_is_the_same_in_every_time_zone(whole, zone):
    noon = datetime(2026, 11, 27, 12, tzinfo=timezone.utc)
    values = {"at": pa.array([noon], pa.timestamp("ms", zone))}
    values["each"] = pa.array([[noon]], pa.list_(pa.timestamp("us", zone)))
    whole.replace(pa.table(values), run_id="one")
    ((at, each),) = read_rows(whole, "toUnixTimestamp64Micro(at), toUnixTimestamp64Micro(each[1])")
    assert at == each == noon.timestamp() * 1_000_000


def test_a_column_without_values_has_the_type_that_the_table_has(table):
    table.replace(frame(*ACME), partitions=["acme"], run_id="one")
    nothing = frame(("acme", MONDAY, 7)).set_column(2, "amount", pa.nulls(1))
    table.replace(nothing, partitions=["acme"], run_id="two")
    assert read_rows(table) == [("acme", MONDAY, None)]
    empty = pa.table({name: pa.nulls(0) for name in ("tenant", "day", "amount")})
    table.replace(empty, partitions=["acme"], run_id="three")
    assert read_rows(table) == []
    with raises_naming(SchemaError, "'more'"):
        table.replace(frame(*ACME, more=pa.nulls(2)), partitions=["acme"], run_id="four")
    for bare in (pa.table({}), pa.table({"amount": pa.nulls(3)})):
        with raises_naming(SchemaError, "columns"):
            replace(table, partition=None).replace(bare, run_id="five")


@pytest.mark.parametrize("column", ["two words", "o'dd \\ `column`", "a.b", "7", "tag"])
def test_the_column_of_partitions_may_have_any_name_and_the_table_one_with_a_dot(table, column):
    named = replace(table, name=f"sums.{column[0]}", partition=column, order_by=())
    for amount in (1, 2):
        named.replace(pa.table({column: ["acme"], "n": [amount]}), partitions=["acme"], run_id="x")
    assert read_rows(named, "n") == [(2,)]


@pytest.mark.parametrize(("before", "named"), [(None, "nothing"), ("amount", "amount")])
def test_a_table_that_is_partitioned_otherwise_is_refused(table, before, named):
    replace(table, partition=before).replace(frame(*ACME), partitions=["1", "2"], run_id="one")
    with raises_naming(SchemaError, table.qualified_name, named, "`tenant`"):
        table.replace(frame(*ACME), partitions=["acme"], run_id="two")
    assert read_rows(table) == ACME


@pytest.mark.parametrize("partition", [None, "tenant"])
def test_what_is_no_table_of_rows_is_refused(table, partition):
    table.replace(frame(*ACME), partitions=["acme"], run_id="one")
    view = replace(table, name="a view", partition=partition)
    at = f"`{table.database}`"
    sql = f"CREATE VIEW {at}.`a view` AS SELECT * FROM {at}.`{table.name}`"
    table.endpoint.get_client().command(sql)
    with raises_naming(SchemaError, view.qualified_name, "View"):
        view.replace(frame(*ACME), partitions=["acme"], run_id="two")
    assert read_rows(view) == ACME


def test_a_run_may_write_more_partitions_than_an_insert_may(table):
    rows = [(f"t{number:03}", MONDAY, number) for number in range(150)]
    table.replace(frame(*rows), partitions=[tenant for tenant, *_ in rows], run_id="one")
    assert read_rows(table) == rows


def test_what_a_dead_attempt_staged_is_dropped_a_day_later(table, monkeypatch):
    table.replace(frame(*ACME), partitions=["acme"], run_id="one")
    left = f"`{table.database}`.`{table.name}{STAGED}r0_0`"
    table.endpoint.get_client().command(f"CREATE TABLE {left} AS `{table.database}`.`{table.name}`")
    table.replace(frame(*ACME), partitions=["acme"], run_id="two")
    assert len(list_staged(table)) == 1
    monkeypatch.setattr("iscp_dagster.clickhouse.tables.frames.LEFT_OVER_HOURS", -1)
    table.replace(frame(*ACME), partitions=["acme"], run_id="three")
    assert list_staged(table) == []


class KillError(BaseException):
    """The process is killed here."""


def test_a_write_that_is_killed_leaves_each_partition_whole(table, monkeypatch):
    """It is killed after each of its statements, and does nothing from then on."""
    run_command, partitions = FrameTable._run_command, ["acme", "globex"]
    old, new = ([(name, MONDAY, amount) for name in partitions] for amount in (1, 2))
    found = []
    for at in range(1, 7):
        statements = []

        def run_and_die(table, statement, at=at, statements=statements, **settings):
            if len(statements) < at:
                run_command(table, statement, **settings)
                statements.append(statement)
            if len(statements) == at:
                raise KillError

        if found[-1:] != [old]:
            table.replace(frame(*old), partitions=partitions, run_id="old")
        with monkeypatch.context() as patch:
            patch.setattr(FrameTable, "_run_command", run_and_die)
            with pytest.raises(KillError):
                table.replace(frame(*new), partitions=partitions, run_id="new")
        found.append(read_rows(table))
    # Database, table, staging table, then a partition each, then the staging table is dropped.
    assert found == [old, old, old, [new[0], old[1]], new, new]
    table.replace(frame(*new), partitions=partitions, run_id="heir")
    assert read_rows(table) == new


def test_a_server_that_is_away_is_an_error_of_its_own(table):
    away = replace(table, endpoint=ClickHouseEndpoint.parse("http://127.0.0.1:9"))
    with raises_naming(UnavailableError, away.endpoint.address):
        away.replace(frame(*ACME), partitions=["acme"], run_id="one")
