"""The schema that is served now: made again when ClickHouse has other views or columns."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock

from graphql import GraphQLSchema

from iscp_dagster.clickhouse.connect.endpoint import Endpoint
from iscp_dagster.clickhouse.kinds.changes import CALCULATED
from iscp_dagster.clickhouse.tables.ddl import IndexTable
from iscp_dagster.clickhouse.tables.generations import IndexData
from iscp_dagster.clickhouse.tables.owned import stored_definition
from iscp_dagster.delta.log.deltalog import DeltaLog
from iscp_dagster.model.declared.schema import DeltaField, Primitive, parse_schema
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.model.errors import IscpError
from iscp_dagster.serve.catalog import Catalog, catalog
from iscp_dagster.serve.graph.schema import Subscribe, schema
from iscp_dagster.serve.served import Served

_LOGGER = logging.getLogger(__name__)
REFRESH_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True)
class Ready:
    """A schema, and the catalog that it was made from."""

    catalog: Catalog
    schema: GraphQLSchema


@dataclass
class Schemas:
    """Keeps the schema; `load` reads the catalog. Safe for threads.

    `current` looks for changes if the last look is `every` seconds old. A look that fails leaves
    the schema as it is, and is logged; without any schema yet it raises.
    """

    load: Callable[[], Catalog]
    subscribe: Subscribe | None = None
    every: float = REFRESH_SECONDS
    clock: Callable[[], float] = time.monotonic
    _ready: Ready | None = None
    _looked: float = 0.0
    _looking: Lock = field(default_factory=Lock)

    def current(self) -> Ready:
        """Return the schema; may ask ClickHouse. Raises IscpError when there never was one."""
        ready = self._ready
        if ready is not None and not self._is_due():
            return ready
        # One thread looks; the others go on with what there is.
        if not self._looking.acquire(blocking=ready is None):
            return self._ready or self.current()
        try:
            if self._ready is None or self._is_due():
                self._look()
        finally:
            self._looking.release()
        assert self._ready is not None
        return self._ready

    def _is_due(self) -> bool:
        return self.clock() - self._looked >= self.every

    def _look(self) -> None:
        try:
            found = self.load()
            if self._ready is None or found != self._ready.catalog:
                self._ready = Ready(catalog=found, schema=schema(found, self.subscribe))
        except IscpError as error:
            if self._ready is None:
                raise
            _LOGGER.warning("The schema stays as it was: %s", error)
        self._looked = self.clock()


@dataclass
class Loader:
    """Reads the catalog of declared tables; asks a Delta log again only when it has to."""

    tables: Sequence[SourceTable]
    endpoints: Sequence[Endpoint]
    lake: str
    """The root folder of tables without a path."""
    _known: dict[tuple[str, str], tuple[Mapping[str, str], Collection[str]]] = field(
        default_factory=dict
    )
    _latest: Catalog | None = None

    def __call__(self) -> Catalog:
        """Raises IscpError when no server answers."""
        self._latest = catalog(self.tables, self.endpoints, self._binary, self._latest)
        return self._latest

    def _binary(self, served: Served, types: Mapping[str, str]) -> Collection[str]:
        """The columns of source and view that are binary; read again when columns change."""
        name = served.source.name, served.index.shown
        if name not in self._known or self._known[name][0] != types:
            fields = (*self._fields(served, types), *calculated(served))
            binary = {each.name for each in fields if each.type == Primitive("binary")}
            self._known[name] = types, binary
        return self._known[name][1]

    def _fields(self, served: Served, types: Mapping[str, str]) -> Sequence[DeltaField]:
        """The source's fields; none if no column of the index can keep bytes."""
        if not any(_BYTES.search(each) for each in types.values()):
            return ()
        source = served.source
        path = source.path or f"{self.lake.rstrip('/')}/{source.database}/{source.table}"
        return DeltaLog(path, source.tenant).facts().fields


_BYTES = re.compile(r"\b(String|FixedString)\b")


def calculated(served: Served) -> Sequence[DeltaField]:
    """The calculated columns of a view, as its table was made with."""
    if not served.index.of_images:
        return ()
    place = served.places[0]
    data = IndexData(endpoint=place.endpoint, database=place.database, view=served.view)
    shape = IndexTable(
        source=served.source,
        index=served.index,
        fields=(),
        generation=data.served() or 0,
        database=place.database,
    )
    held = stored_definition(place.endpoint, shape).get(CALCULATED) or []
    return parse_schema(json.dumps({"type": "struct", "fields": held}))
