"""Reads a request's statement, held until it is complete; requests take turns."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from chdb_http.http.body import MAX_HELD_BYTES
from chdb_http.sql.errors import Code, EngineError
from chdb_http.sql.octets import to_bytes
from chdb_http.sql.parse import parse_in_turns

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Generator

    from chdb_http.sql.statement import Statement


# An incomplete text is parsed again once it is this many times as long.
_LOOK_AGAIN = 4


class StatementReader:
    """Reads statements for all requests of the server.

    Parses one step of one long statement at a time. Between steps the event loop answers other
    requests, so neither a long statement nor many of them hold up the server.
    """

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def read(
        self, query: str, chunks: AsyncIterator[bytes], limit: int
    ) -> tuple[Statement, AsyncIterator[bytes]]:
        """The statement and the rows after it, which are still to be read.

        The URL's query and the body are one text with a line break between (ClickHouse doc: HTTP
        interface). Raises `EngineError` 62 for a statement of more than `limit` bytes; rows do not
        count (ClickHouse doc: max_query_size). With 0 only the server's own limit applies.
        """
        text = bytearray(to_bytes(query) + b"\n" if query else b"")
        next_look = 0
        async for chunk in chunks:
            text += chunk
            if len(text) >= min(next_look, _compute_limit(limit) + 1):
                statement = await self._parse_text(text, limit, complete=False)
                if statement is not None:
                    return statement, _join_rows(bytes(text[statement.data_start :]), chunks)
                next_look = _LOOK_AGAIN * len(text)
        statement = await self._parse_text(text, limit, complete=True)
        if statement is None:
            raise EngineError(Code.SYNTAX_ERROR, "Syntax error: the statement has no end")
        return statement, _join_rows(bytes(text[statement.data_start :]), chunks)

    async def _parse_text(self, text: bytearray, limit: int, *, complete: bool) -> Statement | None:
        max_bytes = _compute_limit(limit)
        is_whole = complete and len(text) <= max_bytes
        statement = await self._run_in_turns(
            parse_in_turns(bytes(text[: max_bytes + 1]), complete=is_whole)
        )
        if len(text) > max_bytes and (statement is None or len(statement.text) > max_bytes):
            raise _make_length_error(max_bytes, limit)
        return statement

    async def _run_in_turns(
        self, steps: Generator[None, None, Statement | None]
    ) -> Statement | None:
        while True:
            try:
                next(steps)
            except StopIteration as end:
                statement: Statement | None = end.value
                return statement
            async with self._turn:
                await asyncio.sleep(0)


def _compute_limit(limit: int) -> int:
    return min(limit or MAX_HELD_BYTES, MAX_HELD_BYTES)


async def _join_rows(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    if first:
        yield first
    async for chunk in rest:
        yield chunk


def _make_length_error(max_bytes: int, limit: int) -> EngineError:
    if max_bytes != limit:
        return EngineError(
            Code.QUERY_IS_TOO_LARGE,
            f"Query is too large: more than {max_bytes} bytes. Send rows after INSERT",
        )
    return EngineError(
        Code.SYNTAX_ERROR,
        "Max query size exceeded (can be increased with the `max_query_size` setting): Syntax "
        f"error: failed at position {max_bytes + 1}: the statement is longer than {max_bytes} "
        "bytes",
    )
