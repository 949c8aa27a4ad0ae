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
from asgi_guards.draining import Draining
from durable_invocations.errors import DurableError, UnavailableError
from durable_invocations.ingress.admin import Admin, Answer
from durable_invocations.ingress.backend import Backend, Catalog
from durable_invocations.ingress.invoking import Bounds, Invoking, Waiting
from durable_invocations.ingress.outputs import Awakeables, Outputs
from durable_invocations.ingress.refusals import (
    BAD,
    PLAIN,
    UNAVAILABLE,
    RefusedError,
    refusal,
    told,
)
from durable_invocations.ingress.tokens import Gate

R = TypeVar("R", Mount, Route)
HEALTH = "/restate/health"
_LOGGER = logging.getLogger(__name__)
_FAILED = 500


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What an application is made from. Without a `token` it must listen on loopback alone."""

    backend: Backend
    token: str = field(default="", repr=False)
    credential: str = "the runtime's token"
    """What whoever has none is told to send."""
    admission: Admission = field(default_factory=Admission)
    """Guards a server without a token against foreign web pages."""
    bounds: Bounds = field(default_factory=Bounds)
    open_below: str = ""
    """A path below which no token is asked for: it cannot be guessed."""
    own: str = ""
    """The id of the deployment of the process's own services, if there is one."""
    routes: Sequence[BaseRoute] = ()
    """Routes of others, such as services of the process's own."""
    lifespan: Lifespan[Starlette] | None = None


def create_app(settings: Settings) -> Starlette:
    """The application; errors are JSON with `code` and `message`."""
    return Starlette(
        routes=_routes(settings),
        middleware=[Middleware(Draining), _guard(settings)],
        exception_handlers={HTTPException: _http},
        lifespan=settings.lifespan,
    )


def _guard(settings: Settings) -> Middleware:
    if settings.token:
        open_below = f"{settings.open_below}/" if settings.open_below else ""
        named = {"token": settings.token, "name": settings.credential}
        return Middleware(Gate, **named, open_at=HEALTH, open_below=open_below)

    def forbidden(status: int, reason: str, headers: Mapping[str, str]) -> Response:
        return told(status, status, reason, headers)

    return Middleware(Guard, admission=settings.admission, told=forbidden)


def _routes(settings: Settings) -> list[BaseRoute]:
    backend, bounds = settings.backend, settings.bounds
    waiting = Waiting(backend, bounds.waiting, bounds.still)
    outputs = _careful(Outputs(backend=backend, waiting=waiting))
    catalog = Catalog(backend)
    invoking = Invoking(backend=backend, waiting=waiting, bounds=bounds, catalog=catalog)
    awakeables = _careful(Awakeables(backend=backend, bounds=bounds))
    restate = [
        Route("/health", _healthy),
        Route("/awakeables/{rest:path}", awakeables, methods=["POST"]),
        Route("/invocation/{rest:path}", outputs),
        Route("/workflow/{rest:path}", outputs),
    ]
    admin = [_administering(*each) for each in Admin(backend=backend, own=settings.own).answers()]
    return [
        _lines(Mount("/restate", routes=[*map(_lines, restate)])),
        Mount("/admin", routes=admin),
        *settings.routes,
        _lines(Route("/{rest:path}", _careful(invoking), methods=["POST"])),
    ]


def _lines(route: R) -> R:
    """The same route, also of paths of several lines, as keys may be."""
    route.path_regex = re.compile(route.path_regex.pattern, re.DOTALL)
    return route


def _administering(path: str, answers: Mapping[str, Answer]) -> Route:
    """One route for all methods of a path, so that others are answered with 405."""
    careful = {method: _careful(answer) for method, answer in answers.items()}

    async def answer(request: Request) -> Response:
        # HEAD asks for a GET without its body.
        return await careful["GET" if request.method == "HEAD" else request.method](request)

    return Route(path, answer, methods=list(careful))


def _careful(answer: Answer) -> Answer:
    """The answers, also to a request that fails: 503 while the database is away, else 500."""

    async def careful(request: Request) -> Response:
        try:
            _check(request)
            return await answer(request)
        except RefusedError as refused:
            return refusal(refused)
        except UnavailableError as error:
            return told(UNAVAILABLE, UNAVAILABLE, str(error), {"Retry-After": "1"})
        except DurableError as error:
            return told(_FAILED, _FAILED, str(error))
        except Exception:
            _LOGGER.exception("%s %s failed", request.method, request.url.path)
            return told(_FAILED, _FAILED, "The request failed; see the server's log.")

    return careful


def _check(request: Request) -> None:
    """Refuse a NUL, which nothing is called with, and PostgreSQL takes for an error."""
    if any("\0" in each for each in (request.scope["path"], *request.query_params.values())):
        raise RefusedError(BAD, "The path or the query has a NUL in it.")


async def _healthy(_request: Request) -> Response:
    return JSONResponse({"status": "ok"}, headers=PLAIN)


async def _http(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    allowed = (error.headers or {}).get("Allow", "")
    instead = f"; use {' or '.join(sorted(allowed.split(', ')))}" if allowed else ""
    message = f"{request.method} {request.url.path}: {error.detail}{instead}."
    return told(error.status_code, error.status_code, message, error.headers)
