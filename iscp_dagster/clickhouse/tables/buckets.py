"""Partitions that tenants share: a tenant is replaced by newer rows and tombstones (ADR 48).

No statement rewrites or drops a part, so the tenants beside it are written meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence

from clickhouse_cityhash.cityhash import CityHash64

from iscp_dagster.clickhouse.connect.portions import split_names
from iscp_dagster.clickhouse.connect.quoting import quote_identifier, quote_string
from iscp_dagster.model.declared.schema import DELETED
from iscp_dagster.model.declared.sharding import DEFAULT_HASH


def render_bucket(column: str, buckets: int) -> str:
    """Return the expression of a row's bucket: the hash by which `Distributed` places it."""
    return f"{DEFAULT_HASH}(toString({quote_identifier(column)})) % {buckets}"


def compute_bucket(tenant: str, buckets: int) -> int:
    """Return the bucket of a tenant as `render_bucket` gives it."""
    return int(CityHash64(tenant.encode())) % buckets


def render_tombstones(target: str, rows: str, columns: Sequence[str], condition: str) -> str:
    """Return the INSERT into `target` of a tombstone for each live row where `condition` is true.

    A tombstone has its row's values and version: of two equal versions ClickHouse keeps the one
    that came last.
    """
    names = ", ".join(map(quote_identifier, columns))
    values = ", ".join("1" if name == DELETED else quote_identifier(name) for name in columns)
    return f"INSERT INTO {target} ({names}) SELECT {values} FROM {rows} FINAL WHERE {condition}"


def render_attachments(table: str, source: str, partitions: Sequence[str]) -> list[str]:
    """Return the statements that add these partitions of `source` to the table's.

    Atomic for readers of each partition; repeating them changes nothing that readers see.
    """
    return [
        f"ALTER TABLE {table} "
        + ", ".join(f"ATTACH PARTITION ID {quote_string(id_)} FROM {source}" for id_ in portion)
        for portion in split_names(partitions)
    ]
