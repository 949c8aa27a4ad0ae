"""A shop's tickets in ClickHouse, as `iscp serve` finds them: mirror, words, vectors."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import count
from typing import Any

import pyarrow as pa
from starlette.testclient import TestClient

from iscp_dagster import FullText, Mirror, SourceTable, Vector
from iscp_dagster.clickhouse.connect.endpoint import ClickHouseEndpoint
from iscp_dagster.clickhouse.tables.ddl import IndexShape
from iscp_dagster.clickhouse.tables.index_store import IndexStore
from iscp_dagster.model.declared.schema import Array, Primitive
from iscp_dagster.serve.access import FileAccess, OpenAccess
from iscp_dagster.serve.catalog import read_catalog
from iscp_dagster.serve.graph.schema_cache import SchemaCache
from iscp_dagster.serve.web.app import GraphQLServerSettings, create_app
from iscp_dagster.serve.web.graphql_http import HttpBounds
from support.lake.row_writer import MICROS, add_system_columns, make_fields, write

NUMBERS = count()
FIELDS = make_fields(
    customer="string",
    id="long",
    body="string",
    price="decimal(10,2)",
    **{"opened at": "timestamp"},
    ratio="double",
    photo="binary",
    v=Array(element=Primitive("float")),
)
TICKETS = [
    ("acme", 1, "the printer is on fire", "1.50", 0, 0.5, b"\xff\x00", [1.0, 0.0]),
    ("acme", 2, "Fire drill", "20.00", 1_700_000_000_123_456, float("nan"), None, [0.0, 1.0]),
    ("acme", 3, None, None, None, None, b"", [0.6, 0.8]),
    ("globex", 1, "printer out of paper", "-3.00", 1, float("inf"), None, [1.0, 0.1]),
    ("globex", 9_007_199_254_740_993, "thanks", "7.77", 2, -0.0, None, [0.0, -1.0]),
]
TOKENS = {"of-acme": ["acme"], "of-both": ["acme", "globex"], "of-all": "*", "of-none": []}


def table_of(rows: list[tuple[Any, ...]], version: int = 1) -> pa.Table:
    """Return the rows as a run writes them."""
    types = [pa.string(), pa.int64(), pa.string(), pa.decimal128(10, 2)]
    types += [pa.timestamp("us", "UTC"), pa.float64(), pa.binary(), pa.list_(pa.float32())]
    columns = list(zip(*rows, strict=True))
    columns[3] = [None if each is None else Decimal(each) for each in columns[3]]
    arrays = [pa.array(values, type_) for values, type_ in zip(columns, types, strict=True)]
    table = {each.name: array for each, array in zip(FIELDS, arrays, strict=True)}
    return add_system_columns(table, version=version, micros=MICROS + version)


@dataclass
class Shop:
    """The served shop; each has a database of its own."""

    endpoint: ClickHouseEndpoint
    database: str = field(default_factory=lambda: f"shop{next(NUMBERS)}")
    indexes: tuple[Any, ...] = (Mirror(), FullText("body"), Vector("v", dimension=2))

    @property
    def source(self) -> SourceTable:
        return SourceTable(
            f"{self.database}.tickets", key="id", tenant="customer", indexes=list(self.indexes)
        )

    def store(self, index: Any) -> IndexStore:
        shape = IndexShape(source=self.source, index=index, fields=FIELDS)
        return IndexStore(endpoint=self.endpoint, shape=shape)

    def build(self, index: Any, rows: list[tuple[Any, ...]] = TICKETS) -> None:
        """Make the index's tables and views, and write the rows."""
        store = self.store(index)
        store.ensure()
        store.ensure_views()
        receipts = write(store, table_of(rows))
        assert not any(receipt.code for receipt in receipts), receipts

    def catalog(self):
        return read_catalog([self.source], [self.endpoint], lambda *_: {"photo"})

    def settings(self, tokens: Any = None, **bounds: Any) -> GraphQLServerSettings:
        """Return settings; `tokens` is a path to write TOKENS to, or None."""
        access: Any = OpenAccess()
        if tokens is not None:
            tokens.write_text(json.dumps(TOKENS))
            access = FileAccess(tokens)
        schemas = SchemaCache(load=self.catalog, refresh_seconds=0)
        return GraphQLServerSettings(
            schemas=schemas, access=access, bounds=HttpBounds(**bounds), environ={}
        )

    def client(self, tokens: Any = None, **bounds: Any) -> TestClient:
        return TestClient(create_app(self.settings(tokens, **bounds)))


def ask(client: TestClient, query: str, token: str | None = None, **variables: Any) -> Any:
    """Send a query, and return the answer's JSON."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    sent = {"query": query, "variables": variables}
    return client.post("/graphql", json=sent, headers=headers).json()
