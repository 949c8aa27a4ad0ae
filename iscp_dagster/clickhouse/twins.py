"""Keys that come in while they are there already: the changes then do not say what remains."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa

from iscp_dagster.clickhouse.endpoint import Endpoint
from iscp_dagster.clickhouse.fitting import fitting_keys
from iscp_dagster.clickhouse.quoting import ident
from iscp_dagster.clickhouse.targets import Target
from iscp_dagster.core.errors import FeedGoneError

REPEATS = "_repeats"
"""Marks, in a scan of changes, a key that came in twice within the range."""
FRESH = "_fresh"
"""Marks, in a scan of changes, a key whose first change is a row that comes in."""
_TABLE = "fresh"


def refuse_twins(endpoint: Endpoint, target: Target | None, chunk: pa.Table) -> None:
    """Refuse a chunk of changes in which a key came in that was there already; writes nothing.

    What was there before the range is what `target` serves; without one nobody can tell. Two rows
    of the source have that key then, of which an index can hold but one, and a later delete of
    either would take the key away. Raises FeedGoneError, as a snapshot tells what is there;
    UnavailableError.
    """
    twins: list[dict[str, Any]] = []
    if REPEATS in chunk.schema.names:
        repeated = chunk.filter(chunk[REPEATS]).slice(0, 1)
        names = repeated.schema.names if target is None else list(target.identity)
        twins += repeated.select(names).to_pylist()
    if FRESH in chunk.schema.names and target is not None and not twins:
        twins += _served(endpoint, target, chunk.filter(chunk[FRESH]))
    if twins:
        key = twins[0] if target is None else {name: twins[0][name] for name in target.keys}
        raise FeedGoneError(
            f"{target.name if target else 'changes'}: key {key} came in while it was there "
            "already, so the changes do not say which row is the last; a snapshot does."
        )


def _served(endpoint: Endpoint, target: Target, fresh: pa.Table) -> list[dict[str, Any]]:
    """One at most of those keys that `target` served before the range of its changes.

    They travel as an external table (ClickHouse docs, "External Data for Query Processing").
    """
    if target.token is None:
        return []
    keys = fitting_keys(target, fresh.select(list(target.identity)).drop_null())
    if not keys.num_rows:
        return []
    with endpoint.errors(f"look for keys in {target.database}.{target.table}"):
        found = endpoint.client().query(
            _query(target),
            parameters={"version": target.token.range.from_.version},
            external_data=_external(target, keys),
        )
        return list(found.named_results())


def _query(target: Target) -> str:
    version, _, deleted = map(ident, target.system)
    key = ", ".join(map(ident, target.identity))
    numbered = ", ".join(f"c{n}" for n, _ in enumerate(target.identity))
    return (
        f"SELECT {key} FROM {ident(target.database, target.table)} "
        f"WHERE ({key}) IN (SELECT {numbered} FROM {_TABLE}) AND {version} <= {{version:UInt64}} "
        f"GROUP BY {key} HAVING argMax({deleted}, {version}) = 0 LIMIT 1"
    )


def _external(target: Target, keys: pa.Table) -> Any:
    from clickhouse_connect.driver.external import ExternalData

    numbered = keys.rename_columns([f"c{n}" for n, _ in enumerate(target.identity)])
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, numbered.schema) as stream:
        stream.write_table(numbered)
    types = target.identity.values()
    return ExternalData(
        file_name=_TABLE,
        data=sink.getvalue(),
        fmt="ArrowStream",
        structure=[f"c{n} {type_}" for n, type_ in enumerate(types)],
    )
