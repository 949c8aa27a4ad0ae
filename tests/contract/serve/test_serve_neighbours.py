"""Neighbours by GraphQL: live ones alone, as many as asked for, among what `where` selects."""

import pytest

from iscp_dagster import FullText, Vector
from iscp_dagster.clickhouse.connect.endpoint import Endpoint
from support.lake.row_writer import write
from support.lake.shop_indexes import Shop, ask, table_of

FAR = {"l2": lambda x, y: ((x - 5) ** 2 + (y - 5) ** 2) ** 0.5}


def row(number, body="text"):
    vector = [float(number % 97), float(number % 31)]
    return ("acme", number, body, "1.50", 0, 0.5, None, vector)


@pytest.fixture(scope="module")
def shop(clickhouse_url):
    """A thousand vectors, of which the nearest to (5, 5) were deleted."""
    made = Shop(Endpoint.parse(clickhouse_url), indexes=(Vector("v", dimension=2, metric="l2"),))
    (index,) = made.indexes
    rows = [row(number, ("even", "odd")[number % 2]) for number in range(1_000)]
    rows += [(*row(number, "bare")[:-1], None) for number in range(1_000, 1_200)]
    made.build(index, rows)
    gone = [number for number in range(1_000) if FAR["l2"](*row(number)[-1]) < 3]
    table = table_of([row(number) for number in gone], version=2)
    deleted = table.schema.get_field_index("_deleted")
    flags = [True] * len(gone)
    table = table.set_column(deleted, "_deleted", [flags])
    receipts = write(made.store(index), table, upto=2)
    assert not any(receipt.code for receipt in receipts), receipts
    made.live = sorted(set(range(1_000)) - set(gone))
    return made


def nearest(shop, arguments, k):
    asked = f'near: [5, 5], tenant: "acme", limit: {k}{arguments}'
    query = f"{{ {shop.database}_tickets_vector({asked}) {{ id distance }} }}"
    answer = ask(shop.client(), query)
    assert "errors" not in answer, answer
    (rows,) = answer["data"].values()
    return [(int(found["id"]), found["distance"]) for found in rows]


def brute_force(shop, k, selects=lambda _: True):
    measured = [(FAR["l2"](*row(number)[-1]), number) for number in shop.live if selects(number)]
    return [(number, pytest.approx(far)) for far, number in sorted(measured)[:k]]


@pytest.mark.parametrize("k", [1, 3, 10, 200])
def test_neighbours_are_live(shop, k):
    assert nearest(shop, "", k) == brute_force(shop, k)
    assert nearest(shop, ", where: {}", k) == brute_force(shop, k)


@pytest.mark.parametrize("k", [1, 5, 50])
def test_a_condition_holds_before_rows_are_counted(shop, k):
    odd = nearest(shop, ', where: {body: {_eq: "odd"}}', k)
    assert odd == brute_force(shop, k, lambda number: number % 2)
    late = nearest(shop, ', where: {id: {_gte: "900"}, _not: {body: {_eq: "odd"}}}', k)
    assert late == brute_force(shop, k, lambda number: number >= 900 and number % 2 == 0)


def test_a_row_without_a_vector_is_no_neighbour(shop):
    assert nearest(shop, ', where: {body: {_eq: "bare"}}', 5) == []
    assert [number for number, _ in nearest(shop, "", 1_000)] == [
        number for number, _ in brute_force(shop, 1_000)
    ]


def test_a_condition_that_selects_nothing_has_no_neighbours(shop):
    assert nearest(shop, ", where: {body: {_is_null: true}}", 5) == []


def test_words_are_folded_in_one_of_several_columns(clickhouse_url):
    made = Shop(Endpoint.parse(clickhouse_url), indexes=(FullText(["body", "customer"]),))
    texts = ["ΟΔΟΣ", "STRASSE", None, "plain"]
    made.build(made.indexes[0], [row(n, body) for n, body in enumerate(texts)])

    def words(said):
        query = f"query($w: String) {{ {made.database}_tickets_text(words: $w) {{ id }} }}"
        (rows,) = ask(made.client(), query, w=said)["data"].values()
        return [int(found["id"]) for found in rows]

    assert words("οδος") == [0]
    assert words("straße") == [1]
    assert words("ACME") == [0, 1, 2, 3]
    assert words("nothing") == []


@pytest.mark.parametrize(
    ("near", "said"),
    [
        ([], "near: the vector has 0 numbers, and the index's have 2."),
        ([5], "near: the vector has 1 number, and the index's have 2."),
        ([5, None], "Expected non-nullable type 'Float!' not to be None"),
    ],
)
def test_a_vector_that_is_none_of_the_index_is_refused(shop, near, said):
    field = f"{shop.database}_tickets_vector"
    query = f'query($near: [Float!]!) {{ {field}(near: $near, tenant: "acme") {{ id }} }}'
    (error,) = ask(shop.client(), query, near=near)["errors"]
    assert said in error["message"]
    assert error["extensions"] == {"code": "BAD_USER_INPUT"}
