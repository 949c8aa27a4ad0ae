"""Which rows lie on which shard: ClickHouse decides, as for a Distributed table.

A Distributed table takes a signed hash as the unsigned number of the same width before the modulo
(src/DataTypes/createBlockSelector of ClickHouse).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from iscp_dagster.clickhouse.connect.endpoint import ClickHouseEndpoint
from iscp_dagster.clickhouse.connect.external import build_external_data
from iscp_dagster.clickhouse.connect.quoting import quote_identifier
from iscp_dagster.clickhouse.types.storage import StoredType
from iscp_dagster.clickhouse.types.wire import encode_column, find_misfits
from iscp_dagster.model.declared.sharding import Sharding

_TABLE, _ROW = "placed", "row"
_SETTINGS = {"allow_suspicious_low_cardinality_types": 1}


@dataclass(frozen=True, kw_only=True)
class ShardSelector:
    """Selects one shard's rows by asking that shard's own ClickHouse; picklable.

    A row whose key is null, or cannot be held, has no hash: it goes to the first shard.
    """

    endpoint: ClickHouseEndpoint
    name: str
    """The index's name, for messages."""
    sharding: Sharding
    stored_types: Mapping[str, StoredType]
    """How the columns of the sharding key are kept."""

    def select_rows(self, rows: pa.Table) -> pa.Table:
        """Return the shard's rows, in their order. Raises UnavailableError, ClickHouseError."""
        if self.sharding.shards == 1 or not rows.num_rows:
            return rows
        unplaceable = self._find_unplaceable(rows)
        all_rows = range(rows.num_rows)
        numbers = pa.array(
            [n for n in all_rows if n not in unplaceable] if unplaceable else all_rows, pa.int64()
        )
        chunks = [*self._query_own_rows(rows.select(list(self.stored_types)), numbers)]
        if self.sharding.shard == 0:
            chunks.append(pa.array(sorted(unplaceable), pa.int64()))
        own_rows = pa.chunked_array(chunks, pa.int64()).combine_chunks()
        return rows.take(own_rows.sort() if unplaceable else own_rows)

    def _find_unplaceable(self, rows: pa.Table) -> set[int]:
        """Return the rows whose key has no hash: it cannot be held, or is null."""
        unplaceable = set[int]()
        for name, stored in self.stored_types.items():
            unplaceable |= {row for row, _ in find_misfits(rows[name], stored)}
            nulls = rows[name].is_null().to_pylist() if rows[name].null_count else []
            unplaceable |= {row for row, null in enumerate(nulls) if null}
        return unplaceable

    def _query_own_rows(self, keys: pa.Table, numbers: pa.Array) -> Iterable[pa.Array]:
        """Return which of the row `numbers` lie on the shard, in order."""
        if not len(numbers):
            return []
        placed = keys if len(numbers) == keys.num_rows else keys.take(numbers)
        fit = {
            f"c{n}": encode_column(placed[name], column)
            for n, (name, column) in enumerate(self.stored_types.items())
        }
        types = [str(column.type.bare) for column in self.stored_types.values()]
        hashed = render_hash(self.sharding, list(fit))
        with self.endpoint.translate_errors(f"place rows of {self.name}"):
            result = self.endpoint.get_client().query_arrow(
                f"SELECT {_ROW} FROM {_TABLE} "
                f"WHERE {hashed} % {{shards:UInt64}} = {{shard:UInt64}} ORDER BY {_ROW}",
                parameters={"shards": self.sharding.shards, "shard": self.sharding.shard},
                external_data=build_external_data(
                    _TABLE, pa.table({**fit, _ROW: numbers}), [*types, "Int64"]
                ),
                settings=_SETTINGS,
            )
        return list(result[_ROW].chunks)


def render_hash(sharding: Sharding, columns: Iterable[str]) -> str:
    """Return the hash, before the modulo, by which a Distributed table places a row."""
    called = f"{sharding.hash_function}({', '.join(map(quote_identifier, columns))})"
    function = sharding.function
    return f"reinterpretAsUInt{function.bits}({called})" if function.signed else called
