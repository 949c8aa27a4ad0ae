"""Changes that do not say which rows remain: a snapshot does.

If a key is inserted while it exists, a later delete may be of either row. And texts in Delta's
change feed may have lost bytes: it turns them into Java strings, where U+FFFD replaces what is not
UTF-8.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from iscp_dagster.clickhouse.connect.endpoint import ClickHouseEndpoint
from iscp_dagster.clickhouse.connect.external import build_external_data
from iscp_dagster.clickhouse.connect.quoting import quote_identifier
from iscp_dagster.clickhouse.write.conversion import fit_keys
from iscp_dagster.clickhouse.write.targets import Target
from iscp_dagster.model.declared.schema import SYSTEM_COLUMNS
from iscp_dagster.model.errors import FeedGoneError

REPEATS = "_repeats"
"""Marks a key that was inserted twice; in a table without keys, a row changed or deleted."""
FRESH = "_fresh"
"""Marks a key whose first change in the scan is an insert."""
REPLACEMENT = "\ufffd".encode()
_TABLE = "fresh"


def refuse_ambiguous_changes(
    endpoint: ClickHouseEndpoint | None, target: Target | None, chunk: pa.Table, since: int | None
) -> None:
    """Reject a chunk of changes that inserts a key which already exists; writes nothing.

    `target` at `endpoint` shows which keys existed at version `since`; if one of these is None, as
    when rows are staged, only marked repeats are found. Two rows of the source then have that
    key. An index holds only one of them, and a later delete of either would remove the key. Raises
    FeedGoneError, since a snapshot shows what exists, and UnavailableError.
    """
    twins: list[dict[str, Any]] = []
    if REPEATS in chunk.schema.names:
        repeated = chunk.filter(chunk[REPEATS]).slice(0, 1)
        names = list(target.identity) if target and target.keys else repeated.schema.names
        twins += repeated.select(names).to_pylist()
    marked = FRESH in chunk.schema.names and not twins
    if marked and endpoint is not None and target is not None and since is not None:
        twins += _find_served_keys(endpoint, target, chunk.filter(chunk[FRESH]), since)
    if twins:
        raise FeedGoneError(_describe_unclear(target, twins[0]))


def _describe_unclear(target: Target | None, row: Mapping[str, Any]) -> str:
    name = target.name if target else "changes"
    if target is not None and not target.keys:
        reason = f"row {dict(row)} was changed or deleted, and it has no key"
    else:
        key = dict(row) if target is None else {column: row[column] for column in target.keys}
        reason = f"key {key} was inserted while it existed"
    return f"{name}: {reason}, so the changes do not say which rows remain; a snapshot does."


def _find_served_keys(
    endpoint: ClickHouseEndpoint, target: Target, fresh: pa.Table, since: int
) -> list[dict[str, Any]]:
    """Return at most one of the keys that `target` served at version `since`."""
    keys = fit_keys(target, fresh.select(list(target.identity)).drop_null())
    if not keys.num_rows:
        return []
    with endpoint.translate_errors(f"look for keys in {target.database}.{target.table}"):
        result = endpoint.get_client().query(
            _render_query(target),
            parameters={"version": since},
            external_data=_build_key_table(target, keys),
            settings=endpoint.read_settings,
        )
        return list(result.named_results())


def _render_query(target: Target) -> str:
    version, _, deleted = map(quote_identifier, SYSTEM_COLUMNS)
    live = (
        f"argMax({deleted}, {version}) = 0"
        if target.index is None
        else target.index.render_live_condition()
    )
    key = ", ".join(map(quote_identifier, target.identity))
    numbered = ", ".join(f"c{n}" for n, _ in enumerate(target.identity))
    table = quote_identifier(target.database, target.table)
    return (
        f"SELECT {key} FROM {table}{' FINAL' if target.keeps_replaced_rows else ''} "
        f"WHERE ({key}) IN (SELECT {numbered} FROM {_TABLE}) AND {version} <= {{version:UInt64}} "
        f"GROUP BY {key} HAVING {live} LIMIT 1"
    )


def _build_key_table(target: Target, keys: pa.Table) -> Any:
    numbered = keys.rename_columns([f"c{n}" for n, _ in enumerate(target.identity)])
    return build_external_data(_TABLE, numbered, target.identity.values())


def refuse_replacement_chars(chunk: pa.Table) -> None:
    """Reject a chunk of changes that may have lost bytes. Raises FeedGoneError."""
    for name in chunk.schema.names:
        for values in chunk[name].chunks:
            if any(_has_replacement(texts) for texts in _list_texts(values)):
                raise FeedGoneError(
                    f"Column {name!r} has the character U+FFFD in the changes, which may stand "
                    "for bytes that are not UTF-8; a snapshot has the bytes."
                )


def _has_replacement(texts: pa.Array) -> bool:
    matches = pc.match_substring(texts.cast(pa.binary()), REPLACEMENT)
    return pc.any(matches).as_py() is True


def _list_texts(values: pa.Array) -> Iterator[pa.Array]:
    """Yield the texts at any depth; for a slice perhaps its neighbours' too."""
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        yield values
    elif pa.types.is_map(values.type):
        yield from _list_texts(values.keys)
        yield from _list_texts(values.items)
    elif pa.types.is_list(values.type):
        yield from _list_texts(values.flatten())
    elif pa.types.is_struct(values.type):
        for part in values.flatten():
            yield from _list_texts(part)
