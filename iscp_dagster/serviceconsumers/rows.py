"""A scan's rows as lines, by tenant."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from iscp_dagster.clickhouse.write.tenant_split import get_row_tenants, split_by_tenant
from iscp_dagster.eventtriggers.images import replace_invalid_utf8, to_python_rows
from iscp_dagster.model.consumers.protocol import DataRetriever
from iscp_dagster.model.declared.schema import DELETED, SYSTEM_COLUMNS, VERSION
from iscp_dagster.model.declared.tables import DEFAULT_TENANT
from iscp_dagster.model.errors import IscpError
from iscp_dagster.serviceconsumers.chunks import DELETE, UPSERT, format_line
from iscp_dagster.serviceconsumers.sorting import Sorter


@dataclass(frozen=True, kw_only=True)
class LineFormatter:
    """Turns a scan's rows into lines."""

    name: str
    """Their consumer, as messages name it."""
    keys: Sequence[str]
    tenant: str | None
    """The tenant column; None: there is none."""

    def collect(self, retriever: DataRetriever, sorter: Sorter) -> None:
        """Read to the end. A tenant with a value that JSON cannot have is refused."""
        while (rows := retriever.read_marked_rows()) is not None:
            for tenant, portion in self._split_by_tenant(rows):
                if tenant in retriever.refused:
                    continue
                try:
                    sorter.add(tenant, list(self._format_lines(portion)))
                except IscpError as error:
                    retriever.refuse(tenant, error)
                    sorter.drop(tenant)

    def _split_by_tenant(self, rows: pa.Table) -> list[tuple[str, pa.Table]]:
        if self.tenant is None:
            return [(DEFAULT_TENANT, rows)]
        return [
            (group.tenant, group.rows)
            for group in split_by_tenant(rows, get_row_tenants(rows, self.tenant))
        ]

    def _format_lines(self, rows: pa.Table) -> Iterator[str]:
        identity = {*self.keys, *((self.tenant,) if self.tenant else ())}
        for row in to_python_rows(replace_invalid_utf8(rows, self.keys, self.name), self.name):
            deleted = bool(row[DELETED])
            columns = identity if deleted else row.keys() - set(SYSTEM_COLUMNS)
            values = {name: value for name, value in row.items() if name in columns}
            yield format_line(values, row[VERSION], DELETE if deleted else UPSERT)
