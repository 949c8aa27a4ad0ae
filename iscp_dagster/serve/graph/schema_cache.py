"""The schema that is served now: made again when views or columns in ClickHouse change."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock

from graphql import GraphQLSchema

from iscp_dagster.clickhouse.connect.endpoint import ClickHouseEndpoint
from iscp_dagster.clickhouse.kinds.changes import CALCULATED
from iscp_dagster.clickhouse.tables.ddl import IndexShape
from iscp_dagster.clickhouse.tables.generations import IndexGenerations
from iscp_dagster.clickhouse.tables.ownership import read_definition
from iscp_dagster.delta.log.deltalog import DeltaLog
from iscp_dagster.model.declared.schema import DeltaField, Primitive, parse_schema
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.model.errors import IscpError
from iscp_dagster.serve.catalog import ServedCatalog, read_catalog
from iscp_dagster.serve.graph.schema import Subscribe, create_schema
from iscp_dagster.serve.served_index import ServedIndex

_LOGGER = logging.getLogger(__name__)
REFRESH_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True)
class ServedSchema:
    """A schema, and the catalog that it was made from."""

    catalog: ServedCatalog
    schema: GraphQLSchema


@dataclass
class SchemaCache:
    """Keeps the schema; `load` reads the catalog. Safe for threads.

    `get_schema` looks for changes if the last look is `refresh_seconds` old. A failed look is
    logged and keeps the schema; without any schema yet it raises.
    """

    load: Callable[[], ServedCatalog]
    subscribe: Subscribe | None = None
    refresh_seconds: float = REFRESH_SECONDS
    clock: Callable[[], float] = time.monotonic
    _ready: ServedSchema | None = None
    _refreshed_at: float = 0.0
    _refresh_lock: Lock = field(default_factory=Lock)

    def get_schema(self) -> ServedSchema:
        """Return the schema; may query ClickHouse. Raises IscpError if there never was one."""
        ready = self._ready
        if ready is not None and not self._is_due():
            return ready
        # One thread looks; the others use the schema that there is.
        if not self._refresh_lock.acquire(blocking=ready is None):
            return self._ready or self.get_schema()
        try:
            if self._ready is None or self._is_due():
                self._refresh_schema()
        finally:
            self._refresh_lock.release()
        assert self._ready is not None
        return self._ready

    def _is_due(self) -> bool:
        return self.clock() - self._refreshed_at >= self.refresh_seconds

    def _refresh_schema(self) -> None:
        try:
            catalog = self.load()
            if self._ready is None or catalog != self._ready.catalog:
                self._ready = ServedSchema(
                    catalog=catalog, schema=create_schema(catalog, self.subscribe)
                )
        except IscpError as error:
            if self._ready is None:
                raise
            _LOGGER.warning("The schema stays as it was: %s", error)
        self._refreshed_at = self.clock()


@dataclass
class CatalogLoader:
    """Reads the catalog of declared tables; reads a Delta log again only if columns change."""

    tables: Sequence[SourceTable]
    endpoints: Sequence[ClickHouseEndpoint]
    lake: str
    """The root folder of tables without a path."""
    _binary_columns: dict[tuple[str, str], tuple[Mapping[str, str], Collection[str]]] = field(
        default_factory=dict
    )
    _latest: ServedCatalog | None = None

    def __call__(self) -> ServedCatalog:
        """Raises IscpError when no server answers."""
        self._latest = read_catalog(
            self.tables, self.endpoints, self._find_binary_columns, self._latest
        )
        return self._latest

    def _find_binary_columns(
        self, served: ServedIndex, types: Mapping[str, str]
    ) -> Collection[str]:
        """The columns of source and view that are binary; read again when columns change."""
        name = served.source.name, served.index.shown
        if name not in self._binary_columns or self._binary_columns[name][0] != types:
            fields = (*self._read_source_fields(served, types), *read_calculated_fields(served))
            binary = {
                delta_field.name
                for delta_field in fields
                if delta_field.type == Primitive("binary")
            }
            self._binary_columns[name] = types, binary
        return self._binary_columns[name][1]

    def _read_source_fields(
        self, served: ServedIndex, types: Mapping[str, str]
    ) -> Sequence[DeltaField]:
        """The source's fields; none if no column of the index can keep bytes."""
        if not any(_BYTES.search(type_) for type_ in types.values()):
            return ()
        source = served.source
        path = source.path or f"{self.lake.rstrip('/')}/{source.database}/{source.table}"
        return DeltaLog(path).get_facts().fields


_BYTES = re.compile(r"\b(String|FixedString)\b")


def read_calculated_fields(served: ServedIndex) -> Sequence[DeltaField]:
    """A view's calculated columns, as when its table was made."""
    if not served.index.of_images:
        return ()
    shard = served.shards[0]
    data = IndexGenerations(endpoint=shard.endpoint, database=shard.database, view=served.view)
    shape = IndexShape(
        source=served.source,
        index=served.index,
        fields=(),
        generation=data.find_served_generation() or 0,
        database=shard.database,
    )
    calculated = read_definition(shard.endpoint, shape).get(CALCULATED) or []
    return parse_schema(json.dumps({"type": "struct", "fields": calculated}))
