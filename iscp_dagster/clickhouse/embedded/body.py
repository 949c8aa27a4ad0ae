"""The body of a request, read as it arrives: the statement first, then rows."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from iscp_dagster.clickhouse.embedded.codecs import decoder
from iscp_dagster.clickhouse.embedded.errors import Code, EngineError
from iscp_dagster.clickhouse.embedded.parse import parse

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from iscp_dagster.clickhouse.embedded.statement import Statement

# Text that is no streamed insert is held whole; the engine's max_query_size is far below.
MAX_HELD_BYTES = 1 << 26
_INLINE_BYTES = 1 << 14


class Body:
    """A decoded request body. Chunks come once; `raw` raises when the client goes away."""

    def __init__(self, raw: AsyncIterator[bytes], content_encoding: str) -> None:
        self._raw = raw
        self._decoder = decoder(content_encoding)
        self._plain = content_encoding.strip().lower() in {"", "identity"}

    async def chunks(self) -> AsyncIterator[bytes]:
        """The decoded bytes. Raises `EngineError` for a body that is not encoded as it says."""
        async for chunk in self._raw:
            if data := await self._decode(chunk):
                yield data
        self._decoder.finish()

    async def _decode(self, chunk: bytes) -> bytes:
        if self._plain or len(chunk) < _INLINE_BYTES:
            return self._decoder.decompress(chunk)
        return await asyncio.to_thread(self._decoder.decompress, chunk)


async def read_whole(chunks: AsyncIterator[bytes], limit: int = MAX_HELD_BYTES) -> bytes:
    """All of the bytes. Raises `EngineError` 229 beyond `limit`."""
    held = bytearray()
    async for chunk in chunks:
        held += chunk
        _check(len(held), limit)
    return bytes(held)


async def read_statement(
    query: str, chunks: AsyncIterator[bytes]
) -> tuple[Statement, AsyncIterator[bytes]]:
    """The statement of a request and the rows after it, which are still to be read.

    A query of the URL and the body are one text with a line break between (ClickHouse doc:
    HTTP interface).
    """
    held = bytearray(query.encode() + b"\n" if query else b"")
    next_look = 0
    async for chunk in chunks:
        if not held and query:
            held += b"\n"
        held += chunk
        if len(held) >= next_look:
            statement = parse(bytes(held), complete=False)
            if statement is not None:
                return statement, _rows(bytes(held[statement.data_start :]), chunks)
            next_look = 2 * len(held)
        _check(len(held), MAX_HELD_BYTES)
    text = bytes(held)
    statement = parse(text, complete=True)
    if statement is None:
        raise EngineError(Code.SYNTAX_ERROR, "Syntax error: the statement has no end")
    return statement, _rows(text[statement.data_start :], chunks)


async def _rows(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    if first:
        yield first
    async for chunk in rest:
        yield chunk


def _check(size: int, limit: int) -> None:
    if size > limit:
        raise EngineError(
            Code.QUERY_IS_TOO_LARGE,
            f"Query is too large: {size} bytes, the limit is {limit}. Send rows after INSERT",
        )
