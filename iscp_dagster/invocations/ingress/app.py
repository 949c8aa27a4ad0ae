"""The web application of the runtime: ingress and administration in one."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import Lifespan

from iscp_dagster.invocations.ingress.admin import Admin
from iscp_dagster.invocations.ingress.backend import Backend
from iscp_dagster.invocations.ingress.invoking import Bounds, Invoking, Waiting
from iscp_dagster.invocations.ingress.outputs import Awakeables, Outputs
from iscp_dagster.invocations.ingress.refusals import (
    NOT_FOUND,
    PLAIN,
    UNAVAILABLE,
    RefusedError,
    refusal,
    told,
)
from iscp_dagster.invocations.ingress.tokens import Gate
from iscp_dagster.model.errors import IscpError, UnavailableError
from iscp_dagster.web.admission import Admission, Guard

HEALTH = "/restate/health"
_LOGGER = logging.getLogger(__name__)
_FAILED = 500
Answer = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What an application is made from. Without a `token` it must listen on loopback alone."""

    backend: Backend
    token: str = field(default="", repr=False)
    admission: Admission = field(default_factory=Admission)
    """Guards a server without a token against foreign web pages."""
    bounds: Bounds = field(default_factory=Bounds)
    routes: Sequence[BaseRoute] = ()
    """Routes of others, such as services of the process's own."""
    lifespan: Lifespan[Starlette] | None = None


def create_app(settings: Settings) -> Starlette:
    """The application; errors are JSON with `code` and `message`."""
    return Starlette(
        routes=_routes(settings),
        middleware=[_guard(settings)],
        exception_handlers={HTTPException: _http, RefusedError: _refused},
        lifespan=settings.lifespan,
    )


def _guard(settings: Settings) -> Middleware:
    if settings.token:
        return Middleware(Gate, token=settings.token, open_to_all=frozenset({HEALTH}))

    def forbidden(status: int, reason: str, headers: Mapping[str, str]) -> Response:
        return told(status, status, reason, headers)

    return Middleware(Guard, admission=settings.admission, told=forbidden)


def _routes(settings: Settings) -> list[BaseRoute]:
    backend, bounds = settings.backend, settings.bounds
    waiting = Waiting(backend, bounds.waiting)
    outputs = _careful(Outputs(backend=backend, waiting=waiting))
    invoking = _careful(Invoking(backend=backend, waiting=waiting, bounds=bounds))
    awakeables = _careful(Awakeables(backend=backend, bounds=bounds))
    return [
        Route(HEALTH, _healthy),
        Route("/restate/awakeables/{rest:path}", awakeables, methods=["POST"]),
        Route("/restate/invocation/{rest:path}", outputs),
        Route("/restate/workflow/{rest:path}", outputs),
        *(_administering(each) for each in Admin(backend=backend).routes()),
        *settings.routes,
        *(Route(f"/{own}{{rest:path}}", _nothing, methods=_METHODS) for own in _OWN),
        Route("/{rest:path}", invoking, methods=["POST"]),
    ]


_OWN = ("restate/", "admin/", "services/")
_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


def _administering(route: Route) -> Route:
    methods = sorted(route.methods or ())
    return Route(route.path, _careful(route.endpoint), methods=methods)


def _careful(answer: Answer) -> Answer:
    """The answers, also to a request that fails: 503 while the database is away, else 500."""

    async def careful(request: Request) -> Response:
        try:
            return await answer(request)
        except RefusedError as refused:
            return refusal(refused)
        except UnavailableError as error:
            return told(UNAVAILABLE, UNAVAILABLE, str(error), {"Retry-After": "1"})
        except IscpError as error:
            return told(_FAILED, _FAILED, str(error))
        except Exception:
            _LOGGER.exception("%s %s failed", request.method, request.url.path)
            return told(_FAILED, _FAILED, "The request failed; see the server's log.")

    return careful


async def _healthy(_request: Request) -> Response:
    return JSONResponse({"status": "ok"}, headers=PLAIN)


async def _nothing(request: Request) -> Response:
    raise RefusedError(NOT_FOUND, f"There is nothing at {request.method} {request.url.path}.")


async def _http(_request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    return told(error.status_code, error.status_code, f"{error.detail}.", error.headers)


async def _refused(_request: Request, error: Exception) -> Response:
    if not isinstance(error, RefusedError):
        raise error
    return refusal(error)
