"""Queries of a real ClickHouse through the schema: rows, conditions, orders, words, neighbours."""

import pytest

from support.lake.shop_indexes import ask


def read_rows(client, arguments="", fields="id", token="of-both", field="shop_tickets"):
    answer = ask(client, f"{{ {field}{arguments} {{ {fields} }} }}", token)
    assert "errors" not in answer, answer
    return answer["data"][field]


def test_values_have_the_form_of_their_scalars(shop_client):
    fields = "id body price opened_at ratio photo v customer"
    rows = read_rows(shop_client, fields=fields, token="of-all")
    epoch = "1970-01-01T00:00:00.00000"
    assert [tuple(row.values())[:-1] for row in rows] == [
        ("1", "the printer is on fire", "1.50", f"{epoch}0Z", 0.5, "/wA=", [1.0, 0.0]),
        ("2", "Fire drill", "20.00", "2023-11-14T22:13:20.123456Z", "NaN", None, [0.0, 1.0]),
        ("3", None, None, None, None, "", [0.6, 0.8]),
        ("1", "printer out of paper", "-3.00", f"{epoch}1Z", "Infinity", None, [1.0, 0.1]),
        ("9007199254740993", "thanks", "7.77", f"{epoch}2Z", -0.0, None, [0.0, -1.0]),
    ]
    assert [row["customer"] for row in rows] == ["acme"] * 3 + ["globex"] * 2


@pytest.mark.parametrize(
    ("where", "ids"),
    [
        ("{}", ["1", "2", "3", "1", "9007199254740993"]),
        ('{id: {_eq: "9007199254740993"}}', ["9007199254740993"]),
        ('{price: {_gt: "1.495", _lt: 7.77}}', ["1"]),
        ("{_not: {body: {_is_null: true}}, id: {_nin: [1, 2]}}", ["9007199254740993"]),
        ('{_or: [{customer: {_eq: "globex"}}, {id: {_in: [3]}}]}', ["3", "1", "9007199254740993"]),
        ('{opened_at: {_gte: "2023-11-14T23:13:20+01:00"}}', ["2"]),
        ("{photo: {_is_null: false}}", ["1", "3"]),
    ],
)
def test_where(shop_client, where, ids):
    assert [row["id"] for row in read_rows(shop_client, f"(where: {where})")] == ids


@pytest.mark.parametrize(
    ("page", "ids"),
    [
        ("order_by: {price: asc}, limit: 2", ["1", "1"]),
        ("order_by: {price: desc}, limit: 2", ["3", "2"]),
        ("order_by: [{ratio: desc_nulls_last}], limit: 2", ["2", "1"]),
        ("order_by: [{customer: desc}, {id: desc}], offset: 1, limit: 2", ["1", "3"]),
        ("limit: 0", []),
        ("offset: 4", ["9007199254740993"]),
    ],
)
def test_order_and_page(shop_client, page, ids):
    assert [row["id"] for row in read_rows(shop_client, f"({page})")] == ids


def test_words_and_neighbours_are_fields_of_their_indexes(shop_client):
    arguments = '(words: "FIRE", where: {id: {_lt: "3"}})'
    rows = read_rows(shop_client, arguments, field="shop_tickets_text")
    assert [row["id"] for row in rows] == ["1", "2"]
    arguments = '(near: [1, 0], tenant: "acme", limit: 2)'
    rows = read_rows(shop_client, arguments, "id distance customer", field="shop_tickets_vector")
    assert [row["id"] for row in rows] == ["1", "3"]
    assert [row["distance"] for row in rows] == pytest.approx([0, 0.4], abs=0.01)


def test_variables_fragments_and_aliases(shop_client):
    query = """query Mine($where: shop_tickets_bool_exp, $most: Int = 1) {
      first: shop_tickets(where: $where, limit: $most) { ...parts }
      all: shop_tickets(where: $where) { ... on shop_tickets { number: id } }
    } fragment parts on shop_tickets { id __typename }"""
    answer = ask(shop_client, query, "of-acme", where={"price": {"_is_null": False}})
    assert answer["data"] == {
        "first": [{"id": "1", "__typename": "shop_tickets"}],
        "all": [{"number": "1"}, {"number": "2"}],
    }


@pytest.mark.parametrize(
    ("token", "tenants"),
    [("of-acme", {"acme"}), ("of-both", {"acme", "globex"}), ("of-none", set())],
)
def test_each_query_shows_the_tokens_tenants_alone(shop_client, token, tenants):
    everything = '(where: {_or: [{}, {customer: {_neq: "acme"}}]})'
    rows = read_rows(shop_client, everything, "customer", token=token)
    assert {row["customer"] for row in rows} == tenants
    rows = read_rows(shop_client, '(words: "printer")', "customer", token, "shop_tickets_text")
    assert {row["customer"] for row in rows} == tenants


def test_neighbours_of_a_tenant_that_the_token_lacks_are_forbidden(shop_client):
    query = '{ shop_tickets_vector(near: [1, 0], tenant: "globex") { id } }'
    answer = ask(shop_client, query, "of-acme")
    assert answer["errors"][0]["extensions"] == {"code": "FORBIDDEN"}
    assert answer["data"] is None
