"""Whose rows a table's files have, read from its tenant column with Arrow.

For tables that are not partitioned by the tenant, whose log does not say it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from iscp_dagster.delta.log.commit import FeedFile, Volume
from iscp_dagster.delta.log.facts import (
    DataFile,
    RowNumbers,
    TenantSize,
    is_outside_table,
    parse_tenant,
)
from iscp_dagster.delta.log.files import open_store, to_local_path
from iscp_dagster.delta.log.storage_errors import wrap_store_errors
from iscp_dagster.model.errors import SourceError

MOST_BYTES = 64 * 1024 * 1024
"""Stored bytes of the column that are read to find a commit's tenants."""

RowCounts = Mapping[str | None, int]
"""By tenant (`parse_tenant`), a number of rows."""


class TooManyBytesError(Exception):
    """The column is larger than what may be read of it."""


@dataclass
class RowTenants:
    """The tenant column of the table at `location`, as its files name it."""

    location: str
    column: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def sum_volumes(self, feed: Iterable[FeedFile]) -> dict[str | None, Volume] | None:
        """The volume of each tenant in these files of a commit's feed.

        None where the files do not say, or have more than `MOST_BYTES` of the column.
        """
        volumes: dict[str | None, Volume] = {}
        remaining_bytes = MOST_BYTES
        for file in feed:
            counts, size = self._count_rows(file.path, file.bytes, most_bytes=remaining_bytes)
            if counts is None:
                return None
            remaining_bytes -= size
            total = sum(counts.values())
            for tenant, rows in counts.items():
                # What a file removes is not written.
                written = 0 if file.action == "remove" else file.bytes * rows // total
                volume = Volume(written, rows)
                volumes[tenant] = volume.add(volumes.get(tenant, Volume(0, 0)))
        return volumes

    def measure_tenants(self, files: Iterable[DataFile]) -> dict[str | None, TenantSize]:
        """The size of each tenant in these files of a snapshot. Raises SourceError for a file whose
        tenants cannot be read: leaving it out would lose them.
        """
        sizes: dict[str | None, TenantSize] = {}
        for file in files:
            counts, _ = self._count_rows(file.path, file.bytes, deleted=file.deleted)
            if counts is None:
                raise SourceError(
                    f"{self.location}: the tenant column {self.column!r} of {file.path} cannot be "
                    "read: the file is gone, lies outside the table's folder, or has the column in "
                    "another case. Restore it, or rewrite the table."
                )
            total = sum(counts.values())
            for tenant, rows in counts.items():
                size = sizes.get(tenant, TenantSize(files=0, bytes=0, rows=0))
                sizes[tenant] = TenantSize(
                    files=size.files + 1,
                    bytes=size.bytes + file.bytes * rows // total,
                    rows=(size.rows or 0) + rows,
                )
        return sizes

    def _count_rows(
        self,
        path: str,
        file_bytes: int,
        *,
        deleted: RowNumbers | None = None,
        most_bytes: int | None = None,
    ) -> tuple[RowCounts | None, int]:
        """The rows of each tenant in a file, and the stored bytes of the column.

        None where the file is gone, outside the table, or names the column in another case.
        """
        if is_outside_table(path):
            return None, 0
        try:
            with wrap_store_errors(self.location), self._open_file(path, file_bytes) as file:
                names = file.schema_arrow.names
                if self.column not in names:
                    alike = any(name.lower() == self.column.lower() for name in names)
                    return (None if alike else {None: file.metadata.num_rows}), 0
                size = _measure_column(file, names.index(self.column))
                if most_bytes is not None and size > most_bytes:
                    return None, size
                return _count_values(file.read([self.column])[self.column], deleted), size
        except FileNotFoundError:
            return None, 0

    def _open_file(self, path: str, file_bytes: int) -> Any:
        import pyarrow.parquet as pq

        folder, name = to_local_path(self.location), unquote(path)
        if folder is not None:
            return pq.ParquetFile(Path(folder, name), read_dictionary=[self.column])
        store = open_store(self.location, self.options, {name: file_bytes} if file_bytes else {})
        return pq.ParquetFile(store.open_input_file(name), read_dictionary=[self.column])


def _measure_column(file: Any, column: int) -> int:
    groups = range(file.metadata.num_row_groups)
    return sum(
        file.metadata.row_group(group).column(column).total_compressed_size for group in groups
    )


def _count_values(values: Any, deleted: RowNumbers | None) -> RowCounts:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    if deleted:
        kept = np.ones(len(values), dtype=bool)
        kept[np.frombuffer(deleted, dtype=np.int64)] = False
        values = values.filter(pa.array(kept))
    counted = pc.value_counts(values.unify_dictionaries().combine_chunks())
    texts = counted.field("values").cast(pa.string()).to_pylist()
    counts: Counter[str | None] = Counter()
    for text, rows in zip(texts, counted.field("counts").to_pylist(), strict=True):
        counts[parse_tenant(text)] += rows
    return counts
