"""The web application of the runtime: ingress and administration in one."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import Lifespan

from asgi_guards.admission import Admission, Guard
from asgi_guards.draining import DrainMiddleware
from durable_invocations.errors import DurableError, UnavailableError
from durable_invocations.ingress.admin import Admin, Answer
from durable_invocations.ingress.backend import Backend, Catalog
from durable_invocations.ingress.invoking import IngressBounds, Invoking, ResultWaiter
from durable_invocations.ingress.outputs import Awakeables, Outputs
from durable_invocations.ingress.refusals import (
    BAD,
    PLAIN,
    UNAVAILABLE,
    RefusedError,
    make_error_response,
    make_refusal_response,
)
from durable_invocations.ingress.tokens import Gate

R = TypeVar("R", Mount, Route)
HEALTH = "/restate/health"
_LOGGER = logging.getLogger(__name__)
_FAILED = 500


@dataclass(frozen=True, kw_only=True)
class IngressSettings:
    """Settings of the application. Without a `token` it must listen only on loopback."""

    backend: Backend
    token: str = field(default="", repr=False)
    credential: str = "the runtime's token"
    """What a refusal says to send."""
    admission: Admission = field(default_factory=Admission)
    """Guards a server without a token against foreign web pages."""
    bounds: IngressBounds = field(default_factory=IngressBounds)
    open_below: str = ""
    """A path below which no token is required: it cannot be guessed."""
    own: str = ""
    """The id of the process's own deployment, if there is one."""
    routes: Sequence[BaseRoute] = ()
    """More routes, such as the process's own services."""
    lifespan: Lifespan[Starlette] | None = None


def create_app(settings: IngressSettings) -> Starlette:
    """The application; errors are JSON with `code` and `message`."""
    return Starlette(
        routes=_build_routes(settings),
        middleware=[Middleware(DrainMiddleware), _build_guard(settings)],
        exception_handlers={HTTPException: _answer_http_error},
        lifespan=settings.lifespan,
    )


def _build_guard(settings: IngressSettings) -> Middleware:
    if settings.token:
        open_below = f"{settings.open_below}/" if settings.open_below else ""
        arguments = {"token": settings.token, "name": settings.credential}
        return Middleware(Gate, **arguments, open_at=HEALTH, open_below=open_below)

    def answer_forbidden(status: int, reason: str, headers: Mapping[str, str]) -> Response:
        return make_error_response(status, status, reason, headers)

    return Middleware(Guard, admission=settings.admission, make_response=answer_forbidden)


def _build_routes(settings: IngressSettings) -> list[BaseRoute]:
    backend, bounds = settings.backend, settings.bounds
    waiter = ResultWaiter(backend, bounds.waiting, bounds.still)
    outputs = _handle_errors(Outputs(backend=backend, waiting=waiter))
    catalog = Catalog(backend)
    invoking = Invoking(backend=backend, waiting=waiter, bounds=bounds, catalog=catalog)
    awakeables = _handle_errors(Awakeables(backend=backend, bounds=bounds))
    restate = [
        Route("/health", _answer_health),
        Route("/awakeables/{rest:path}", awakeables, methods=["POST"]),
        Route("/invocation/{rest:path}", outputs),
        Route("/workflow/{rest:path}", outputs),
    ]
    admin = [
        _build_admin_route(*route)
        for route in Admin(backend=backend, own=settings.own).list_routes()
    ]
    return [
        _match_multiline(Mount("/restate", routes=[*map(_match_multiline, restate)])),
        Mount("/admin", routes=admin),
        *settings.routes,
        _match_multiline(Route("/{rest:path}", _handle_errors(invoking), methods=["POST"])),
    ]


def _match_multiline(route: R) -> R:
    """The route, which then also matches paths with line breaks, as keys may have."""
    route.path_regex = re.compile(route.path_regex.pattern, re.DOTALL)
    return route


def _build_admin_route(path: str, answers: Mapping[str, Answer]) -> Route:
    """One route for all methods of a path, so that other methods get 405."""
    handlers = {method: _handle_errors(answer) for method, answer in answers.items()}

    async def answer(request: Request) -> Response:
        # HEAD is a GET without its body.
        return await handlers["GET" if request.method == "HEAD" else request.method](request)

    return Route(path, answer, methods=list(handlers))


def _handle_errors(answer: Answer) -> Answer:
    """Answer failed requests too: 503 while the database is unavailable, else 500."""

    async def answer_safely(request: Request) -> Response:
        try:
            _check_nul(request)
            return await answer(request)
        except RefusedError as refused:
            return make_refusal_response(refused)
        except UnavailableError as error:
            return make_error_response(UNAVAILABLE, UNAVAILABLE, str(error), {"Retry-After": "1"})
        except DurableError as error:
            return make_error_response(_FAILED, _FAILED, str(error))
        except Exception:
            _LOGGER.exception("%s %s failed", request.method, request.url.path)
            return make_error_response(
                _FAILED, _FAILED, "The request failed; see the server's log."
            )

    return answer_safely


def _check_nul(request: Request) -> None:
    """Refuse a NUL: no name has one, and PostgreSQL raises an error for it."""
    if any("\0" in text for text in (request.scope["path"], *request.query_params.values())):
        raise RefusedError(BAD, "The path or the query contains a NUL.")


async def _answer_health(_request: Request) -> Response:
    return JSONResponse({"status": "ok"}, headers=PLAIN)


async def _answer_http_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    allowed = (error.headers or {}).get("Allow", "")
    suggestion = f"; use {' or '.join(sorted(allowed.split(', ')))}" if allowed else ""
    message = f"{request.method} {request.url.path}: {error.detail}{suggestion}."
    return make_error_response(error.status_code, error.status_code, message, error.headers)
