"""Columns, names and scalars of the schema, without a ClickHouse."""

import pytest
from graphql import print_schema

from iscp_dagster import FullText, Mirror, SourceTable, Vector
from iscp_dagster.clickhouse.connect.endpoint import ClickHouseEndpoint
from iscp_dagster.clickhouse.kinds.changes import Changes
from iscp_dagster.clickhouse.types.cells import CELLS
from iscp_dagster.clickhouse.types.type_parser import parse_type
from iscp_dagster.model.declared.tables import expand_shards
from iscp_dagster.model.errors import UnavailableError
from iscp_dagster.serve import catalog as catalogs
from iscp_dagster.serve.columns import _SCALARS_BY_TYPE, build_column, to_graphql_name
from iscp_dagster.serve.graph.schema import create_schema
from iscp_dagster.serve.scalars import SCALARS, BadValueError
from iscp_dagster.serve.web.requests import RefusedRequestError, choose_media_type
from runtime_support.growth import SLACK, time_growth
from support.errors import assert_names

HERE = ClickHouseEndpoint(host="nowhere", port=1)


def make_catalog(monkeypatch, tables, columns, unbuilt=()):
    """Return the catalog of tables whose views all have these columns."""

    def read_columns(wanted):
        return {(place, view): {} if view in unbuilt else columns for place, view in wanted}

    monkeypatch.setattr(catalogs, "_read_view_columns", read_columns)
    return catalogs.read_catalog(tables, [HERE], lambda *_: {"photo"})


def table(*indexes, name="shop.tickets"):
    return SourceTable(name, key="id", tenant="customer", indexes=list(indexes))


def test_every_type_that_an_index_can_have_has_a_scalar():
    names = {name for cells in CELLS.values() for cell in cells for name in cell.names}
    structures = {"Map", "Tuple", "Nested", "Dynamic", "Variant"}
    assert names | structures <= set(_SCALARS_BY_TYPE)
    assert build_column("a", parse_type("Array(Array(Nullable(Int64)))")).list_depth == 2
    assert build_column("a", parse_type("AggregateFunction(sum, Int8)")) is None


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("id", "id"),
        ("unit price", "unit_price"),
        ("größe", "gr__e"),
        ("1st", "_1st"),
        ("__x", "_x"),
        ("___", "_"),
        ("", "_"),
    ],
)
def test_names_are_mangled(name, field):
    assert to_graphql_name(name) == field


@pytest.mark.parametrize(
    ("columns", "fields", "values"),
    [
        ({"größe": "Int8", "grüße": "Int8"}, ["gr__e"], ["'grüße'", "'größe'"]),
        ({"a b": "Int8", "a.b": "Int8", "c": "Int8"}, ["a_b", "c"], ["'a.b'", "'a b'"]),
        ({"_and": "Int8", "c": "Int8"}, ["c"], ["'_and'", "condition"]),
    ],
)
def test_the_second_column_of_a_name_is_left_out(monkeypatch, columns, fields, values):
    tables = [table(Mirror()), table(Mirror(), name="shop.others")]
    catalog = make_catalog(monkeypatch, tables, {"id": "Int64", **columns})
    assert list(catalog.queries["shop_tickets"].by_field) == ["id", *fields]
    assert set(catalog.queries) == {"shop_tickets", "shop_others"}
    assert_names(catalog.notes[0], "shop_tickets", *values)


def test_many_columns_take_no_longer_each(monkeypatch):
    def serve(number):
        columns = dict.fromkeys(["id", *(f"c{n}" for n in range(number))], "Int64")
        return create_schema(make_catalog(monkeypatch, [table(Mirror())], columns))

    assert time_growth(serve, 200, 1_600) < 8 * SLACK


def test_a_key_that_is_left_out_still_orders_the_rows(monkeypatch):
    source = SourceTable("shop.tickets", key="grüße", indexes=[Mirror()])
    catalog = make_catalog(monkeypatch, [source], {"größe": "Int8", "grüße": "Int8"})
    assert [each.name for each in catalog.queries["shop_tickets"].identity_columns] == ["grüße"]


@pytest.mark.parametrize(
    ("tables", "fields"),
    [
        ((table(Mirror(), name="a_b.c"), table(Mirror(), name="a.b_c")), {"a_b_c"}),
        ((table(Mirror(), name="a.b_c"), table(Mirror(name="c"), name="a.b")), {"a_b_c"}),
        ((table(Changes(), name="a.b_c"), table(Mirror(), name="a_b.c")), {"a_b_c"}),
        ((table(Mirror(), Changes(name="b_c"), name="a.b_c"),), {"a_b_c"}),
        ((table(FullText("x", name="c"), Changes(name="b_c"), name="a.b"),), {"a_b_c"}),
        ((table(Mirror(), name="a.b"), table(Mirror(), name="a.b_bool_exp")), {"a_b"}),
        ((table(Changes(), name="a.b"), table(Mirror(), name="a.b_change")), {"a_b"}),
        ((table(Mirror(), name="Int.comparison_exp"), table(Mirror(), name="a.b")), {"a_b"}),
        ((table(Mirror(), name="order.by"), table(Mirror(), name="a.b")), {"a_b"}),
        ((table(Mirror(), name="_.tables"), table(Mirror(), name="a.b")), {"a_b"}),
    ],
)
def test_the_second_index_or_type_of_a_name_is_left_out(monkeypatch, tables, fields):
    catalog = make_catalog(monkeypatch, [*tables, table(Mirror(), name="z.z")], {"id": "Int64"})
    assert set(catalog.queries) == {*fields, "z_z"}
    (note,) = catalog.notes
    assert note in print_schema(create_schema(catalog))


def test_a_name_stays_with_the_first_declared_while_that_is_not_built(monkeypatch):
    built = set()
    tables = [table(FullText("body"), name="shop.a_b"), table(Mirror(name="text"), name="shop_a.b")]

    def read_columns(_, views):
        return {view: {"id": "Int64"} if view in built else {} for view in views}

    monkeypatch.setattr(catalogs, "_read_shard_columns", read_columns)
    for view, owners in (("b_text", set()), ("a_b_text", {"shop.a_b"})):
        built.add(view)
        catalog = catalogs.read_catalog(tables, [HERE], lambda *_: ())
        assert {each.source.name for each in catalog.queries.values()} == owners
        assert catalog.unbuilt == {"shop_a_b_text"} - set(catalog.queries)


def test_a_server_that_does_not_answer_stops_no_index_of_another(monkeypatch):
    def read_columns(place, views):
        if place.endpoint.host in silent:
            raise UnavailableError("no answer")
        return {view: {"id": "Int64"} for view in views}

    def read_catalog(*before):
        return catalogs.read_catalog(tables, endpoints, lambda *_: (), *before)

    monkeypatch.setattr(catalogs, "_read_shard_columns", read_columns)
    tables = [
        expand_shards(table(Mirror(sharding={"hash_function": "cityHash64", "key": ["id"]})), 2),
        table(Mirror(), name="z.z"),
    ]
    endpoints, silent = (HERE, ClickHouseEndpoint(host="second", port=1)), {"second"}
    catalog = read_catalog()
    assert (set(catalog.queries), catalog.unbuilt) == ({"z_z"}, {"shop_tickets"})
    (note,) = catalog.notes
    assert_names(note, "shop_tickets", "ClickHouse")
    silent.clear()
    whole = read_catalog()
    silent.add("second")
    assert read_catalog(whole).queries == whole.queries
    silent.add("nowhere")
    with pytest.raises(UnavailableError):
        read_catalog(whole)


def test_system_columns_and_timestamps_are_no_data(monkeypatch):
    columns = {"id": "Int64", "_version": "UInt64", "_deleted": "UInt8", "ts_timestamp": "Int64"}
    columns |= {"sums": "AggregateFunction(sum, Int8)"}
    catalog = make_catalog(monkeypatch, [table(Mirror())], columns)
    assert list(catalog.queries["shop_tickets"].by_field) == ["id"]
    timestamp, sums = catalog.notes
    assert_names(timestamp, "shop_tickets", "'ts_timestamp'")
    assert_names(sums, "shop_tickets", "'sums'", "AggregateFunction(sum, Int8)")


def test_a_table_without_a_mirror_is_read_from_its_changes(monkeypatch):
    tables = [table(Changes(), Changes(name="big"))]
    catalog = make_catalog(monkeypatch, tables, {"id": "Int64"})
    views = {name: each.view for name, each in catalog.queries.items()}
    assert views == {"shop_tickets": "tickets_changes", "shop_big": "tickets_big"}
    assert set(catalog.changes) == {"shop_tickets", "shop_big"}


def test_an_index_that_is_not_built_is_noted(monkeypatch):
    tables = [table(Mirror(), FullText("body"), Vector("v", dimension=2))]
    catalog = make_catalog(monkeypatch, tables, {"id": "Int64"}, unbuilt={"tickets_text"})
    assert catalog.unbuilt == {"shop_tickets_text"}
    assert set(catalog.queries) == {"shop_tickets", "shop_tickets_vector"}
    (note,) = catalog.unbuilt_notes
    assert_names(note, "shop.tickets/text")
    assert catalog.notes == ()


@pytest.mark.parametrize(
    ("scalar", "wrong"),
    [
        ("Int64", [1.5, "1.5", "", True, "0x1", "9" * 81]),
        ("Float64", ["1.5", True, 10**400, "null", float("inf"), float("nan")]),
        ("Decimal", ["NaN", "1e999", "one", True, "9" * 200]),
        ("Date", ["2024-1-1", "2024-02-30", 1, "20240101", "2024-01-01T00"]),
        (
            "Timestamp",
            ["2024-01-01", "2024-01-01T25:00:00Z", "now", 1, "2024-01-01T00:00:00.0000000000Z"],
        ),
        ("UUID", ["x", "12345678123412341234123456789abc", 1]),
        ("String", ["\ud800", 1]),
    ],
)
def test_a_wrong_literal_is_refused(scalar, wrong):
    for value in wrong:
        with pytest.raises(BadValueError):
            SCALARS[scalar].parse(value)


def test_a_timestamp_without_a_zone_is_in_utc():
    parse = SCALARS["Timestamp"].parse
    assert parse("1970-01-01T00:00:00") == parse("1970-01-01 01:30+01:30") == 0
    assert parse("1969-12-31T22:00:00.000000001-02:00") == 1


@pytest.mark.parametrize("accept", ["text/html", "application/json;q=0", "application/xml, */json"])
def test_a_client_that_reads_no_media_type_of_ours_is_refused(accept):
    with pytest.raises(RefusedRequestError):
        choose_media_type(accept)
