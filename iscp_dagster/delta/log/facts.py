"""What `deltalake` says about a table's snapshot: identity, schema, properties, protocol, tenants.

Opening a table costs 2-5 ms on a local disk, more with many files: deltalake reads all of the
snapshot's actions. Nothing here runs while nothing changes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from iscp_dagster.delta.log.commit import Commit, Metadata
from iscp_dagster.delta.log.opening import open_table
from iscp_dagster.delta.log.storage_errors import wrap_store_errors
from iscp_dagster.model.declared.schema import DeltaField, parse_stored_columns
from iscp_dagster.model.jobs import is_name

VECTORS = "deletionVectors"
"""The feature of tables whose files may hold deleted rows."""
RowNumbers = bytes
"""Row numbers within a file, from 0, as 64-bit integers in this machine's byte order."""
ROW_NUMBER_BYTES = 8


@dataclass(frozen=True, kw_only=True)
class TableFacts:
    """A table as of `version`."""

    version: int
    metadata: Metadata
    fields: tuple[DeltaField, ...]
    reader_features: frozenset[str] = frozenset()

    def apply_commit(self, commit: Commit) -> TableFacts:
        """The table as the next commit leaves it."""
        metadata = commit.metadata or self.metadata
        features = commit.reader_features
        return TableFacts(
            version=commit.version,
            metadata=metadata,
            fields=parse_stored_columns(metadata.schema) if commit.metadata else self.fields,
            reader_features=self.reader_features if features is None else features,
        )

    def get_physical_name(self, column: str) -> str:
        """The column's name in the log's actions; its own name without column mapping."""
        return next((field.physical for field in self.fields if field.name == column), column)


@dataclass(frozen=True, kw_only=True)
class TenantSize:
    """One tenant's part of a snapshot.

    `rows` counts stored rows, including those masked by deletion vectors; None where a file has no
    count.
    """

    files: int
    bytes: int
    rows: int | None


@dataclass(frozen=True)
class UnreadableValue:
    """A partition value that only Spark reads correctly, with its text in the log.

    A date in a year that Python does not support, or an empty text, which others read as null.
    """

    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, kw_only=True)
class DataFile:
    """A Parquet file of a snapshot; `path` as the log writes it, percent-encoded.

    `rows` counts stored rows, None where the log does not. `partition` holds typed values, and
    an `UnreadableValue` for a value that Python cannot hold.
    """

    path: str
    bytes: int
    rows: int | None
    partition: Mapping[str, Any] = field(default_factory=dict)
    deleted: RowNumbers | None = field(default=None, repr=False)
    """The rows in its deletion vector; None: not requested, or unknown."""

    @property
    def live_rows(self) -> int | None:
        """The rows outside its deletion vector; None where a count is unknown."""
        if self.rows is None or self.deleted is None:
            return None
        return self.rows - len(self.deleted) // ROW_NUMBER_BYTES

    def get_tenant(self, column: str | None) -> str | None:
        """The tenant, see `parse_tenant`; also None without a tenant column."""
        return None if column is None else _parse_typed_tenant(self.partition[column])


@dataclass(frozen=True)
class SnapshotReader:
    """Opens the table at `location` (a path, or a URL with `options` for its store)."""

    location: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    _tables: dict[int, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """The last table opened, by its version: opening one takes many requests."""

    def read_facts(self, version: int | None = None) -> TableFacts:
        """The table as of `version` (None: the latest). Raises SourceError when it is not there."""
        with wrap_store_errors(self.location):
            table = self._open_table(version)
            metadata, protocol = table.metadata(), table.protocol()
            schema = table.schema().to_json()
        return TableFacts(
            version=table.version(),
            metadata=Metadata(
                table_id=str(metadata.id),
                schema=schema,
                partition_columns=tuple(metadata.partition_columns),
                configuration=dict(metadata.configuration),
            ),
            fields=parse_stored_columns(schema),
            reader_features=frozenset(protocol.reader_features or ()),
        )

    def list_tenants(self, column: str, version: int | None = None) -> set[str | None]:
        """The tenants of the snapshot, see `parse_tenant`."""
        with wrap_store_errors(self.location):
            partitions = self._open_table(version).partitions()
        return {parse_tenant(partition[column]) for partition in partitions}

    def list_data_files(
        self, version: int | None = None, *, vectors: bool = False
    ) -> list[DataFile]:
        """All files of the snapshot, with the contents of their deletion vectors if `vectors`."""
        with wrap_store_errors(self.location):
            table = self._open_table(version)
            actions = table.get_add_actions(flatten=False)
            deleted = _read_deleted_rows(table) if vectors else None
            partitions = _read_partitions(table, actions)
        count, names = actions.num_rows, actions.column_names
        rows = actions["num_records"].to_pylist() if "num_records" in names else [None] * count
        paths, sizes = actions["path"].to_pylist(), actions["size_bytes"].to_pylist()
        relative_paths = [f"/{unquote(path)}" for path in paths]
        matched = deleted if deleted is not None and deleted.keys() <= set(relative_paths) else None
        row_numbers = [
            None if matched is None else matched.get(path, b"") for path in relative_paths
        ]
        return [
            DataFile(path=path, bytes=size, rows=stored, partition=values, deleted=vector)
            for path, size, stored, values, vector in zip(
                paths, sizes, rows, partitions, row_numbers, strict=True
            )
        ]

    def get_tenant_sizes(
        self, column: str | None, version: int | None = None
    ) -> dict[str | None, TenantSize]:
        """Per tenant (one entry None without a tenant column): files, bytes, stored rows."""
        grouped: dict[str | None, list[DataFile]] = defaultdict(list)
        for file in self.list_data_files(version):
            grouped[file.get_tenant(column)].append(file)
        return {tenant: _sum_sizes(files) for tenant, files in grouped.items()}

    def _open_table(self, version: int | None = None) -> Any:
        if version is not None and version in self._tables:
            return self._tables[version]
        table = open_table(self.location, self.options, version)
        self._tables.clear()
        self._tables[table.version()] = table
        return table


def _read_partitions(table: Any, actions: Any) -> list[dict[str, Any]]:
    """The partition values of each file.

    deltalake turns empty texts into null here, so in a column that has any, a null is an
    `UnreadableValue`.
    """
    if "partition" not in actions.column_names:
        return [{}] * int(actions.num_rows)
    try:
        partitions = list(actions["partition"].to_pylist())
    except ValueError:
        partitions = _convert_partitions(actions["partition"])
    if not any(None in partition.values() for partition in partitions):
        return partitions
    texts = (partition.items() for partition in table.partitions())
    replacements = dict.fromkeys(
        (name for items in texts for name, text in items if text == ""), UnreadableValue("")
    )
    return [
        {
            name: replacements.get(name) if value is None else value
            for name, value in partition.items()
        }
        for partition in partitions
    ]


def _convert_partitions(partitions: Any) -> list[dict[str, Any]]:
    """The partition values where some are dates that Python does not support."""
    import pyarrow as pa

    table = pa.Table.from_struct_array(pa.chunked_array(partitions))
    columns = [[_to_python(scalar) for scalar in column] for column in table.columns]
    return [dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True)]


def _to_python(scalar: Any) -> Any:
    import pyarrow as pa

    try:
        return scalar.as_py()
    except (ValueError, OverflowError):
        text = str(scalar.cast(pa.string())) if pa.types.is_date(scalar.type) else ""
        return UnreadableValue(
            f"+{text}" if len(text) > len("9999-12-31") and text[0] != "-" else text
        )


def _read_deleted_rows(table: Any) -> dict[str, RowNumbers] | None:
    """The places of deleted rows, by file path below the table's folder.

    None where deltalake cannot read them, as for some tables that it can open.
    """
    import numpy as np
    import pyarrow as pa
    from deltalake.exceptions import DeltaError

    root, deleted_by_path = unquote(table.table_uri).rstrip("/"), {}
    try:
        batches = table.deletion_vectors()
    except DeltaError:
        return None
    for batch in pa.RecordBatchReader.from_stream(batches):
        for uri, kept in zip(batch["filepath"], batch["selection_vector"], strict=True):
            row_numbers = np.flatnonzero(~kept.values.to_numpy(zero_copy_only=False))
            name = unquote(uri.as_py()).removeprefix(root)
            deleted_by_path[name] = row_numbers.astype(np.int64).tobytes()
    return deleted_by_path


def is_outside_table(path: str) -> bool:
    """Whether the file is outside the table's folder, as those of a shallow clone are."""
    return path.startswith("/") or ":" in path.partition("/")[0]


def parse_tenant(value: str | None) -> str | None:
    """The tenant that a partition value names.

    None for null (also stored for the empty string) and for a text that is not a name (`is_name`).
    """
    return value if value and is_name(value) else None


def _parse_typed_tenant(value: Any) -> str | None:
    text = str(value)
    return (
        None if value is None else parse_tenant(text.lower() if isinstance(value, bool) else text)
    )


def _sum_sizes(files: list[DataFile]) -> TenantSize:
    return TenantSize(
        files=len(files),
        bytes=sum(file.bytes for file in files),
        rows=_sum_counts([file.rows for file in files]),
    )


def _sum_counts(counts: list[int | None]) -> int | None:
    known_counts = [count for count in counts if count is not None]
    return sum(known_counts) if len(known_counts) == len(counts) else None
