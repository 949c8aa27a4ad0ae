"""A scan's rows as lines, by tenant."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from iscp_dagster.clickhouse.write.tenantwise import named, parted
from iscp_dagster.eventtriggers.images import in_utf8, listed
from iscp_dagster.model.consumers.protocol import DataRetriever
from iscp_dagster.model.declared.schema import DELETED, SYSTEM_COLUMNS, VERSION
from iscp_dagster.model.declared.tables import DEFAULT_TENANT
from iscp_dagster.model.errors import IscpError
from iscp_dagster.serviceconsumers.chunks import DELETE, UPSERT, line
from iscp_dagster.serviceconsumers.sorting import Sorter


@dataclass(frozen=True, kw_only=True)
class Lines:
    """Turns a scan's rows into lines."""

    name: str
    """Who gets them, as messages say it."""
    keys: Sequence[str]
    tenant: str | None
    """The tenant column; None: there is none."""

    def collect(self, retriever: DataRetriever, into: Sorter) -> None:
        """Read to the end. A tenant with a value that JSON cannot have is refused."""
        while (rows := retriever.marked()) is not None:
            for tenant, some in self._parts(rows):
                if tenant in retriever.refused:
                    continue
                try:
                    into.add(tenant, list(self._lines(some)))
                except IscpError as error:
                    retriever.refuse(tenant, error)
                    into.drop(tenant)

    def _parts(self, rows: pa.Table) -> list[tuple[str, pa.Table]]:
        if self.tenant is None:
            return [(DEFAULT_TENANT, rows)]
        return [(each.tenant, each.rows) for each in parted(rows, named(rows, self.tenant))]

    def _lines(self, rows: pa.Table) -> Iterator[str]:
        identity = {*self.keys, *((self.tenant,) if self.tenant else ())}
        for row in listed(in_utf8(rows, self.keys, self.name), self.name):
            gone = bool(row[DELETED])
            kept = identity if gone else row.keys() - set(SYSTEM_COLUMNS)
            only = {name: value for name, value in row.items() if name in kept}
            yield line(only, row[VERSION], DELETE if gone else UPSERT)
