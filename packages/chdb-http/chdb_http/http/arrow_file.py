"""Reads Arrow's file format as its stream format, so that an insert need not hold a whole file.

A file is an eight byte magic, the stream, and a footer that ends in the magic's six letters
(Arrow doc: IPC file format).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chdb_http.sql.errors import Code, EngineError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

FILE_FORMAT = "Arrow"
STREAM_FORMAT = "ArrowStream"
_MAGIC = b"ARROW1"
_MAGIC_BLOCK = 8


async def extract_stream(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The stream within a file. Raises `EngineError` when either end lacks the magic."""
    head, tail = b"", b""
    async for chunk in chunks:
        tail = (tail + chunk)[-len(_MAGIC) :]
        if len(head) < _MAGIC_BLOCK:
            head += chunk
            if len(head) < _MAGIC_BLOCK:
                continue
            _check_magic(head.startswith(_MAGIC), "does not begin")
            yield head[_MAGIC_BLOCK:]
        else:
            yield chunk
    _check_magic(tail == _MAGIC and len(head) >= _MAGIC_BLOCK, "does not end")


def _check_magic(holds: bool, fault: str) -> None:  # noqa: FBT001
    if not holds:
        raise EngineError(
            Code.INCORRECT_DATA,
            f"The rows in format Arrow are not a whole Arrow file: the body {fault} with ARROW1. "
            "Send the whole file, or use FORMAT ArrowStream for a stream",
        )
