"""A kind of index from another package: one module, and one line that registers it."""

import re
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import pytest
from pydantic import ValidationError
from starlette.testclient import TestClient
from test_index_tables import FIELDS, read_ids, rows

import resources
from iscp_dagster import Mirror, SourceTable, SourceTableComponent
from iscp_dagster.clickhouse.kinds.index_kind import resolve_index
from iscp_dagster.clickhouse.kinds.searching import Search
from iscp_dagster.location.component.schema import build_table_model
from iscp_dagster.model.consumers.kinds import get_consumer_kind, is_index
from iscp_dagster.model.declared import kinds
from iscp_dagster.model.errors import ConfigError, SchemaError
from iscp_dagster.model.specs import ConsumerInfo
from iscp_dagster.model.variables import ALLOWED_HOSTS
from iscp_dagster.serve.catalog import read_catalog
from iscp_dagster.serve.graph.schema_cache import SchemaCache
from iscp_dagster.serve.web.app import GraphQLServerSettings, create_app
from support.errors import assert_names, raises_naming
from support.lake.row_writer import build_store, query, write
from support.lake.shop_indexes import ask
from support.paths import DOCS

PAGE = DOCS / "index-kinds.md"
BLOOM = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[0]


def forget_kinds():
    for cached in (
        kinds.list_kind_names,
        kinds.load_kinds,
        kinds.list_view_suffixes,
        build_table_model,
        get_consumer_kind,
    ):
        cached.cache_clear()


@pytest.fixture
def entry_points(monkeypatch, tmp_path):
    """Install a package that offers a kind, as pip would; return the file that offers it."""
    (tmp_path / "blooming.py").write_text(BLOOM)
    folder = tmp_path / "blooming-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: blooming\nVersion: 1.0\n")
    offer = folder / "entry_points.txt"
    offer.write_text("[iscp_dagster.index_kinds]\nbloom = blooming:Bloom\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    forget_kinds()
    yield offer
    monkeypatch.undo()
    forget_kinds()


def serve(source, endpoint):
    """Return a client of the GraphQL server of a source's indexes."""
    load = partial(read_catalog, [source], [endpoint], lambda *_: ())
    environ = {ALLOWED_HOSTS: "testserver"}
    settings = GraphQLServerSettings(schemas=SchemaCache(load=load), environ=environ)
    return TestClient(create_app(settings))


def test_a_kind_of_another_package_is_kept_as_those_built_in(entry_points, endpoint):
    source = SourceTable("contract.blooming", key="id", tenant="tenant", indexes=[])
    info = ConsumerInfo(
        type="bloom", db="contract", table="blooming", job="b", options={"column": "body"}
    )
    index = resolve_index(source, info)
    store = build_store(endpoint, source, index, FIELDS)
    assert is_index(info)
    write(store, rows(range(3)))
    write(store, rows([3], body="others"), upto=2)
    assert read_ids(store) == [0, 1, 2, 3]
    counts = store.shape.qualify_name("blooming_b_counted")
    assert query(store, f"SELECT value, rows FROM {counts} ORDER BY rows") == [
        ("others", 1),
        ("some words", 3),
    ]
    indexes = "SELECT type FROM system.data_skipping_indices WHERE table = 'blooming_b__rows'"
    assert query(store, indexes) == [("bloom_filter",)]
    (receipt,) = write(store, rows([4], body=""), upto=3)
    assert receipt.code == SchemaError.code
    assert_names(receipt.message, "contract.blooming/b", "body", 4)
    write(store, rows([4], body="", deleted=True), upto=3)
    assert read_ids(store) == [0, 1, 2, 3]
    client = serve(replace(source, indexes=[index]), endpoint)
    answer = ask(client, '{ contract_blooming_b(has: "others") { id } }')
    assert answer == {"data": {"contract_blooming_b": [{"id": "3"}]}}
    with raises_naming(ConfigError, "contract.t/b_counted", "_counted", "_distances", "_nearest"):
        SourceTable("contract.t", key="id", indexes=[Mirror(name="b_counted")])
    assert get_consumer_kind("bloom").io_manager in resources.from_environment()
    store.data.drop_index()
    assert query(store, "SELECT name FROM system.tables WHERE name LIKE 'blooming_b%'") == []


def test_a_kind_of_another_package_is_declared_in_yaml_as_in_python(entry_points):
    bloom = {"kind": "bloom", "column": "body", "name": "b"}
    attributes = {"name": "contract.blooming", "key": "id", "indexes": [bloom]}
    component = SourceTableComponent.from_attributes_dict(attributes=attributes)
    assert component.table.indexes == [kinds.load_kinds()["bloom"]("body", name="b")]
    with pytest.raises(ValidationError) as caught:
        SourceTableComponent.from_attributes_dict(
            attributes=attributes | {"indexes": [bloom | {"column": 1}]}
        )
    errors = {".".join(map(str, each["loc"])): each["type"] for each in caught.value.errors()}
    assert errors["indexes.0.column"] == "string_type"


def test_an_index_of_a_kind_that_nobody_offers_is_refused(entry_points):
    bloom = kinds.load_kinds()["bloom"]
    entry_points.unlink()
    forget_kinds()
    names = ("contract.t/bloom", "'bloom'", "mirror", "blooming:Bloom", "iscp_dagster.index_kinds")
    with raises_naming(ConfigError, *names):
        SourceTable("contract.t", key="id", indexes=[bloom("body")])


def test_a_kind_that_is_called_otherwise_is_refused(entry_points):
    entry_points.write_text("[iscp_dagster.index_kinds]\nblume = blooming:Bloom\n")
    forget_kinds()
    with raises_naming(ConfigError, "'blume'", "blooming.Bloom", "'bloom'"):
        kinds.load_kinds()


@dataclass(frozen=True)
class Listed(Mirror):
    """An index that can be asked by lists."""

    kind: ClassVar[str] = "listed"

    def list_searches(self):
        return {
            "words": Search(
                type="Array(String)",
                description="Any of these.",
                condition=lambda value: f"has({value}, word)",
            ),
            "days": Search(
                type="Array(Date)",
                description="On any.",
                condition=lambda value: f"has({value}, day)",
            ),
            "pairs": Search(
                type="Array(Array(Nullable(Float64)))",
                description="Beginning with any.",
                condition=lambda value: f"arrayExists(p -> p[1] = n / 2, {value})",
            ),
        }


@pytest.mark.parametrize(
    ("arguments", "ids"),
    [
        ('words: ["b", "it\'s", "no\\\\ne"]', [1, 2]),
        ("words: []", []),
        ('words: "b"', [1]),
        ('days: ["1970-01-02", "1970-01-04"]', [1, 3]),
        ("pairs: [[0.5, 7], [null], [1.5]]", [1, 3]),
        ('words: ["a", "b"], days: ["1970-01-01"]', [0]),
    ],
)
def test_a_kind_may_be_asked_by_lists(entry_points, endpoint, arguments, ids):
    entry_points.write_text("[iscp_dagster.index_kinds]\nlisted = test_index_kinds:Listed\n")
    forget_kinds()
    endpoint.get_client().command("CREATE DATABASE IF NOT EXISTS lists")
    endpoint.get_client().command(
        "CREATE OR REPLACE VIEW lists.t_listed AS SELECT toInt64(number) AS id, number AS n, "
        "['a', 'b', 'it\\'s', 'c'][number + 1] AS word, toDate(number) AS day FROM numbers(4)"
    )
    client = serve(SourceTable("lists.t", key="id", indexes=[Listed()]), endpoint)
    answer = ask(client, f"{{ lists_t_listed({arguments}) {{ id }} }}")
    assert "errors" not in answer, answer
    assert [int(row["id"]) for row in answer["data"]["lists_t_listed"]] == ids
