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
from iscp_dagster.serve.access import Access, UnauthenticatedError, Viewer, bearer
from iscp_dagster.serve.graph.documents import DocumentError, Shape, checked
from iscp_dagster.serve.graph.executing import executed
from iscp_dagster.serve.graph.schemas import Schemas
from iscp_dagster.serve.graph.told import INTERNAL, TIMEOUT, UNAUTHENTICATED, said, told
from iscp_dagster.serve.reads.caps import Asking, Caps
from iscp_dagster.serve.web.requests import (
    RESPONSE,
    Asked,
    RefusedError,
    body,
    check_content,
    media_type,
    of_body,
    of_url,
)

_BODY_SECONDS = 20
"""How long a client may take to send a request."""
_GRACE_SECONDS = 2
"""ClickHouse ends a query at its time; then the answer is on its way."""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """What one server takes on."""

    body: int = 256 * 1024
    """Bytes of a request."""
    together: int = 16
    """Requests that are executed at the same time."""
    waiting: int = 1_000
    """Requests that wait for that."""
    patience: float = 5.0
    """Seconds for which they wait."""
    shape: Shape = field(default_factory=Shape)
    caps: Caps = field(default_factory=Caps)


class GraphQLOverHTTP:
    """The endpoint of queries."""

    def __init__(self, schemas: Schemas, access: Access, bounds: Bounds) -> None:
        self._schemas, self._access, self._bounds = schemas, access, bounds
        self._places = CapacityLimiter(bounds.together)
        self._inside = 0

    async def __call__(self, request: Request) -> Response:
        """Answer a request; every refusal has the form of a GraphQL answer."""
        media = RESPONSE
        try:
            media = media_type(request.headers.get("accept"))
            viewer = await self._viewer(request)
            asked = await self._asked(request)
            return await self._executed(viewer, asked, _method(request), media)
        except RefusedError as refused:
            return _refusal(refused, media)

    async def _viewer(self, request: Request) -> Viewer:
        token = bearer(request.headers.get("authorization"))
        try:
            return await to_thread.run_sync(self._access.viewer, token)
        except UnauthenticatedError as error:
            headers = {"WWW-Authenticate": "Bearer"}
            raise RefusedError(401, UNAUTHENTICATED, str(error), headers) from error
        except Exception as error:
            raise RefusedError(500, INTERNAL, said(error)[0]) from error

    async def _asked(self, request: Request) -> Asked:
        if _method(request) == "GET":
            return of_url(request.query_params)
        check_content(request.headers.get("content-type"))
        with anyio.move_on_after(_BODY_SECONDS):
            return of_body(await body(request, self._bounds.body))
        raise RefusedError(408, "REQUEST_TIMEOUT", "The request did not arrive in time.")

    async def _executed(self, viewer: Viewer, asked: Asked, method: str, media: str) -> Response:
        # A limiter counts those that wait only once they do.
        if self._inside >= self._bounds.together + self._bounds.waiting:
            raise _busy()
        self._inside += 1
        try:
            async with self._place():
                return await self._in_time(viewer, asked, method, media)
        finally:
            self._inside -= 1

    @asynccontextmanager
    async def _place(self) -> AsyncIterator[None]:
        """Hold one of the places. Raises RefusedError if none is free in time."""
        with anyio.move_on_after(self._bounds.patience) as waited:
            await self._places.acquire()
        if waited.cancelled_caught:
            raise _busy()
        try:
            yield
        finally:
            self._places.release()

    async def _in_time(self, viewer: Viewer, asked: Asked, method: str, media: str) -> Response:
        asking = Asking(viewer=viewer, caps=self._bounds.caps)
        with anyio.move_on_after(self._bounds.caps.seconds + _GRACE_SECONDS):
            # The thread makes the text, too: it may be large, and others are served meanwhile.
            return await to_thread.run_sync(
                lambda: self._answered(asking, asked, method, media),
                limiter=CapacityLimiter(1),
                abandon_on_cancel=True,
            )
        raise RefusedError(504, TIMEOUT, "The query took longer than this server allows.")

    def _answered(self, asking: Asking, asked: Asked, method: str, media: str) -> Response:
        try:
            status, answer = self._answer(asking, asked, method)
        except DocumentError as refused:
            status, answer = 400, {"errors": [dict(each.formatted) for each in refused.errors]}
        return _response(answer, media, status if media == RESPONSE else _plain(status))

    def _answer(self, asking: Asking, asked: Asked, method: str) -> tuple[int, dict[str, Any]]:
        """Return the answer, and the status that it has as application/graphql-response+json."""
        try:
            ready = self._schemas.current()
            found = checked(ready, asked.query, asked.operation, self._bounds.shape)
        except DocumentError:
            raise
        except IscpError as error:
            message, code = said(error)
            return 503, _failed(message, code)
        if found.operation.operation is not OperationType.QUERY:
            raise RefusedError(
                405 if method == "GET" else 400,
                "BAD_REQUEST",
                "Subscriptions come by websocket, with the subprotocol graphql-transport-ws.",
                {"Allow": "POST"} if method == "GET" else None,
            )
        return _told(executed(ready, found, asking, asked.variables))


def _busy() -> RefusedError:
    headers = {"Retry-After": "1"}
    return RefusedError(503, "OVERLOADED", "The server is busy; ask again.", headers)


def _method(request: Request) -> str:
    """The method; HEAD asks for a GET without its body."""
    return "GET" if request.method == "HEAD" else request.method


def _told(result: ExecutionResult) -> tuple[int, dict[str, Any]]:
    errors = [told(each) for each in result.errors or ()]
    if result.data is None and not any("path" in each for each in errors):
        return 400, {"errors": errors}
    return 200, {"data": result.data, **({"errors": errors} if errors else {})}


def _failed(message: str, code: str) -> dict[str, Any]:
    return {"errors": [dict(GraphQLError(message, extensions={"code": code}).formatted)]}


def _refusal(refused: RefusedError, media: str) -> Response:
    answer = _failed(str(refused), refused.code)
    return _response(answer, media, refused.status, refused.headers)


def _response(
    answer: Mapping[str, Any], media: str, status: int, headers: Mapping[str, str] | None = None
) -> Response:
    content = json.dumps(answer, ensure_ascii=False, separators=(",", ":")).encode()
    said_ = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", **(headers or {})}
    return Response(content, status, said_, f"{media}; charset=utf-8")


def _plain(status: int) -> int:
    """Return the status of an answer as application/json: 200 also for a refused document."""
    return status if status in _SERVERS_FAULT else 200


_SERVERS_FAULT = range(500, 600)
