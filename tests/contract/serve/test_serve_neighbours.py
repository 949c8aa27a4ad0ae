"""Neighbours by GraphQL: only live ones, as many as requested, among what `where` selects."""

import pytest

from iscp_dagster import FullText, Vector
from iscp_dagster.clickhouse.connect.endpoint import ClickHouseEndpoint
from support.errors import assert_names
from support.lake.row_writer import write
from support.lake.shop_indexes import Shop, ask, table_of


def vector_of(number):
    return [float(number % 97), float(number % 31)]


def row(number, body="text"):
    return ("acme", number, body, "1.50", 0, 0.5, None, vector_of(number))


def measure(number):
    """Return how far a row's vector is from (5, 5)."""
    x, y = vector_of(number)
    return ((x - 5) ** 2 + (y - 5) ** 2) ** 0.5


@pytest.fixture(scope="module")
def shop(clickhouse_url):
    """A thousand vectors, of which the nearest to (5, 5) were deleted."""
    shop = Shop(
        ClickHouseEndpoint.parse(clickhouse_url), indexes=(Vector("v", dimension=2, metric="l2"),)
    )
    (index,) = shop.indexes
    rows = [row(number, ("even", "odd")[number % 2]) for number in range(1_000)]
    rows += [(*row(number, "bare")[:-1], None) for number in range(1_000, 1_200)]
    shop.build(index, rows)
    deleted = [number for number in range(1_000) if measure(number) < 3]
    table = table_of([row(number) for number in deleted], version=2)
    flags = [True] * len(deleted)
    table = table.set_column(table.schema.get_field_index("_deleted"), "_deleted", [flags])
    receipts = write(shop.store(index), table, upto=2)
    assert not any(receipt.code for receipt in receipts), receipts
    shop.live = sorted(set(range(1_000)) - set(deleted))
    return shop


def nearest(shop, arguments, k):
    arguments = f'near: [5, 5], tenant: "acme", limit: {k}{arguments}'
    query = f"{{ {shop.database}_tickets_vector({arguments}) {{ id distance }} }}"
    answer = ask(shop.client(), query)
    assert "errors" not in answer, answer
    (rows,) = answer["data"].values()
    return [(int(row["id"]), row["distance"]) for row in rows]


def brute_force(shop, k, selects=lambda _: True):
    distances = [(measure(number), number) for number in shop.live if selects(number)]
    return [(number, pytest.approx(distance)) for distance, number in sorted(distances)[:k]]


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
    assert nearest(shop, ", where: {body: {_is_null: true}}", 5) == []
    assert nearest(shop, ', where: {body: {_eq: "bare"}}', 5) == []
    numbers = [number for number, _ in nearest(shop, "", 1_000)]
    assert numbers == [number for number, _ in brute_force(shop, 1_000)]


def test_words_are_folded_in_one_of_several_columns(clickhouse_url):
    shop = Shop(ClickHouseEndpoint.parse(clickhouse_url), indexes=(FullText(["body", "customer"]),))
    texts = ["ΟΔΟΣ", "STRASSE", None, "plain"]
    shop.build(shop.indexes[0], [row(number, body) for number, body in enumerate(texts)])

    def search(words):
        query = f"query($w: String) {{ {shop.database}_tickets_text(words: $w) {{ id }} }}"
        (rows,) = ask(shop.client(), query, w=words)["data"].values()
        return [int(row["id"]) for row in rows]

    assert search("οδος") == [0]
    assert search("straße") == [1]
    assert search("ACME") == [0, 1, 2, 3]
    assert search("nothing") == []


@pytest.mark.parametrize(
    ("near", "values"),
    [([], ["near", 0, 2]), ([5], ["near", 1, 2]), ([5, None], ["Float!", "None"])],
)
def test_a_vector_that_does_not_fit_the_index_is_refused(shop, near, values):
    field = f"{shop.database}_tickets_vector"
    query = f'query($near: [Float!]!) {{ {field}(near: $near, tenant: "acme") {{ id }} }}'
    (error,) = ask(shop.client(), query, near=near)["errors"]
    assert error["extensions"] == {"code": "BAD_USER_INPUT"}
    assert_names(error["message"], *values)
