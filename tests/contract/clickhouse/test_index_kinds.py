"""A kind of index from another package: one module, and one line that registers it."""

import re
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import pytest
from pydantic import ValidationError
from starlette.testclient import TestClient
from test_index_tables import FIELDS, rows, served

import resources
from iscp_dagster import Mirror, SourceTable, SourceTableComponent
from iscp_dagster.clickhouse.connect.endpoint import Endpoint
from iscp_dagster.clickhouse.kinds.indexes import resolve_index
from iscp_dagster.clickhouse.kinds.searching import Search
from iscp_dagster.clickhouse.tables.generations import IndexData
from iscp_dagster.location.component.schema import build_table_model
from iscp_dagster.model.consumers.kinds import get_consumer_kind, is_index
from iscp_dagster.model.declared import kinds
from iscp_dagster.model.errors import ConfigError, SchemaError
from iscp_dagster.model.specs import ConsumerInfo
from iscp_dagster.model.variables import ALLOWED_HOSTS
from iscp_dagster.serve.catalog import read_catalog
from iscp_dagster.serve.graph.schemas import SchemaCache
from iscp_dagster.serve.web.app import GraphQLServerSettings, create_app
from support.lake.row_writer import built, write
from support.lake.shop_indexes import ask
from support.paths import DOCS

PAGE = DOCS / "index-kinds.md"
BLOOM = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[0]


def forget():
    for cached in (
        kinds.list_kind_names,
        kinds.load_kinds,
        kinds.list_view_suffixes,
        build_table_model,
        get_consumer_kind,
    ):
        cached.cache_clear()


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """Install a package that offers a kind, as pip would."""
    (tmp_path / "blooming.py").write_text(BLOOM)
    folder = tmp_path / "blooming-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: blooming\nVersion: 1.0\n")
    offered = folder / "entry_points.txt"
    offered.write_text("[iscp_dagster.index_kinds]\nbloom = blooming:Bloom\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    forget()
    yield offered
    monkeypatch.undo()
    forget()


def test_a_kind_of_another_package_is_kept_as_those_built_in(installed, clickhouse_url):
    source = SourceTable("contract.blooming", key="id", tenant="tenant", indexes=[])
    info = ConsumerInfo(
        type="bloom", db="contract", table="blooming", job="b", options={"column": "body"}
    )
    index = resolve_index(source, info)
    endpoint = Endpoint.parse(clickhouse_url)
    store = built(endpoint, source, index, FIELDS)
    assert is_index(info)
    write(store, rows(range(3)))
    write(store, rows([3], body="others"), upto=2)
    assert [row[1] for row in served(store)] == [0, 1, 2, 3]
    counted = (
        f"SELECT value, rows FROM {store.shape.qualify_name('blooming_b_counted')} ORDER BY rows"
    )
    query = endpoint.get_client().query
    assert query(counted).result_rows == [("others", 1), ("some words", 3)]
    indexes = "SELECT type FROM system.data_skipping_indices WHERE table = 'blooming_b__rows'"
    assert query(indexes).result_rows == [("bloom_filter",)]
    (receipt,) = write(store, rows([4], body=""), upto=3)
    assert receipt.code == SchemaError.code
    assert "contract.blooming/b: body of 4 is empty" in receipt.message
    write(store, rows([4], body="", deleted=True), upto=3)
    assert [row[1] for row in served(store)] == [0, 1, 2, 3]
    served_in_graphql = replace(source, indexes=[index])
    load = partial(read_catalog, [served_in_graphql], [endpoint], lambda *_: ())
    client = TestClient(
        create_app(
            GraphQLServerSettings(
                schemas=SchemaCache(load=load), environ={ALLOWED_HOSTS: "testserver"}
            )
        )
    )
    asked = '{ contract_blooming_b(has: "others") { id } }'
    answer = client.post("/graphql", json={"query": asked})
    assert answer.json() == {"data": {"contract_blooming_b": [{"id": "3"}]}}
    with pytest.raises(ConfigError, match="_counted or _distances or _nearest belong to other"):
        SourceTable("contract.t", key="id", indexes=[Mirror(name="b_counted")])
    assert get_consumer_kind("bloom").io_manager in resources.from_environment()
    IndexData(endpoint=endpoint, database="contract", view="blooming_b").drop_index()
    left = "SELECT name FROM system.tables WHERE name LIKE 'blooming_b%'"
    assert query(left).result_rows == []


def test_a_kind_of_another_package_is_declared_in_yaml_as_in_python(installed):
    bloom = {"kind": "bloom", "column": "body", "name": "b"}
    said = {"name": "contract.blooming", "key": "id", "indexes": [bloom]}
    made = SourceTableComponent.from_attributes_dict(attributes=said)
    assert made.table.indexes == [kinds.load_kinds()["bloom"]("body", name="b")]
    with pytest.raises(ValidationError, match=r"indexes\.0\.column\n.*valid string"):
        SourceTableComponent.from_attributes_dict(
            attributes=said | {"indexes": [bloom | {"column": 1}]}
        )


def test_an_index_of_a_kind_that_nobody_offers_is_refused(installed):
    bloom = kinds.load_kinds()["bloom"]
    installed.unlink()
    forget()
    with pytest.raises(
        ConfigError,
        match=r"contract.t/bloom: no package offers the kind 'bloom' \(known: mirror, .*"
        r"Offer blooming:Bloom under that name as an entry point of iscp_dagster.index_kinds",
    ):
        SourceTable("contract.t", key="id", indexes=[bloom("body")])


def test_a_kind_that_is_called_otherwise_is_refused(installed):
    installed.write_text("[iscp_dagster.index_kinds]\nblume = blooming:Bloom\n")
    forget()
    with pytest.raises(
        ConfigError, match=r"'blume' is offered by .*Bloom'>, whose `kind` is 'bloom'"
    ):
        kinds.load_kinds()


@dataclass(frozen=True)
class Listed(Mirror):
    """An index that can be asked by lists."""

    kind: ClassVar[str] = "listed"

    def list_searches(self):
        def holds(column):
            return lambda value: f"has({value}, {column})"

        return {
            "words": Search(
                type="Array(String)", description="Any of these.", condition=holds("word")
            ),
            "days": Search(type="Array(Date)", description="On any.", condition=holds("day")),
            "pairs": Search(
                type="Array(Array(Nullable(Float64)))",
                description="Beginning with any.",
                condition=lambda value: f"arrayExists(p -> p[1] = n / 2, {value})",
            ),
        }


@pytest.mark.parametrize(
    ("asked", "ids"),
    [
        ('words: ["b", "it\'s", "no\\\\ne"]', [1, 2]),
        ("words: []", []),
        ('words: "b"', [1]),
        ('days: ["1970-01-02", "1970-01-04"]', [1, 3]),
        ("pairs: [[0.5, 7], [null], [1.5]]", [1, 3]),
        ('words: ["a", "b"], days: ["1970-01-01"]', [0]),
    ],
)
def test_a_kind_may_be_asked_by_lists(installed, clickhouse_url, asked, ids):
    installed.write_text("[iscp_dagster.index_kinds]\nlisted = test_index_kinds:Listed\n")
    forget()
    endpoint = Endpoint.parse(clickhouse_url)
    endpoint.get_client().command("CREATE DATABASE IF NOT EXISTS lists")
    endpoint.get_client().command(
        "CREATE OR REPLACE VIEW lists.t_listed AS SELECT toInt64(number) AS id, number AS n, "
        "['a', 'b', 'it\\'s', 'c'][number + 1] AS word, toDate(number) AS day FROM numbers(4)"
    )
    source = SourceTable("lists.t", key="id", indexes=[Listed()])
    load = partial(read_catalog, [source], [endpoint], lambda *_: ())
    client = TestClient(
        create_app(GraphQLServerSettings(schemas=SchemaCache(load=load), environ={}))
    )
    answer = ask(client, f"{{ lists_t_listed({asked}) {{ id }} }}")
    assert "errors" not in answer, answer
    assert [int(row["id"]) for row in answer["data"]["lists_t_listed"]] == ids
