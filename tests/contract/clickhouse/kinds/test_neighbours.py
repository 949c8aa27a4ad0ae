"""Neighbours of a vector: whatever a query selects, k live rows, measured as NumPy measures."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from clickhouse_connect.driver.exceptions import DatabaseError

from iscp_dagster import Vector
from iscp_dagster.clickhouse.connect.endpoint import ClickHouseEndpoint
from iscp_dagster.model.declared.schema import Array, Primitive
from support.errors import assert_names
from support.lake.row_writer import (
    add_system_columns,
    build_store,
    make_fields,
    make_source,
    write,
)

FEW = 2_100
MANY = FEW + 500
"""Enough rows that candidates come from the graph."""
WIDE = 8


class Searched(Vector):
    """Asks the graph of tenants as small as a test fills them."""

    exact_rows = FEW


@dataclass
class Corpus:
    """An index of vectors, and beside it what should live in it."""

    endpoint: ClickHouseEndpoint
    metric: str
    dimension: int = WIDE
    element: str = "float"
    append: bool = False
    live: dict[str, dict[int, Any]] = field(default_factory=dict)
    version: int = 0

    def __post_init__(self) -> None:
        vectors = Array(element=Primitive(self.element))
        fields = make_fields(tenant="string", id="long", kind="long", v=vectors)
        index = Searched(
            "v", dimension=self.dimension, metric=self.metric, append=self.append, expansion=64
        )
        self.store = build_store(self.endpoint, make_source("near"), index, fields)

    def put(self, tenant: str, ids: Any, vectors: Any) -> None:
        """Insert or update rows, as one commit; the column `kind` is the id modulo 10."""
        ids, vectors = list(map(int, ids)), np.asarray(vectors, dtype=np.float64)
        self._write(tenant, ids, vectors, deleted=False)
        stored = vectors if self.element == "double" else vectors.astype(np.float32)
        self.live.setdefault(tenant, {}).update(zip(ids, stored.astype(np.float64), strict=True))

    def delete(self, tenant: str, ids: Any) -> None:
        """Delete rows, as one commit."""
        ids = list(map(int, ids))
        vectors = np.array([self.live[tenant].pop(row) for row in ids])
        self._write(tenant, ids, vectors, deleted=True)

    def put_without(self, tenant: str, ids: Any, *, deleted: bool = False) -> None:
        """Insert, update or delete rows without a vector, as one commit."""
        ids = list(map(int, ids))
        for row in ids:
            self.live.get(tenant, {}).pop(row, None)
        self._write(tenant, ids, np.zeros((len(ids), self.dimension)), deleted=deleted, lacks=True)

    def _write(
        self, tenant: str, ids: list[int], vectors: Any, *, deleted: bool, lacks: bool = False
    ) -> None:
        self.version += 1
        floats = pa.float64() if self.element == "double" else pa.float32()
        flat = pa.array(vectors.reshape(-1), pa.float64()).cast(floats)
        offsets = pa.array(range(0, len(flat) + 1, self.dimension), pa.int32())
        columns = {
            "tenant": pa.array([tenant] * len(ids), pa.string()),
            "id": pa.array(ids, pa.int64()),
            "kind": pa.array([row % 10 for row in ids], pa.int64()),
            "v": pa.ListArray.from_arrays(offsets, flat, mask=pa.array([lacks] * len(ids))),
        }
        table = add_system_columns(
            columns, version=self.version, micros=self.version, deleted=deleted
        )
        sizes = {"rows_per_chunk": 4_000, "rows_per_batch": 1_000}
        receipts = write(self.store, table, upto=self.version, **sizes)
        assert not any(receipt.code for receipt in receipts), receipts

    def name_view(self, end: str) -> str:
        """Return the quoted name of the view of distances, or of the nearest rows."""
        return self.store.shape.qualify_name(self.store.shape.format_view_name(end))

    def query(self, sql: str, query: Any, k: int, tenant: str = "a") -> list[tuple[Any, ...]]:
        """Run SQL in which NEAREST, DISTANCES and VIEW stand for the index's views."""
        arguments = "query = {query:Array(Float32)}, tenant = {tenant:String}"
        for place, view in {
            "NEAREST": f"{self.name_view('nearest')}({arguments}, k = {k})",
            "DISTANCES": f"{self.name_view('distances')}({arguments})",
            "VIEW": self.store.shape.qualify_name(self.store.shape.view),
        }.items():
            sql = sql.replace(place, view)
        parameters = {"query": [float(part) for part in query], "tenant": tenant}
        return list(self.endpoint.get_client().query(sql, parameters=parameters).result_rows)

    def measure(self, query: Any, tenant: str = "a") -> dict[int, float]:
        """Return every live row's distance, measured outside ClickHouse."""
        rows = self.live.get(tenant, {})
        if not rows:
            return {}
        matrix = np.array(list(rows.values()))
        q = np.asarray(query, dtype=np.float32).astype(np.float64)
        if self.metric == "l2":
            distances = np.linalg.norm(matrix - q, axis=1)
        else:
            norms = np.linalg.norm(matrix, axis=1) * np.linalg.norm(q)
            with np.errstate(invalid="ignore", divide="ignore"):
                distances = 1 - (matrix @ q) / norms
        return dict(zip(rows, distances.tolist(), strict=True))

    def merge(self) -> None:
        rows = self.store.shape.qualify_name(self.store.shape.rows)
        self.endpoint.get_client().command(f"OPTIMIZE TABLE {rows} FINAL")

    def count_parts(self) -> int:
        sql = (
            "SELECT count() FROM system.parts "
            "WHERE active AND database = 'near' AND table = {t:String}"
        )
        ((number,),) = (
            self.endpoint.get_client().query(sql, {"t": self.store.shape.rows}).result_rows
        )
        return int(number)


FORMS = {
    "id": "SELECT id FROM NEAREST",
    "id and distance": "SELECT id, distance FROM NEAREST",
    "distance first": "SELECT distance, id FROM NEAREST ORDER BY distance",
    "everything": "SELECT id, * EXCEPT id FROM NEAREST",
    "in order": "SELECT id, distance FROM NEAREST ORDER BY distance, id",
    "limited": "SELECT id FROM NEAREST ORDER BY distance, id LIMIT 100000",
    "subquery": "SELECT id FROM (SELECT id, distance FROM NEAREST) ORDER BY distance, id",
    "in a set": "SELECT id FROM VIEW WHERE (tenant, id) IN (SELECT tenant, id FROM NEAREST)",
    "joined": "SELECT n.id FROM NEAREST AS n JOIN VIEW AS r ON r.id = n.id AND r.tenant = n.tenant",
    "with settings": "SELECT id FROM NEAREST SETTINGS vector_search_with_rescoring = 0",
    "with rescoring": "SELECT id FROM NEAREST SETTINGS vector_search_with_rescoring = 1",
    "without a graph": "SELECT id FROM NEAREST SETTINGS max_limit_for_vector_search_queries = 1",
    "all, limited": "SELECT id, distance FROM DISTANCES ORDER BY distance, id LIMIT LAST",
    "all ids, limited": "SELECT id FROM DISTANCES ORDER BY distance, id LIMIT LAST",
}


def query_ids(corpus: Corpus, form: str, query: Any, k: int, tenant: str = "a") -> list[int]:
    rows = corpus.query(FORMS[form].replace("LAST", str(k)), query, k, tenant)
    return [row[1] if form == "distance first" else row[0] for row in rows]


def check_forms(corpus: Corpus, query: Any, k: int, tenant: str = "a", recall: float = 1.0) -> None:
    """Whatever is selected, k live rows come, and they are the nearest."""
    check_rows(corpus, query, k, tenant, recall)
    for form in FORMS:
        check_ids(corpus, query_ids(corpus, form, query, k, tenant), query, k, tenant, recall)


def check_ids(
    corpus: Corpus, ids: list[int], query: Any, k: int, tenant: str, recall: float
) -> None:
    """They are k live rows, if so many live, and enough of them are among the nearest."""
    measured = corpus.measure(query, tenant)
    wanted = min(k, len(measured))
    assert len(ids) == len(set(ids)) == wanted
    assert set(ids) <= set(measured)
    farthest = sorted(measured.values())[wanted - 1] if wanted else 0
    assert sum(measured[row] <= farthest + 1e-9 for row in ids) >= recall * wanted


def check_rows(corpus: Corpus, query: Any, k: int, tenant: str = "a", recall: float = 1.0) -> None:
    """The rows that come are counted as they are, and have their true distances."""
    measured = corpus.measure(query, tenant)
    count = corpus.query("SELECT count() FROM NEAREST", query, k, tenant)
    assert count == [(min(k, len(measured)),)]
    rows = corpus.query("SELECT id, distance FROM NEAREST", query, k, tenant)
    check_ids(corpus, [row for row, _ in rows], query, k, tenant, recall)
    assert [measured[row] for row, _ in rows] == pytest.approx([far for _, far in rows], abs=1e-9)


def count_searches(corpus: Corpus) -> int:
    """Return how often graphs were asked since the server began."""
    sql = "SELECT sum(value) FROM system.events WHERE event = 'USearchSearchCount'"
    return int(corpus.endpoint.get_client().query(sql).result_rows[0][0])


def test_neighbours_of_many_rows_are_live_and_near(endpoint):
    """Rows are updated and deleted, most of them near to a query, in several parts and one."""
    random = np.random.default_rng(7)
    corpus = Corpus(endpoint=endpoint, metric="cosine")
    corpus.put("a", range(MANY), random.normal(size=(MANY, WIDE)))
    corpus.put("b", range(1_500), random.normal(size=(1_500, WIDE)))
    crowded, other = random.normal(size=WIDE), random.normal(size=WIDE)
    measured = corpus.measure(crowded)
    near = sorted(measured, key=measured.__getitem__)
    corpus.delete("a", near[:400])
    corpus.put("a", near[400:600], -random.normal(size=(200, WIDE)) - crowded)
    corpus.put("a", near[:20], random.normal(size=(20, WIDE)) / 10 + crowded)
    corpus.delete("b", range(0, 1_500, 3))
    assert corpus.count_parts() > 2
    for merged in (False, True):
        if merged:
            corpus.merge()
        check = check_forms if merged else check_rows
        check(corpus, crowded, 10, recall=0.9)
        check_rows(corpus, other, 10, recall=0.9)
        for k, recall in ((300, 0.9), (1_100, 1)):
            check_rows(corpus, crowded, k, recall=recall)
        check_rows(corpus, crowded, 5, "b")
        check_rows(corpus, other, 5, "nobody")


def test_a_large_tenant_is_searched_by_its_graph_and_a_small_one_is_measured(endpoint):
    random = np.random.default_rng(8)
    corpus = Corpus(endpoint=endpoint, metric="l2")
    corpus.put("a", range(MANY), random.normal(size=(MANY, WIDE)))
    before = count_searches(corpus)
    corpus.query("SELECT id FROM NEAREST", [0] * WIDE, 5)
    assert count_searches(corpus) > before
    corpus.put("b", range(100), random.normal(size=(100, WIDE)))
    before = count_searches(corpus)
    assert len(corpus.query("SELECT id FROM NEAREST", [0] * WIDE, 5, "b")) == 5
    for form in ("all, limited", "all ids, limited"):
        query_ids(corpus, form, [0] * WIDE, 5)
    measure = "L2Distance(v, {query:Array(Float32)})"
    corpus.query(f"SELECT id FROM VIEW ORDER BY {measure} LIMIT 5", [0] * WIDE, 5)
    assert count_searches(corpus) == before


def test_the_index_view_itself_can_be_ordered_by_a_distance(endpoint):
    random = np.random.default_rng(9)
    corpus = Corpus(endpoint=endpoint, metric="cosine")
    corpus.put("a", range(500), random.normal(size=(500, WIDE)))
    query = random.normal(size=WIDE)
    measured = corpus.measure(query)
    near = sorted(measured, key=measured.__getitem__)
    corpus.delete("a", near[:40])
    by = "cosineDistance(v, {query:Array(Float32)})"
    for condition in ("tenant = 'a'", "tenant = 'a' AND id >= 0", "1"):
        for selected in ("id", f"id, {by} AS d", "id, v"):
            rows = corpus.query(
                f"SELECT {selected} FROM VIEW WHERE {condition} ORDER BY {by} LIMIT 5", query, 5
            )
            assert [row[0] for row in rows] == near[40:45], (condition, selected)


def test_conditions_on_all_distances_hold_before_rows_are_counted(endpoint):
    random = np.random.default_rng(10)
    corpus = Corpus(endpoint=endpoint, metric="cosine")
    corpus.put("a", range(MANY), random.normal(size=(MANY, WIDE)))
    query = random.normal(size=WIDE)
    near = corpus.measure(query)
    corpus.delete("a", sorted(near, key=near.__getitem__)[:300])
    measured = {row: far for row, far in corpus.measure(query).items() if row % 10 == 3}
    rows = corpus.query(
        "SELECT id, distance FROM DISTANCES WHERE kind = 3 ORDER BY distance LIMIT 10", query, 10
    )
    assert [row for row, _ in rows] == sorted(measured, key=measured.__getitem__)[:10]
    assert [far for _, far in rows] == pytest.approx(sorted(measured.values())[:10], abs=1e-9)
    within = corpus.query("SELECT count() FROM DISTANCES WHERE distance < 0.9", query, 1)
    assert within == [(sum(far < 0.9 for far in corpus.measure(query).values()),)]


TINY = {
    1: (1e-30, 0.0),
    2: (0.0, 1e-40),
    3: (0.0, 0.0),
    4: (3e38, 3e37),
    5: (-1e-44, 0.0),
    6: (1.0, 1.0),
    7: (-3e38, -3e38),
}


def test_cosine_knows_no_length(endpoint):
    corpus = Corpus(endpoint=endpoint, metric="cosine", dimension=2)
    corpus.put("a", TINY, list(TINY.values()))
    cosines = [0, 1 - 1 / 1.01**0.5, 1 - 0.5**0.5, 1, 1 + 0.5**0.5, 2]
    for query, view in itertools.product(
        [(1.0, 0.0), (1e-38, 0.0), (3e38, 0.0), (1e-44, 0.0)], ["NEAREST", "DISTANCES"]
    ):
        rows = corpus.query(f"SELECT id, distance FROM {view} ORDER BY distance, id", query, 10)
        assert [row for row, _ in rows] == [1, 4, 6, 2, 7, 5, 3]
        assert [far for _, far in rows][:6] == pytest.approx(cosines, abs=1e-6)
        assert np.isnan(rows[6][1])
        assert query_ids(corpus, "id", query, 2) == [1, 4]
    # A query without direction has no nearest rows, and still gets rows.
    rows = corpus.query("SELECT id, distance FROM NEAREST", (0, 0), 3)
    assert len(rows) == 3
    assert all(np.isnan(far) for _, far in rows)


def test_l2_of_large_vectors_is_measured(endpoint):
    corpus = Corpus(endpoint=endpoint, metric="l2", dimension=2)
    corpus.put("a", [1, 2, 3], [(3e38, 0), (2e38, 0), (1e-40, 0)])
    rows = corpus.query("SELECT id, distance FROM NEAREST", (1e38, 0), 3)
    assert [row for row, _ in rows] == [2, 3, 1]
    assert [far for _, far in rows] == pytest.approx([1e38, 1e38, 2e38], rel=1e-6)


def test_doubles_are_measured_as_doubles(endpoint):
    random = np.random.default_rng(11)
    corpus = Corpus(endpoint=endpoint, metric="cosine", element="double")
    corpus.put("a", range(500), random.normal(size=(500, WIDE)))
    corpus.delete("a", range(0, 500, 7))
    check_rows(corpus, random.normal(size=WIDE), 10)


def test_appended_rows_have_neighbours_too(endpoint):
    random = np.random.default_rng(12)
    corpus = Corpus(endpoint=endpoint, metric="cosine", append=True)
    corpus.put("a", range(1_200), random.normal(size=(1_200, WIDE)))
    corpus.put("a", range(1_200, 1_300), random.normal(size=(100, WIDE)))
    for k in (1, 400):
        check_rows(corpus, random.normal(size=WIDE), k, recall=0.9)
    check_forms(corpus, random.normal(size=WIDE), 10, recall=0.9)


def test_a_row_without_a_vector_is_in_the_index_and_nobodys_neighbour(endpoint):
    """As long as its vector is not computed; also where most rows lack theirs."""
    random = np.random.default_rng(13)
    corpus = Corpus(endpoint=endpoint, metric="cosine")
    corpus.put("a", range(0, MANY, 2), random.normal(size=(MANY // 2, WIDE)))
    corpus.put_without("a", range(1, MANY, 2))
    corpus.put("b", range(30), random.normal(size=(30, WIDE)))
    corpus.put_without("b", range(30, 2_000))
    query = random.normal(size=WIDE)
    before = count_searches(corpus)
    check_rows(corpus, query, 10, recall=0.9)
    assert count_searches(corpus) > before
    check_rows(corpus, query, 10, "b")
    counts = "SELECT countIf(empty(v)), count() FROM VIEW WHERE tenant = 'a'"
    assert corpus.query(counts, query, 1) == [(MANY // 2, MANY)]
    # It gets its vector, another loses one, and a row that has none is deleted.
    corpus.put("a", [1], [query])
    corpus.put_without("b", range(5))
    corpus.put_without("a", [3], deleted=True)
    corpus.merge()
    assert query_ids(corpus, "id", query, 1) == [1]
    check_rows(corpus, query, 10, recall=0.9)
    check_rows(corpus, query, 40, "b")
    assert corpus.query(counts, query, 1) == [(MANY // 2 - 2, MANY - 1)]


def test_appended_rows_without_a_vector_are_nobodys_neighbours(endpoint):
    random = np.random.default_rng(14)
    corpus = Corpus(endpoint=endpoint, metric="l2", append=True)
    corpus.put_without("a", range(1_000, 3_000))
    corpus.put("a", range(40), random.normal(size=(40, WIDE)))
    corpus.put("b", range(900), random.normal(size=(900, WIDE)))
    corpus.put_without("b", range(900, 1_000))
    query = random.normal(size=WIDE)
    for k in (1, 10, 100):
        check_rows(corpus, query, k)
        check_rows(corpus, query, k, "b", recall=0.9)
    # A replayed chunk has the same vectors in their place, so that its token still stands for it.
    corpus.version -= 1
    corpus.put_without("b", range(900, 1_000))
    assert corpus.query("SELECT count() FROM VIEW WHERE tenant = 'b'", query, 1) == [(1_000,)]


@pytest.mark.parametrize(
    ("metric", "append", "number"),
    [("l2", False, 0), ("l2", True, 3), ("cosine", False, MANY)],
)
def test_a_query_of_no_vector_is_refused(endpoint, metric, append, number):
    corpus = Corpus(endpoint, metric, append=append)
    if number:
        corpus.put("a", range(number), np.random.default_rng(1).normal(size=(number, WIDE)))
    client = endpoint.get_client()
    nearest, distances = (corpus.name_view(end) for end in ("nearest", "distances"))
    eight = ", ".join("12345678")
    for query in ("", "1", f"{eight}, 9", eight.replace("8", "NULL")):
        for view in (f"{nearest}(k = 1, ", f"{distances}("):
            with pytest.raises(DatabaseError) as caught:
                client.query(f"SELECT id FROM {view}query = [{query}], tenant = 'a')")
            assert caught.value.name == "FUNCTION_THROW_IF_VALUE_IS_NON_ZERO"
            assert_names(str(caught.value), "query", WIDE)
    fit = f"SELECT id FROM {nearest}(k = 1, query = [{eight}], tenant = 'a')"
    assert len(client.query(fit).result_rows) == min(number, 1)
