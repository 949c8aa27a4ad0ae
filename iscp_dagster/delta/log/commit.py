"""One commit of a Delta log, read from its JSON lines. Pure: bytes in, values out.

Delta protocol, "Actions". Keeps only what change detection needs: which tenants changed, how much,
and which files a reader of the change feed opens; of a file's statistics only the row count.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, NamedTuple

from iscp_dagster.delta.log.vectors import get_vector_path
from iscp_dagster.model.errors import SourceError

FEED_PROPERTY = "delta.enableChangeDataFeed"
MAX_PROBES = 1_000
LEAST_BYTES_PER_ROW = 8
"""Bytes assumed per row where the log gives no row count."""
MOST_BYTES_PER_ROW = 1024
"""Bytes assumed per row where the log gives a row count but no file size."""
_ROWS = re.compile(r'"numRecords"\s*:\s*(\d+)')
PartitionValues = tuple[tuple[str, str | None], ...]


class Volume(NamedTuple):
    """The bytes and rows that one version adds to its change feed; `rows` includes removed ones."""

    bytes: int
    rows: int

    def add(self, other: Volume) -> Volume:
        return Volume(self.bytes + other.bytes, self.rows + other.rows)


class OpenedFile(NamedTuple):
    """A file and the partition of its rows; None where the log does not give the partition."""

    path: str
    partition: PartitionValues | None


class FeedFile(NamedTuple):
    """A file of a version's change feed, `path` as the log writes it.

    `action`: "cdc", whose rows carry their change type; "add", whose rows were inserted; "remove",
    whose rows were deleted.
    """

    action: str
    path: str
    partition: PartitionValues
    bytes: int = 0
    """0 where the log does not say."""
    rows: int | None = None
    """None where the log does not say."""

    @property
    def weight(self) -> float:
        """Its bytes, else an estimate from its rows; infinite where the log gives neither."""
        return self.bytes or (inf if self.rows is None else self.rows * MOST_BYTES_PER_ROW)


@dataclass(frozen=True, kw_only=True)
class Metadata:
    """A `metaData` action: the table's identity, schema and properties from this commit on."""

    table_id: str
    schema: str
    partition_columns: tuple[str, ...]
    configuration: Mapping[str, str] = field(default_factory=dict)

    @property
    def feed_enabled(self) -> bool:
        return self.configuration.get(FEED_PROPERTY, "false").lower() == "true"


@dataclass(frozen=True, kw_only=True)
class Commit:
    """What one version did. `changed` maps partition values to the volume written there.

    `changed` is None when an action gives no partition, so that it is unknown who changed.
    `rewritten` holds the partition values whose rows were deleted or updated, None for the same
    reason.
    `opened_files` are the first files that a reader of this version's change feed opens. `feed`
    holds all files of that feed; None if it is more than files (deletion vectors), a partition
    is missing, or there are too many.
    """

    version: int
    in_commit_micros: int | None = None
    operation: str = ""
    changed: Mapping[PartitionValues, Volume] | None = field(default_factory=dict)
    rewritten: frozenset[PartitionValues] | None = frozenset()
    opened_files: tuple[OpenedFile, ...] = ()
    feed: tuple[FeedFile, ...] | None = ()
    metadata: Metadata | None = None
    reader_features: frozenset[str] | None = None


def parse_commit(version: int, content: bytes) -> Commit:
    """Read one `_delta_log/<version>.json`. Raises SourceError when it is not JSON actions."""
    try:
        return _parse_actions(version, content)
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        cause = f"{type(error).__name__}: {error}"
        message = (
            f"Commit {version} of the Delta log is not JSON lines of actions ({cause}); restore it."
        )
        raise SourceError(message) from error


def _parse_actions(version: int, content: bytes) -> Commit:
    actions: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in content.splitlines():
        for kind, action in json.loads(line).items() if line.strip() else ():
            actions[kind].append(action)
    info = next(iter(actions["commitInfo"]), {})
    data = _list_data_actions(actions)
    return Commit(
        version=version,
        in_commit_micros=_to_micros(info.get("inCommitTimestamp")),
        operation=str(info.get("operation", "")),
        changed=_sum_volumes(data),
        rewritten=_list_rewritten_partitions(data),
        opened_files=tuple(_list_probes(action for _, action in data[:MAX_PROBES])),
        feed=_list_feed_files(data),
        metadata=next(map(_parse_metadata, actions["metaData"]), None),
        reader_features=next(
            (frozenset(protocol.get("readerFeatures") or ()) for protocol in actions["protocol"]),
            None,
        ),
    )


def _list_data_actions(
    actions: Mapping[str, list[dict[str, Any]]],
) -> list[tuple[str, dict[str, Any]]]:
    """As the change feed has them: the cdc files if any, else adds and removes of data."""
    if actions.get("cdc"):
        return [("cdc", action) for action in actions["cdc"]]
    return [
        (kind, action)
        for kind in ("add", "remove")
        for action in actions.get(kind, ())
        if action.get("dataChange", True)
    ]


def _list_probes(actions: Iterable[dict[str, Any]]) -> Iterator[OpenedFile]:
    for action in actions:
        partition = _get_partition(action)
        yield OpenedFile(action["path"], partition)
        vector = get_vector_path(action)
        if vector is not None:
            yield OpenedFile(vector, partition)


def _list_feed_files(data: list[tuple[str, dict[str, Any]]]) -> tuple[FeedFile, ...] | None:
    files = []
    for kind, action in data if len(data) <= MAX_PROBES else ():
        partition = _get_partition(action)
        if partition is None or action.get("deletionVector"):
            return None
        size = int(action.get("size") or 0)
        files.append(FeedFile(kind, action["path"], partition, size, _parse_row_count(action)))
    return tuple(files) if len(files) == len(data) else None


def _sum_volumes(
    data: Iterable[tuple[str, dict[str, Any]]],
) -> dict[PartitionValues, Volume] | None:
    totals: dict[PartitionValues, Volume] = {}
    for kind, action in data:
        partition = _get_partition(action)
        if partition is None:
            return None
        totals[partition] = _measure_volume(kind, action).add(totals.get(partition, Volume(0, 0)))
    return totals


def _measure_volume(kind: str, action: Mapping[str, Any]) -> Volume:
    """The bytes written, and the rows written or removed."""
    size = int(action.get("size") or 0)
    rows = _parse_row_count(action)
    return Volume(
        0 if kind == "remove" else size, size // LEAST_BYTES_PER_ROW if rows is None else rows
    )


def _parse_row_count(action: Mapping[str, Any]) -> int | None:
    match = _ROWS.search(action.get("stats") or "")
    return int(match[1]) if match else None


def _list_rewritten_partitions(
    data: Iterable[tuple[str, dict[str, Any]]],
) -> frozenset[PartitionValues] | None:
    all_partitions = [_get_partition(action) for kind, action in data if kind != "add"]
    partitions = frozenset(partition for partition in all_partitions if partition is not None)
    return None if None in all_partitions else partitions


def _get_partition(action: Mapping[str, Any]) -> PartitionValues | None:
    """The partition of an action's file; None where the action does not give it."""
    values = action.get("partitionValues")
    return None if values is None else tuple(sorted(values.items()))


def _parse_metadata(action: dict[str, Any]) -> Metadata:
    return Metadata(
        table_id=action["id"],
        schema=action["schemaString"],
        partition_columns=tuple(action.get("partitionColumns", ())),
        configuration=action.get("configuration") or {},
    )


def _to_micros(millis: int | None) -> int | None:
    return None if millis is None else millis * 1_000
