"""Handles a request: checks the account, reads the query, runs it and answers."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from starlette.requests import ClientDisconnect, Request

from chdb_http.engine.hints import add_hint
from chdb_http.engine.options import Options, check_url, read_options
from chdb_http.engine.query import ExternalTable, Query
from chdb_http.http.body import Body, check_size, read_whole
from chdb_http.http.forms import is_multipart, parse_form
from chdb_http.http.reading import StatementReader
from chdb_http.http.reply import Reply
from chdb_http.sql.errors import Code, EngineError, from_engine
from chdb_http.sql.octets import to_text
from chdb_http.sql.statement import Verb
from chdb_http.sql.tokens import split_list

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.types import Receive, Scope, Send

    from chdb_http.http.auth import Account
    from chdb_http.http.exchange import Exchange
    from chdb_http.http.forms import FormPart

_LOG = logging.getLogger(__name__)
# External tables are held in memory, as the engine holds them.
_MAX_FORM_BYTES = 1 << 30


class QueryHandler:
    """The ASGI application of the query path; `account` None lets everybody in."""

    def __init__(self, exchange: Exchange, account: Account | None) -> None:
        self._exchange = exchange
        self._account = account
        self._reader = StatementReader()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        options = Options(query="", query_id="")
        try:
            check_url(scope["query_string"])
            if self._account is not None:
                self._account.check(request)
            options = read_options(request)
        except EngineError as error:
            await Reply(send, self._exchange.engine, options).fail(error)
            return
        await self._answer_request(request, options, send)

    async def _answer_request(self, request: Request, options: Options, send: Send) -> None:
        reply = Reply(send, self._exchange.engine, options)
        try:
            query, rows = await self._read_query(request, options)
            reply = Reply(send, self._exchange.engine, query.options)
            if query.statement.verb is Verb.INSERT_ROWS:
                await self._exchange.insert(query, rows, reply)
            else:
                await self._exchange.answer(query, reply, request.receive)
        except EngineError as error:
            await reply.fail(add_hint(error, read_only=options.read_only))
        except ClientDisconnect:
            return
        except Exception as error:  # noqa: BLE001 - the server logs its own faults
            _LOG.exception("a request failed")
            await reply.fail(from_engine(error))

    async def _read_query(
        self, request: Request, options: Options
    ) -> tuple[Query, AsyncIterator[bytes]]:
        chunks = Body(request.stream(), options.content_encoding).read_chunks()
        content_type = request.headers.get("content-type", "")
        tables: tuple[ExternalTable, ...] = ()
        if is_multipart(content_type):
            body = await read_whole(chunks, _MAX_FORM_BYTES)
            parts = await asyncio.to_thread(parse_form, content_type, body)
            files = (part for part in parts if part.filename is not None)
            tables = tuple(_build_external_table(part, options) for part in files)
            fields = [(p.name, _decode_field(p)) for p in parts if p.filename is None]
            options = options.add_fields(fields, [table.name for table in tables])
        limit = self._exchange.slots.get_max_query_bytes(options)
        statement, rows = await self._reader.read(options.query, chunks, limit)
        return Query(statement=statement, options=options, tables=tables), rows


def _decode_field(field: FormPart) -> str:
    check_size(len(field.data))
    return to_text(field.data)


def _build_external_table(part: FormPart, options: Options) -> ExternalTable:
    """A file of a form; the URL's NAME_structure or NAME_types describe it."""
    described = options.settings
    structure = described.get(f"{part.name}_structure")
    if structure is None:
        types = described.get(f"{part.name}_types")
        if types is None:
            raise EngineError(
                Code.BAD_ARGUMENTS,
                f"External table {part.name} has no columns; add the parameter "
                f"{part.name}_structure or {part.name}_types",
            )
        structure = ", ".join(f"_{at} {type_}" for at, type_ in enumerate(split_list(types), 1))
    return ExternalTable(
        name=part.name,
        structure=structure,
        format=described.get(f"{part.name}_format", "TabSeparated"),
        data=part.data,
    )
