"""The paths of ClickHouse's HTTP interface."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send

_OK = "Ok.\n"
_CORS = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Headers": "origin, x-requested-with, x-clickhouse-format, "
    "x-clickhouse-user, x-clickhouse-key, Authorization",
    "Access-Control-Allow-Methods": "POST, GET, OPTIONS",
    "Access-Control-Max-Age": "86400",
}


def build_app(queries: ASGIApp) -> Starlette:
    """The application; `queries` answers whatever carries a statement."""
    root = _Root(queries)
    app = Starlette(
        routes=[
            Route("/ping", _ok),
            Route("/replicas_status", _ok),
            Route("/", root),
            Route("/query", root),
        ],
        exception_handlers={404: _no_handle},
    )
    app.router.redirect_slashes = False
    return app


class _Root:
    """Queries, and what the same path says to health checks and browsers."""

    def __init__(self, queries: ASGIApp) -> None:
        self._queries = queries

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method, bare = scope["method"], scope["path"] == "/" and not scope["query_string"]
        answer: ASGIApp
        if method == "OPTIONS":
            answer = Response(status_code=204, headers=_CORS)
        elif method in {"GET", "HEAD"} and bare:
            answer = PlainTextResponse(_OK)
        elif method in {"GET", "HEAD", "POST"}:
            answer = self._queries
        else:
            answer = PlainTextResponse(f"Method {method} is not supported.\n", status_code=501)
        await answer(scope, receive, send)


async def _ok(_: Request) -> Response:
    return PlainTextResponse(_OK)


async def _no_handle(request: Request, _: Exception) -> Response:
    target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    text = (
        f"There is no handle {target}\n\n"
        "Use / or /ping for health checks.\n"
        "Or /replicas_status for more sophisticated health checks.\n\n"
        "Send queries from your program with POST method or GET /?query=...\n"
    )
    return PlainTextResponse(text, status_code=404)
