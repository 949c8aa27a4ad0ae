"""Queries of a real ClickHouse through the schema: rows, conditions, orders, words, neighbours."""

import pytest

from support.lake.shop_indexes import ask


def found(client, arguments="", fields="id", token="of-both", field="shop_tickets"):
    answer = ask(client, f"{{ {field}{arguments} {{ {fields} }} }}", token)
    assert "errors" not in answer, answer
    return answer["data"][field]


def test_values_have_their_scalars_form(shop_client):
    fields = "customer id body price opened_at ratio photo v"
    rows = found(shop_client, fields=fields, token="of-all")
    assert rows == [
        {
            "customer": "acme",
            "id": "1",
            "body": "the printer is on fire",
            "price": "1.50",
            "opened_at": "1970-01-01T00:00:00.000000Z",
            "ratio": 0.5,
            "photo": "/wA=",
            "v": [1.0, 0.0],
        },
        {
            "customer": "acme",
            "id": "2",
            "body": "Fire drill",
            "price": "20.00",
            "opened_at": "2023-11-14T22:13:20.123456Z",
            "ratio": "NaN",
            "photo": None,
            "v": [0.0, 1.0],
        },
        {
            "customer": "acme",
            "id": "3",
            "body": None,
            "price": None,
            "opened_at": None,
            "ratio": None,
            "photo": "",
            "v": [0.6, 0.8],
        },
        {
            "customer": "globex",
            "id": "1",
            "body": "printer out of paper",
            "price": "-3.00",
            "opened_at": "1970-01-01T00:00:00.000001Z",
            "ratio": "Infinity",
            "photo": None,
            "v": [1.0, 0.1],
        },
        {
            "customer": "globex",
            "id": "9007199254740993",
            "body": "thanks",
            "price": "7.77",
            "opened_at": "1970-01-01T00:00:00.000002Z",
            "ratio": -0.0,
            "photo": None,
            "v": [0.0, -1.0],
        },
    ]


@pytest.mark.parametrize(
    ("where", "ids"),
    [
        ("{}", ["1", "2", "3", "1", "9007199254740993"]),
        ('{id: {_eq: "9007199254740993"}}', ["9007199254740993"]),
        ('{price: {_gt: "1.495", _lt: 7.77}}', ["1"]),
        ("{ratio: {_gte: 0.5}}", ["1", "2", "1"]),
        ("{_not: {body: {_is_null: true}}, id: {_nin: [1, 2]}}", ["9007199254740993"]),
        ('{_or: [{customer: {_eq: "globex"}}, {id: {_in: [3]}}]}', ["3", "1", "9007199254740993"]),
        ('{opened_at: {_gte: "2023-11-14T23:13:20+01:00"}}', ["2"]),
        ("{photo: {_is_null: false}}", ["1", "3"]),
        ("{body: {_eq: null}}", []),
    ],
)
def test_where(shop_client, where, ids):
    assert [row["id"] for row in found(shop_client, f"(where: {where})")] == ids


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
    assert [row["id"] for row in found(shop_client, f"({page})")] == ids


def test_words_and_neighbours_are_fields_of_their_indexes(shop_client):
    asked = '(words: "FIRE", where: {id: {_lt: "3"}})'
    assert [row["id"] for row in found(shop_client, asked, field="shop_tickets_text")] == ["1", "2"]
    asked = '(near: [1, 0], tenant: "acme", limit: 2)'
    rows = found(shop_client, asked, "id distance customer", field="shop_tickets_vector")
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
    ("token", "seen"),
    [("of-acme", {"acme"}), ("of-both", {"acme", "globex"}), ("of-none", set())],
)
def test_each_query_shows_the_tokens_tenants_alone(shop_client, token, seen):
    everything = '(where: {_or: [{}, {customer: {_neq: "acme"}}]})'
    rows = found(shop_client, everything, "customer", token=token)
    assert {row["customer"] for row in rows} == seen
    words = found(shop_client, '(words: "printer")', "customer", token, "shop_tickets_text")
    assert {row["customer"] for row in words} == seen


def test_neighbours_of_a_tenant_that_is_not_the_tokens_are_forbidden(shop_client):
    query = '{ shop_tickets_vector(near: [1, 0], tenant: "globex") { id } }'
    answer = ask(shop_client, query, "of-acme")
    assert answer["errors"][0]["extensions"] == {"code": "FORBIDDEN"}
    assert answer["data"] is None
