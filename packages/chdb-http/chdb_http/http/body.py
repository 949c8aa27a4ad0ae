"""The body of a request, decoded as it arrives."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from chdb_http.http.codecs import make_decoder
from chdb_http.sql.errors import Code, EngineError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

# The most bytes held of any text except streamed rows, whatever max_query_size says.
MAX_HELD_BYTES = 1 << 26
_INLINE_BYTES = 1 << 14


class Body:
    """A decoded request body. Chunks come once; `raw` raises when the client goes away."""

    def __init__(self, raw: AsyncIterator[bytes], content_encoding: str) -> None:
        self._raw = raw
        self._decoder = make_decoder(content_encoding)
        self._plain = content_encoding.strip().lower() in {"", "identity"}

    async def read_chunks(self) -> AsyncIterator[bytes]:
        """The decoded bytes, in portions. Raises `EngineError` for a body of another encoding."""
        async for chunk in self._raw:
            if data := await self._decode(chunk):
                yield data
            while self._decoder.pending:
                if data := await asyncio.to_thread(self._decoder.decompress, b""):
                    yield data
        self._decoder.finish()

    async def _decode(self, chunk: bytes) -> bytes:
        if self._plain or len(chunk) < _INLINE_BYTES:
            return self._decoder.decompress(chunk)
        return await asyncio.to_thread(self._decoder.decompress, chunk)


async def read_whole(chunks: AsyncIterator[bytes], limit: int = MAX_HELD_BYTES) -> bytes:
    """All of the bytes. Raises `EngineError` 229 beyond `limit`."""
    data = bytearray()
    async for chunk in chunks:
        data += chunk
        check_size(len(data), limit)
    return bytes(data)


def check_size(size: int, limit: int = MAX_HELD_BYTES) -> None:
    """Raise `EngineError` 229 for a text of more than `limit` bytes."""
    if size > limit:
        raise EngineError(
            Code.QUERY_IS_TOO_LARGE,
            f"Query is too large: {size} bytes, the limit is {limit}. Send rows after INSERT",
        )
