"""The schema that is served now: made again when ClickHouse has other views or columns."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from threading import Lock

from graphql import GraphQLSchema

from iscp_dagster.clickhouse.connect.endpoint import Endpoint
from iscp_dagster.delta.log.deltalog import DeltaLog
from iscp_dagster.model.declared.schema import Primitive
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.model.errors import IscpError
from iscp_dagster.serve.catalog import Catalog, catalog
from iscp_dagster.serve.graph.schema import Subscribe, schema

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
    _binary: dict[str, Collection[str]] = field(default_factory=dict)

    def __call__(self) -> Catalog:
        """Raises IscpError when a server or a Delta log that it needs does not answer."""
        return catalog(self.tables, self.endpoints, self._binary_of)

    def _binary_of(self, source: SourceTable) -> Collection[str]:
        """The columns whose texts in ClickHouse are bytes, by the table's schema."""
        try:
            fields = DeltaLog(self._path(source), source.tenant).facts().fields
        except IscpError:
            if source.name not in self._binary:
                raise
        else:
            binary = Primitive("binary")
            self._binary[source.name] = {each.name for each in fields if each.type == binary}
        return self._binary[source.name]

    def _path(self, source: SourceTable) -> str:
        return source.path or f"{self.lake.rstrip('/')}/{source.database}/{source.table}"
