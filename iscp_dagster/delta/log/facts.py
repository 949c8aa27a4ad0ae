"""What `deltalake` tells about a table's snapshot: identity, schema, properties, protocol, tenants.

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
from iscp_dagster.delta.log.unreadable import asking
from iscp_dagster.model.declared.schema import DeltaField, table_columns
from iscp_dagster.model.jobs import is_name

VECTORS = "deletionVectors"
"""The feature of tables whose files may hold deleted rows."""
Places = bytes
"""Row numbers within a file, from 0, as 64-bit integers in this machine's byte order."""
PLACE_BYTES = 8


@dataclass(frozen=True, kw_only=True)
class TableFacts:
    """A table as of `version`."""

    version: int
    metadata: Metadata
    fields: tuple[DeltaField, ...]
    reader_features: frozenset[str] = frozenset()

    def after(self, commit: Commit) -> TableFacts:
        """The table as the next commit leaves it."""
        metadata = commit.metadata or self.metadata
        features = commit.reader_features
        return TableFacts(
            version=commit.version,
            metadata=metadata,
            fields=table_columns(metadata.schema) if commit.metadata else self.fields,
            reader_features=self.reader_features if features is None else features,
        )

    def physical(self, column: str) -> str:
        """The column's name in the log's actions; its own name without column mapping."""
        return next((each.physical for each in self.fields if each.name == column), column)


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
class Unheld:
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
    an `Unheld` for a value that Python cannot hold.
    """

    path: str
    bytes: int
    rows: int | None
    partition: Mapping[str, Any] = field(default_factory=dict)
    deleted: Places | None = field(default=None, repr=False)
    """The rows in its deletion vector; None: not asked for, or unknown."""

    @property
    def live_rows(self) -> int | None:
        """The rows outside of its deletion vector; None where one of the counts is not known."""
        if self.rows is None or self.deleted is None:
            return None
        return self.rows - len(self.deleted) // PLACE_BYTES

    def tenant(self, column: str | None) -> str | None:
        """The tenant, see `tenant_name`; None without a tenant column, too."""
        return None if column is None else _name(self.partition[column])


@dataclass(frozen=True)
class DeltaFacts:
    """Opens the table at `location` (a path, or a URL with `options` for its store)."""

    location: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    _opened: dict[int, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """The last table opened, by its version: opening one takes many requests."""

    def at(self, version: int | None = None) -> TableFacts:
        """The table as of `version` (None: the latest). Raises SourceError when it is not there."""
        with asking(self.location):
            table = self._open(version)
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
            fields=table_columns(schema),
            reader_features=frozenset(protocol.reader_features or ()),
        )

    def tenants(self, column: str, version: int | None = None) -> set[str | None]:
        """The tenants of the snapshot, see `tenant_name`."""
        with asking(self.location):
            partitions = self._open(version).partitions()
        return {tenant_name(each[column]) for each in partitions}

    def data_files(self, version: int | None = None, *, vectors: bool = False) -> list[DataFile]:
        """All files of the snapshot, with the contents of their deletion vectors if `vectors`."""
        with asking(self.location):
            table = self._open(version)
            actions = table.get_add_actions(flatten=False)
            deleted = _deleted(table) if vectors else None
            partitions = _partitions(table, actions)
        count, names = actions.num_rows, actions.column_names
        rows = actions["num_records"].to_pylist() if "num_records" in names else [None] * count
        paths, sizes = actions["path"].to_pylist(), actions["size_bytes"].to_pylist()
        named = [f"/{unquote(path)}" for path in paths]
        known = deleted if deleted is not None and deleted.keys() <= set(named) else None
        places = [None if known is None else known.get(name, b"") for name in named]
        return [
            DataFile(path=path, bytes=size, rows=stored, partition=values, deleted=gone)
            for path, size, stored, values, gone in zip(
                paths, sizes, rows, partitions, places, strict=True
            )
        ]

    def sizes(self, column: str | None, version: int | None = None) -> dict[str | None, TenantSize]:
        """Per tenant (one entry None without a tenant column): files, bytes, stored rows."""
        grouped: dict[str | None, list[DataFile]] = defaultdict(list)
        for each in self.data_files(version):
            grouped[each.tenant(column)].append(each)
        return {tenant: _sized(files) for tenant, files in grouped.items()}

    def _open(self, version: int | None = None) -> Any:
        if version is not None and version in self._opened:
            return self._opened[version]
        table = open_table(self.location, self.options, version)
        self._opened.clear()
        self._opened[table.version()] = table
        return table


def _partitions(table: Any, actions: Any) -> list[dict[str, Any]]:
    """The partition values of each file.

    deltalake turns empty texts into null here, so in a column that has any, a null is `Unheld`.
    """
    if "partition" not in actions.column_names:
        return [{}] * int(actions.num_rows)
    try:
        found = list(actions["partition"].to_pylist())
    except ValueError:
        found = _one_by_one(actions["partition"])
    if not any(None in each.values() for each in found):
        return found
    said = (each.items() for each in table.partitions())
    unsure = dict.fromkeys((name for each in said for name, text in each if text == ""), Unheld(""))
    return [
        {name: unsure.get(name) if value is None else value for name, value in each.items()}
        for each in found
    ]


def _one_by_one(partitions: Any) -> list[dict[str, Any]]:
    """The partition values where some are dates that Python does not support."""
    import pyarrow as pa

    table = pa.Table.from_struct_array(pa.chunked_array(partitions))
    columns = [[_value(each) for each in column] for column in table.columns]
    return [dict(zip(table.column_names, each, strict=True)) for each in zip(*columns, strict=True)]


def _value(scalar: Any) -> Any:
    import pyarrow as pa

    try:
        return scalar.as_py()
    except (ValueError, OverflowError):
        text = str(scalar.cast(pa.string())) if pa.types.is_date(scalar.type) else ""
        return Unheld(f"+{text}" if len(text) > len("9999-12-31") and text[0] != "-" else text)


def _deleted(table: Any) -> dict[str, Places] | None:
    """The places of deleted rows, by file path below the table's folder.

    None where deltalake cannot read them, as for some tables that it can open.
    """
    import numpy as np
    import pyarrow as pa
    from deltalake.exceptions import DeltaError

    root, found = unquote(table.table_uri).rstrip("/"), {}
    try:
        batches = table.deletion_vectors()
    except DeltaError:
        return None
    for batch in pa.RecordBatchReader.from_stream(batches):
        for uri, kept in zip(batch["filepath"], batch["selection_vector"], strict=True):
            places = np.flatnonzero(~kept.values.to_numpy(zero_copy_only=False))
            name = unquote(uri.as_py()).removeprefix(root)
            found[name] = places.astype(np.int64).tobytes()
    return found


def tenant_name(value: str | None) -> str | None:
    """The tenant that a partition value names.

    None for null (also stored for the empty string) and for a text that is no name (`is_name`).
    """
    return value if value and is_name(value) else None


def _name(value: Any) -> str | None:
    text = str(value)
    return None if value is None else tenant_name(text.lower() if isinstance(value, bool) else text)


def _sized(files: list[DataFile]) -> TenantSize:
    return TenantSize(
        files=len(files),
        bytes=sum(each.bytes for each in files),
        rows=_total([each.rows for each in files]),
    )


def _total(counts: list[int | None]) -> int | None:
    known = [each for each in counts if each is not None]
    return sum(known) if len(known) == len(counts) else None
