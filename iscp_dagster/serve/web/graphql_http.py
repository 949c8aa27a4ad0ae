"""Executes GraphQL requests that come by HTTP, each in a thread, within its time."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
from anyio import CapacityLimiter, to_thread
from graphql import ExecutionResult, GraphQLError, OperationType
from starlette.requests import Request
from starlette.responses import Response

from iscp_dagster.model.errors import IscpError
from iscp_dagster.serve.access import Access, UnauthenticatedError, Viewer, parse_bearer
from iscp_dagster.serve.graph.client_errors import (
    INTERNAL,
    TIMEOUT,
    UNAUTHENTICATED,
    format_error,
    log_and_describe_error,
)
from iscp_dagster.serve.graph.documents import DocumentError, DocumentLimits, validate_document
from iscp_dagster.serve.graph.executing import execute_query
from iscp_dagster.serve.graph.schema_cache import SchemaCache
from iscp_dagster.serve.reads.caps import Caps, RequestContext
from iscp_dagster.serve.web.requests import (
    RESPONSE,
    GraphQLRequest,
    RefusedRequestError,
    check_content,
    choose_media_type,
    parse_body,
    parse_url_parameters,
    read_body,
)

_BODY_SECONDS = 20
"""How long a client may take to send a request."""
_GRACE_SECONDS = 2
"""ClickHouse ends a query at its time; then the answer is on its way."""


@dataclass(frozen=True, kw_only=True)
class HttpBounds:
    """The limits of one server."""

    body_bytes: int = 256 * 1024
    """Bytes of a request."""
    max_running: int = 16
    """Requests that are executed at the same time."""
    max_waiting: int = 1_000
    """Requests that wait for that."""
    wait_seconds: float = 5.0
    """Seconds for which they wait."""
    document_limits: DocumentLimits = field(default_factory=DocumentLimits)
    caps: Caps = field(default_factory=Caps)


class GraphQLOverHTTP:
    """The endpoint of queries."""

    def __init__(self, schemas: SchemaCache, access: Access, bounds: HttpBounds) -> None:
        self._schemas, self._access, self._bounds = schemas, access, bounds
        self._slots = CapacityLimiter(bounds.max_running)
        self._request_count = 0

    async def __call__(self, request: Request) -> Response:
        """Answer a request; every refusal has the form of a GraphQL answer."""
        media = RESPONSE
        try:
            media = choose_media_type(request.headers.get("accept"))
            viewer = await self._identify_viewer(request)
            graphql_request = await self._read_request(request)
            return await self._accept_request(viewer, graphql_request, _get_method(request), media)
        except RefusedRequestError as refused:
            return _build_refusal(refused, media)

    async def _identify_viewer(self, request: Request) -> Viewer:
        token = parse_bearer(request.headers.get("authorization"))
        try:
            return await to_thread.run_sync(self._access.identify_viewer, token)
        except UnauthenticatedError as error:
            headers = {"WWW-Authenticate": "Bearer"}
            raise RefusedRequestError(401, UNAUTHENTICATED, str(error), headers) from error
        except Exception as error:
            raise RefusedRequestError(500, INTERNAL, log_and_describe_error(error)[0]) from error

    async def _read_request(self, request: Request) -> GraphQLRequest:
        if _get_method(request) == "GET":
            return parse_url_parameters(request.query_params)
        check_content(request.headers.get("content-type"))
        with anyio.move_on_after(_BODY_SECONDS):
            return parse_body(await read_body(request, self._bounds.body_bytes))
        raise RefusedRequestError(408, "REQUEST_TIMEOUT", "The request did not arrive in time.")

    async def _accept_request(
        self, viewer: Viewer, graphql_request: GraphQLRequest, method: str, media: str
    ) -> Response:
        # The limiter counts waiting requests only once they wait.
        if self._request_count >= self._bounds.max_running + self._bounds.max_waiting:
            raise _make_busy_error()
        self._request_count += 1
        try:
            async with self._acquire_slot():
                return await self._execute_in_time(viewer, graphql_request, method, media)
        finally:
            self._request_count -= 1

    @asynccontextmanager
    async def _acquire_slot(self) -> AsyncIterator[None]:
        """Hold one of the slots. Raises RefusedRequestError if none is free in time."""
        with anyio.move_on_after(self._bounds.wait_seconds) as scope:
            await self._slots.acquire()
        if scope.cancelled_caught:
            raise _make_busy_error()
        try:
            yield
        finally:
            self._slots.release()

    async def _execute_in_time(
        self, viewer: Viewer, graphql_request: GraphQLRequest, method: str, media: str
    ) -> Response:
        asking = RequestContext(viewer=viewer, caps=self._bounds.caps)
        with anyio.move_on_after(self._bounds.caps.seconds + _GRACE_SECONDS):
            # The thread writes the JSON, too: it may be large, and others are served meanwhile.
            return await to_thread.run_sync(
                lambda: self._execute_request(asking, graphql_request, method, media),
                limiter=CapacityLimiter(1),
                abandon_on_cancel=True,
            )
        raise RefusedRequestError(504, TIMEOUT, "The query took longer than this server allows.")

    def _execute_request(
        self, context: RequestContext, graphql_request: GraphQLRequest, method: str, media: str
    ) -> Response:
        try:
            status, answer = self._answer_query(context, graphql_request, method)
        except DocumentError as refused:
            status, answer = 400, {"errors": [dict(error.formatted) for error in refused.errors]}
        return _build_response(
            answer, media, status if media == RESPONSE else _to_json_status(status)
        )

    def _answer_query(
        self, context: RequestContext, graphql_request: GraphQLRequest, method: str
    ) -> tuple[int, dict[str, Any]]:
        """Return the answer, and the status that it has as application/graphql-response+json."""
        try:
            ready = self._schemas.get_schema()
            document = validate_document(
                ready,
                graphql_request.query,
                graphql_request.operation,
                self._bounds.document_limits,
            )
        except DocumentError:
            raise
        except IscpError as error:
            message, code = log_and_describe_error(error)
            return 503, _format_failure(message, code)
        if document.operation.operation is not OperationType.QUERY:
            raise RefusedRequestError(
                405 if method == "GET" else 400,
                "BAD_REQUEST",
                "Subscriptions come by websocket, with the subprotocol graphql-transport-ws.",
                {"Allow": "POST"} if method == "GET" else None,
            )
        return _format_result(execute_query(ready, document, context, graphql_request.variables))


def _make_busy_error() -> RefusedRequestError:
    headers = {"Retry-After": "1"}
    return RefusedRequestError(503, "OVERLOADED", "The server is busy; ask again.", headers)


def _get_method(request: Request) -> str:
    """The method; HEAD is a GET without its body."""
    return "GET" if request.method == "HEAD" else request.method


def _format_result(result: ExecutionResult) -> tuple[int, dict[str, Any]]:
    errors = [format_error(error) for error in result.errors or ()]
    if result.data is None and not any("path" in error for error in errors):
        return 400, {"errors": errors}
    return 200, {"data": result.data, **({"errors": errors} if errors else {})}


def _format_failure(message: str, code: str) -> dict[str, Any]:
    return {"errors": [dict(GraphQLError(message, extensions={"code": code}).formatted)]}


def _build_refusal(refused: RefusedRequestError, media: str) -> Response:
    answer = _format_failure(str(refused), refused.code)
    return _build_response(answer, media, refused.status, refused.headers)


def _build_response(
    answer: Mapping[str, Any], media: str, status: int, headers: Mapping[str, str] | None = None
) -> Response:
    content = json.dumps(answer, ensure_ascii=False, separators=(",", ":")).encode()
    all_headers = {
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
        **(headers or {}),
    }
    return Response(content, status, all_headers, f"{media}; charset=utf-8")


def _to_json_status(status: int) -> int:
    """Return the status of an answer as application/json: 200 also for a refused document."""
    return status if status in _SERVERS_FAULT else 200


_SERVERS_FAULT = range(500, 600)
