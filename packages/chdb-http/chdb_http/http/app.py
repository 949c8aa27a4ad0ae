"""The paths of ClickHouse's HTTP interface."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from asgi_guards.admission import Guard

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send

    from asgi_guards.admission import Admission

_OK = "Ok.\n"
_METHODS = ("GET", "HEAD", "POST", "OPTIONS")
_ALLOWED_HEADERS = ("Authorization", "Content-Type", "Content-Encoding", "X-ClickHouse-Format")
_EXPOSED_HEADERS = (
    *("X-ClickHouse-Summary", "X-ClickHouse-Query-Id", "X-ClickHouse-Format"),
    *("X-ClickHouse-Timezone", "X-ClickHouse-Exception-Code", "X-ClickHouse-Exception-Tag"),
)


def build_app(queries: ASGIApp, admission: Admission) -> Starlette:
    """The application; `queries` answers admitted requests that carry a statement."""
    root = _RootApp(queries)
    app = Starlette(
        routes=[
            Route("/ping", _answer_ok),
            Route("/replicas_status", _answer_ok),
            Route("/", root),
            Route("/query", root),
        ],
        exception_handlers={404: _answer_not_found},
        middleware=_build_middleware(admission),
    )
    app.router.redirect_slashes = False
    return app


def _build_middleware(admission: Admission) -> list[Middleware]:
    guard = Middleware(Guard, admission=admission)
    if not admission.origins:
        return [guard]
    shared = Middleware(
        CORSMiddleware,
        allow_origins=sorted(admission.origins),
        allow_methods=_METHODS,
        allow_headers=_ALLOWED_HEADERS,
        expose_headers=_EXPOSED_HEADERS,
    )
    return [guard, shared]


class _RootApp:
    """Answers queries, and health checks and browsers on the same path."""

    def __init__(self, queries: ASGIApp) -> None:
        self._queries = queries

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method, is_bare = scope["method"], scope["path"] == "/" and not scope["query_string"]
        answer: ASGIApp
        if method == "OPTIONS":
            answer = Response(status_code=204, headers={"Allow": ", ".join(_METHODS)})
        elif method in {"GET", "HEAD"} and is_bare:
            answer = PlainTextResponse(_OK)
        elif method in {"GET", "HEAD", "POST"}:
            answer = self._queries
        else:
            answer = PlainTextResponse(f"Method {method} is not supported.\n", status_code=501)
        await answer(scope, receive, send)


async def _answer_ok(_: Request) -> Response:
    return PlainTextResponse(_OK)


async def _answer_not_found(request: Request, _: Exception) -> Response:
    target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    text = (
        f"There is no handle {target}\n\n"
        "Use / or /ping for health checks.\n"
        "Or /replicas_status for more sophisticated health checks.\n\n"
        "Send queries from your program with POST method or GET /?query=...\n"
    )
    return PlainTextResponse(text, status_code=404)
