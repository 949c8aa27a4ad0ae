"""The web application of `iscp serve`."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from asgi_guards.admission import Admission, Guard, is_loopback, parse_names
from asgi_guards.draining import DrainMiddleware
from iscp_dagster.model.errors import ConfigError
from iscp_dagster.model.variables import ALLOWED_HOSTS
from iscp_dagster.serve.access import Access, OpenAccess
from iscp_dagster.serve.graph.schema_cache import SchemaCache
from iscp_dagster.serve.web.graphiql import GraphiQLPage, is_page_request
from iscp_dagster.serve.web.graphql_http import GraphQLOverHTTP, HttpBounds

GRAPHQL_PATH = "/graphql"
HEALTH_PATH = "/health"
BackgroundService = Callable[[], AbstractAsyncContextManager[Any]]
"""Something that runs while the application does."""


@dataclass(frozen=True, kw_only=True)
class GraphQLServerSettings:
    """The settings of an application."""

    schemas: SchemaCache
    access: Access = field(default_factory=OpenAccess)
    bounds: HttpBounds = field(default_factory=HttpBounds)
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    routes: Sequence[BaseRoute] = ()
    """Routes besides the one for queries, such as the websocket's at GRAPHQL_PATH."""
    background: Sequence[BackgroundService] = ()


def create_app(settings: GraphQLServerSettings) -> Starlette:
    """Return the application.

    It has queries and a page for browsers at GRAPHQL_PATH, and HEALTH_PATH for monitoring. Without
    tokens it is guarded against foreign web pages; `check_host` keeps it on this machine.
    """
    endpoint = GraphQLOverHTTP(settings.schemas, settings.access, settings.bounds)
    page = GraphiQLPage(GRAPHQL_PATH, settings.access)

    async def answer(request: Request) -> Response:
        return page.show() if is_page_request(request) else await endpoint(request)

    @asynccontextmanager
    async def run_background(_app: Starlette) -> AsyncIterator[None]:
        async with AsyncExitStack() as running:
            for factory in settings.background:
                await running.enter_async_context(factory())
            yield

    hosts = parse_names(settings.environ.get(ALLOWED_HOSTS, ""))
    admission = Admission(hosts=hosts, hosts_setting=ALLOWED_HOSTS)
    guards = [Middleware(Guard, admission=admission)] if settings.access.is_open else []
    routes: list[BaseRoute] = [
        Route(GRAPHQL_PATH, answer, methods=["GET", "POST"]),
        Route(HEALTH_PATH, _answer_health),
    ]
    routes += [*page.list_routes(), *settings.routes]
    return Starlette(
        routes=routes, middleware=[Middleware(DrainMiddleware), *guards], lifespan=run_background
    )


async def _answer_health(_request: Request) -> Response:
    return PlainTextResponse("ok\n")


def check_host(host: str, access: Access) -> None:
    """Reject an address beyond loopback without tokens. Raises ConfigError."""
    if access.is_open and not is_loopback(host):
        raise ConfigError(
            f"--host {host!r} is not a loopback address, and no tokens are configured: "
            "everybody who reaches it would see every tenant. Name a file of tokens "
            "with --tokens, or listen on 127.0.0.1."
        )
