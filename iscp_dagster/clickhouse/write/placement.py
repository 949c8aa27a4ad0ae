"""Which rows lie on which shard: ClickHouse decides, as for a Distributed table.

A Distributed table takes a signed hash as the unsigned number of the same width before the modulo
(src/DataTypes/createBlockSelector of ClickHouse).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from iscp_dagster.clickhouse.connect.endpoint import Endpoint
from iscp_dagster.clickhouse.connect.external import external
from iscp_dagster.clickhouse.connect.quoting import ident
from iscp_dagster.clickhouse.types.stored import Stored
from iscp_dagster.clickhouse.types.wire import misfits, sent
from iscp_dagster.model.declared.sharding import Sharding

_TABLE, _ROW = "placed", "row"
_SETTINGS = {"allow_suspicious_low_cardinality_types": 1}


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Selects one shard's rows by asking that shard's own ClickHouse; picklable.

    A row whose key is null, or cannot be held, has no hash: it goes to the first shard.
    """

    endpoint: Endpoint
    name: str
    """The index's name, for messages."""
    sharding: Sharding
    stored: Mapping[str, Stored]
    """How the columns of the sharding key are kept."""

    def mine(self, rows: pa.Table) -> pa.Table:
        """Return the shard's rows, in their order. Raises UnavailableError, ClickHouseError."""
        if self.sharding.shards == 1 or not rows.num_rows:
            return rows
        strange = self._strange(rows)
        every = range(rows.num_rows)
        numbers = pa.array([n for n in every if n not in strange] if strange else every, pa.int64())
        found = [*self._asked(rows.select(list(self.stored)), numbers)]
        if self.sharding.shard == 0:
            found.append(pa.array(sorted(strange), pa.int64()))
        chosen = pa.chunked_array(found, pa.int64()).combine_chunks()
        return rows.take(chosen.sort() if strange else chosen)

    def _strange(self, rows: pa.Table) -> set[int]:
        """Return the rows whose key has no hash: it cannot be held, or is null."""
        strange = set[int]()
        for name, kept in self.stored.items():
            strange |= {row for row, _ in misfits(rows[name], kept)}
            nulls = rows[name].is_null().to_pylist() if rows[name].null_count else []
            strange |= {row for row, null in enumerate(nulls) if null}
        return strange

    def _asked(self, keys: pa.Table, numbers: pa.Array) -> Iterable[pa.Array]:
        """Return those of the row `numbers` that are the shard's, in order."""
        if not len(numbers):
            return []
        kept = keys if len(numbers) == keys.num_rows else keys.take(numbers)
        fit = {
            f"c{n}": sent(kept[name], each) for n, (name, each) in enumerate(self.stored.items())
        }
        types = [str(each.type.bare) for each in self.stored.values()]
        hashed = hash_of(self.sharding, list(fit))
        with self.endpoint.errors(f"place rows of {self.name}"):
            found = self.endpoint.client().query_arrow(
                f"SELECT {_ROW} FROM {_TABLE} "
                f"WHERE {hashed} % {{shards:UInt64}} = {{shard:UInt64}} ORDER BY {_ROW}",
                parameters={"shards": self.sharding.shards, "shard": self.sharding.shard},
                external_data=external(_TABLE, pa.table({**fit, _ROW: numbers}), [*types, "Int64"]),
                settings=_SETTINGS,
            )
        return list(found[_ROW].chunks)


def hash_of(sharding: Sharding, columns: Iterable[str]) -> str:
    """Return the hash, before the modulo, by which a Distributed table places a row."""
    called = f"{sharding.hash_function}({', '.join(map(ident, columns))})"
    function = sharding.function
    return f"reinterpretAsUInt{function.bits}({called})" if function.signed else called
