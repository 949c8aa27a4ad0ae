"""The ASGI app that serves services to runtimes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any
from urllib.parse import quote, unquote

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocketClose

from asgi_guards.admission import Admission
from durable_invocations.errors import ConfigError
from durable_invocations.protocol.decoding import DEFAULT, Limits
from durable_invocations.protocol.versions import (
    LOWEST,
    MANIFESTS,
    NEWEST,
    content_type,
    manifest_type,
    negotiated,
    version_of,
)
from durable_invocations.serving.declared.manifest import manifest
from durable_invocations.serving.declared.services import AnyService, Handler
from durable_invocations.serving.draining import answered
from durable_invocations.serving.stream import Options, Stream

DISCOVERIES = frozenset({"discover", "discovery"})
SERVER = "x-restate-server"
_ITS_ADDRESS = Admission()
_INVOKE = 3
"""The last parts of a path that invokes: `invoke`, service and handler."""


def service_app(
    *services: AnyService,
    hosts: Iterable[str] = (),
    hosts_setting: str = "service_app(hosts=…)",
    origins: Iterable[str] = (),
    limits: Limits = DEFAULT,
    tracebacks: bool = False,
    clock: Callable[[], float] = time.time,
) -> Starlette:
    """The app that serves these services, under any prefix of the path.

    Over HTTP/1.1 in request/response mode, over HTTP/2 full duplex. `hosts` are names of the
    server besides its address; a refusal says that they are set in `hosts_setting`. `origins` are
    web pages that may use it. `tracebacks` shows the runtime where an attempt failed; `clock` tells
    seconds since 1970.
    Raises ConfigError for two services of one name, and for a workflow without a run.
    """
    names = [each.name for each in services]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ConfigError(f"there are two services named {', '.join(sorted(twice))}; rename one")
    for each in services:
        each.check()
    admission = Admission(
        hosts=frozenset(each.lower() for each in hosts),
        origins=frozenset(origins),
        hosts_setting=hosts_setting,
    )
    options = Options(limits=limits, tracebacks=tracebacks, clock=clock)
    endpoint = ServiceEndpoint({each.name: each for each in services}, options, admission)
    return Starlette(routes=[Mount("/", endpoint)])


@dataclass(frozen=True)
class ServiceEndpoint:
    """The ASGI app. It refuses foreign pages itself, since it must read their requests first."""

    services: dict[str, AnyService]
    options: Options
    admission: Admission = _ITS_ADDRESS

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await WebSocketClose()(scope, receive, send)
        elif reason := self.admission.refusal(scope):
            await answered(_refused(403, reason), receive, send, self.options.drain)
        else:
            await self._answer(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, invokes = _path(scope), scope["method"] == "POST"
        parts = [unquote(each) for each in path.split("/")]
        handler = self._handler(parts)
        if handler is not None and invokes:
            await self._invoke(handler, scope, receive, send)
            return
        if handler is not None:
            answer = _refused(405, "A handler is invoked with POST.", allow="POST")
        elif parts[-1] in DISCOVERIES and not invokes:
            answer = self._discovery(scope)
        else:
            answer = _refused(404, f"No handler is served at {path}.")
        await answered(answer, receive, send, self.options.drain)

    def _handler(self, parts: list[str]) -> Handler | None:
        if len(parts) <= _INVOKE or parts[-_INVOKE] != "invoke":
            return None
        service = self.services.get(parts[-2])
        return service.handlers.get(parts[-1]) if service is not None else None

    async def _invoke(self, handler: Handler, scope: Scope, receive: Receive, send: Send) -> None:
        spoken = version_of(Headers(scope=scope).get("content-type"))
        if spoken is None:
            served = ", ".join(content_type(each) for each in range(LOWEST, NEWEST + 1))
            refused = _refused(415, f"Send one of {served}.")
            await answered(refused, receive, send, self.options.drain)
            return
        stream = Stream(
            self.services[handler.service].kind,
            handler,
            version=spoken,
            duplex=_is_duplex(scope),
            options=self.options,
            receive=receive,
            send=send,
        )
        headers = {"content-type": content_type(spoken), SERVER: _server()}
        await stream.serve([(key.encode(), value.encode()) for key, value in headers.items()])

    def _discovery(self, scope: Scope) -> Response:
        if scope["method"] != "GET":
            return _refused(405, "A manifest is asked for with GET.", allow="GET")
        chosen = negotiated(", ".join(Headers(scope=scope).getlist("accept")))
        if chosen is None:
            served = " or ".join(manifest_type(each) for each in sorted(MANIFESTS))
            return _refused(406, f"Accept {served}.")
        told = manifest(
            self.services.values(),
            version=chosen,
            duplex=_is_duplex(scope),
            protocols=(LOWEST, NEWEST),
        )
        headers = {"content-type": manifest_type(chosen), SERVER: _server()}
        return Response(json.dumps(told), headers=headers)


def _is_duplex(scope: Scope) -> bool:
    """Over HTTP/2 both sides talk at the same time, over HTTP/1.1 one after the other."""
    return str(scope["http_version"]).startswith("2")


def _path(scope: Scope) -> str:
    """The path as it was sent, since a slash that is encoded divides nothing."""
    sent: bytes | None = scope.get("raw_path")
    return quote(scope["path"]) if sent is None else sent.decode("latin-1")


def _refused(status: int, reason: str, **headers: Any) -> Response:
    return PlainTextResponse(f"{reason}\n", status, headers={**headers, SERVER: _server()})


@cache
def _server() -> str:
    """Name and version, as the protocol has them."""
    try:
        return f"durable-invocations/{version('durable-invocations')}"
    except PackageNotFoundError:
        return "durable-invocations/0"
