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

from asgi_guards.admission import Admission, Guard, is_loopback, names_in
from asgi_guards.draining import Draining
from iscp_dagster.model.errors import ConfigError
from iscp_dagster.model.variables import ALLOWED_HOSTS
from iscp_dagster.serve.access import Access, OpenAccess
from iscp_dagster.serve.graph.schemas import Schemas
from iscp_dagster.serve.web.graphiql import Page, wants_page
from iscp_dagster.serve.web.graphql_http import Bounds, GraphQLOverHTTP

PATH = "/graphql"
HEALTH = "/health"
Beside = Callable[[], AbstractAsyncContextManager[Any]]
"""Something that runs while the application does."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What an application is made from."""

    schemas: Schemas
    access: Access = field(default_factory=OpenAccess)
    bounds: Bounds = field(default_factory=Bounds)
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    routes: Sequence[BaseRoute] = ()
    """Routes beside that of queries, such as the websocket's at PATH."""
    beside: Sequence[Beside] = ()


def create_app(settings: Settings) -> Starlette:
    """Return the application: queries at PATH, a page for browsers there, HEALTH for who watches.

    Without tokens it is guarded against foreign web pages; `check_host` keeps it on this machine.
    """
    endpoint = GraphQLOverHTTP(settings.schemas, settings.access, settings.bounds)
    page = Page(PATH, settings.access)

    async def answer(request: Request) -> Response:
        return page.show() if wants_page(request) else await endpoint(request)

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        async with AsyncExitStack() as running:
            for each in settings.beside:
                await running.enter_async_context(each())
            yield

    hosts = names_in(settings.environ.get(ALLOWED_HOSTS, ""))
    admission = Admission(hosts=hosts, hosts_setting=ALLOWED_HOSTS)
    guards = [Middleware(Guard, admission=admission)] if settings.access.open else []
    routes: list[BaseRoute] = [
        Route(PATH, answer, methods=["GET", "POST"]),
        Route(HEALTH, _healthy),
    ]
    routes += [*page.routes(), *settings.routes]
    return Starlette(routes=routes, middleware=[Middleware(Draining), *guards], lifespan=lifespan)


async def _healthy(_request: Request) -> Response:
    return PlainTextResponse("ok\n")


def check_host(host: str, access: Access) -> None:
    """Reject another address than this machine's own without tokens. Raises ConfigError."""
    if access.open and not is_loopback(host):
        raise ConfigError(
            f"--host {host!r} is not an address of this machine alone, and no tokens are "
            "configured: everybody who reaches it would see every tenant. Name a file of tokens "
            "with --tokens, or listen on 127.0.0.1."
        )
