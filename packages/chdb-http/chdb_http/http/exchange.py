"""Runs statements: a thread of the engine's pool for each, pipes for rows and results."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from chdb_http.http import arrow_file
from chdb_http.http.pipes import Pipe, read_chunks, write_all
from chdb_http.sql.errors import EngineError
from chdb_http.sql.rewrite import build_insert_from_pipe, build_select_into_pipe
from chdb_http.sql.statement import Verb

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from concurrent.futures import Future

    from starlette.types import Receive

    from chdb_http.engine.engine import Engine, Outcome
    from chdb_http.engine.query import Query
    from chdb_http.engine.slots import StatementRunner
    from chdb_http.http.reply import Reply

_CANCEL_ON_CLOSE = "cancel_http_readonly_queries_on_client_close"
_ASK_AGAIN_SECONDS = 0.02


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """Runs queries on the engine and writes their replies."""

    engine: Engine
    slots: StatementRunner

    async def answer(self, query: Query, reply: Reply, receive: Receive) -> None:
        """Run any statement but an insert with rows."""
        if query.statement.verb is Verb.SELECT:
            await self._run_select(query, reply, receive)
            return
        if query.statement.verb is Verb.KILL and not query.options.read_only:
            future = self.engine.run_kill(query.statement.text, query.output_format)
        else:
            future = self.slots.start(query, query.statement.text)
        async with self._cancel_on_disconnect(query, reply, receive, future):
            outcome = await asyncio.wrap_future(future)
        has_result = query.statement.reads_only or bool(outcome.data)
        if outcome.data:
            await reply.write(outcome.data, query.output_format)
        await reply.finish(outcome, query.output_format if has_result else None)

    async def _run_select(self, query: Query, reply: Reply, receive: Receive) -> None:
        pipe = Pipe()
        sql = build_select_into_pipe(query.statement, pipe.writer, query.options.default_format)
        future = self._start_statement(query, sql, pipe, pipe.writer)
        try:
            async with self._cancel_on_disconnect(query, reply, receive, future):
                async for chunk in read_chunks(pipe.reader):
                    await reply.write(chunk, query.output_format)
                outcome = await asyncio.wrap_future(future)
        finally:
            pipe.close(pipe.reader)
            await self._cancel_statement(query, future)
        await reply.finish(outcome, query.output_format)

    async def insert(self, query: Query, rows: AsyncIterator[bytes], reply: Reply) -> None:
        """Run an insert with the rows that follow it.

        When the client goes away or sends broken rows nothing more is written: the statement is
        canceled before its pipe is closed, which would look like the end of the rows.
        """
        query, rows = await _convert_arrow_file(query, rows)
        pipe = Pipe()
        future = self._start_statement(
            query, build_insert_from_pipe(query.statement, pipe.reader), pipe, pipe.reader
        )
        complete = False
        try:
            with suppress(BrokenPipeError):
                async for chunk in rows:
                    await write_all(pipe.writer, chunk)
            complete = True
        finally:
            if not complete:
                await self._mark_canceled(query, future)
            pipe.close(pipe.writer)
        await reply.finish(await asyncio.wrap_future(future), None)

    def _start_statement(self, query: Query, sql: bytes, pipe: Pipe, end: int) -> Future[Outcome]:
        """Start a statement that holds one end of the pipe open while it runs."""
        try:
            future = self.slots.start(query, sql)
        except EngineError:
            pipe.close_all()
            raise
        future.add_done_callback(lambda _: pipe.close(end))
        return future

    @asynccontextmanager
    async def _cancel_on_disconnect(
        self, query: Query, reply: Reply, receive: Receive, future: Future[Outcome]
    ) -> AsyncIterator[None]:
        """Cancel a statement that only reads if its client times out or disconnects."""
        if not query.statement.reads_only:
            yield
            return
        watch = asyncio.ensure_future(self._watch_client(query, reply, receive, future))
        try:
            yield
        finally:
            watch.cancel()

    async def _watch_client(
        self, query: Query, reply: Reply, receive: Receive, future: Future[Outcome]
    ) -> None:
        while (await receive())["type"] != "http.disconnect":
            continue
        if query.options.settings.get(_CANCEL_ON_CLOSE) in {"0", "false"}:
            await reply.streaming.wait()
        await self._cancel_statement(query, future)

    async def _cancel_statement(self, query: Query, future: Future[Outcome]) -> None:
        """Make the statement end; does nothing if it is finished."""
        while not future.done():
            await asyncio.wrap_future(self.engine.kill(query.options.query_id))
            await _wait_ended(future, _ASK_AGAIN_SECONDS)

    async def _mark_canceled(self, query: Query, future: Future[Outcome]) -> None:
        """Mark the statement as canceled; it ends when its pipe does."""
        while not future.done():
            if await asyncio.wrap_future(self.engine.kill(query.options.query_id)):
                return
            await _wait_ended(future, _ASK_AGAIN_SECONDS)


async def _wait_ended(future: Future[Outcome], seconds: float) -> None:
    """Wait `seconds` at most for a statement's end; whoever runs it handles its result."""
    waited = asyncio.wrap_future(future)
    waited.add_done_callback(lambda task: task.cancelled() or task.exception())
    await asyncio.wait({waited}, timeout=seconds)


async def _convert_arrow_file(
    query: Query, rows: AsyncIterator[bytes]
) -> tuple[Query, AsyncIterator[bytes]]:
    """Arrow files become Arrow streams, which the engine reads without holding them whole."""
    if (query.statement.format or "").lower() != arrow_file.FILE_FORMAT.lower():
        return query, rows
    statement = replace(query.statement, format=arrow_file.STREAM_FORMAT)
    return replace(query, statement=statement), arrow_file.extract_stream(rows)
