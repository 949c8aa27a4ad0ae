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
        held = bytearray(to_bytes(query) + b"\n" if query else b"")
        next_look = 0
        async for chunk in chunks:
            held += chunk
            if len(held) >= min(next_look, _most(limit) + 1):
                statement = await self._parse(held, limit, complete=False)
                if statement is not None:
                    return statement, _rows(bytes(held[statement.data_start :]), chunks)
                next_look = _LOOK_AGAIN * len(held)
        statement = await self._parse(held, limit, complete=True)
        if statement is None:
            raise EngineError(Code.SYNTAX_ERROR, "Syntax error: the statement has no end")
        return statement, _rows(bytes(held[statement.data_start :]), chunks)

    async def _parse(self, held: bytearray, limit: int, *, complete: bool) -> Statement | None:
        most = _most(limit)
        whole = complete and len(held) <= most
        statement = await self._in_turns(parse_in_turns(bytes(held[: most + 1]), complete=whole))
        if len(held) > most and (statement is None or len(statement.text) > most):
            raise _too_long(most, limit)
        return statement

    async def _in_turns(self, steps: Generator[None, None, Statement | None]) -> Statement | None:
        while True:
            try:
                next(steps)
            except StopIteration as end:
                statement: Statement | None = end.value
                return statement
            async with self._turn:
                await asyncio.sleep(0)


def _most(limit: int) -> int:
    return min(limit or MAX_HELD_BYTES, MAX_HELD_BYTES)


async def _rows(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    if first:
        yield first
    async for chunk in rest:
        yield chunk


def _too_long(most: int, limit: int) -> EngineError:
    if most != limit:
        return EngineError(
            Code.QUERY_IS_TOO_LARGE,
            f"Query is too large: more than {most} bytes. Send rows after INSERT",
        )
    return EngineError(
        Code.SYNTAX_ERROR,
        "Max query size exceeded (can be increased with the `max_query_size` setting): Syntax "
        f"error: failed at position {most + 1}: the statement is longer than {most} bytes",
    )
