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
    choose_manifest_version,
    format_content_type,
    format_manifest_type,
    parse_version,
)
from durable_invocations.serving.declarations.manifest import build_manifest
from durable_invocations.serving.declarations.services import AnyService, DeclaredHandler
from durable_invocations.serving.draining import send_answer
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
    server besides its address; refusals name `hosts_setting` as the remedy. `origins` are
    web pages that may use it. `tracebacks` sends the runtime a failed attempt's traceback; `clock`
    returns seconds since 1970.
    Raises ConfigError for two services of one name, and for a workflow without a run.
    """
    names = [service.name for service in services]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ConfigError(f"there are two services named {', '.join(sorted(twice))}; rename one")
    for service in services:
        service.check()
    admission = Admission(
        hosts=frozenset(host.lower() for host in hosts),
        origins=frozenset(origins),
        hosts_setting=hosts_setting,
    )
    options = Options(limits=limits, tracebacks=tracebacks, clock=clock)
    endpoint = ServiceEndpoint({service.name: service for service in services}, options, admission)
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
        elif reason := self.admission.explain_refusal(scope):
            await send_answer(_make_refusal(403, reason), receive, send, self.options.drain)
        else:
            await self._answer_request(scope, receive, send)

    async def _answer_request(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, invokes = _get_raw_path(scope), scope["method"] == "POST"
        parts = [unquote(part) for part in path.split("/")]
        handler = self._find_handler(parts)
        if handler is not None and invokes:
            await self._invoke_handler(handler, scope, receive, send)
            return
        if handler is not None:
            answer = _make_refusal(405, "A handler is invoked with POST.", allow="POST")
        elif parts[-1] in DISCOVERIES and not invokes:
            answer = self._build_discovery(scope)
        else:
            answer = _make_refusal(404, f"No handler is served at {path}.")
        await send_answer(answer, receive, send, self.options.drain)

    def _find_handler(self, parts: list[str]) -> DeclaredHandler | None:
        if len(parts) <= _INVOKE or parts[-_INVOKE] != "invoke":
            return None
        service = self.services.get(parts[-2])
        return service.handlers.get(parts[-1]) if service is not None else None

    async def _invoke_handler(
        self, handler: DeclaredHandler, scope: Scope, receive: Receive, send: Send
    ) -> None:
        protocol_version = parse_version(Headers(scope=scope).get("content-type"))
        if protocol_version is None:
            served = ", ".join(
                format_content_type(supported) for supported in range(LOWEST, NEWEST + 1)
            )
            refused = _make_refusal(415, f"Send one of {served}.")
            await send_answer(refused, receive, send, self.options.drain)
            return
        stream = Stream(
            self.services[handler.service].kind,
            handler,
            version=protocol_version,
            duplex=_is_duplex(scope),
            options=self.options,
            receive=receive,
            send=send,
        )
        headers = {
            "content-type": format_content_type(protocol_version),
            SERVER: _get_server_name(),
        }
        await stream.serve([(key.encode(), value.encode()) for key, value in headers.items()])

    def _build_discovery(self, scope: Scope) -> Response:
        if scope["method"] != "GET":
            return _make_refusal(405, "Request a manifest with GET.", allow="GET")
        manifest_version = choose_manifest_version(
            ", ".join(Headers(scope=scope).getlist("accept"))
        )
        if manifest_version is None:
            served = " or ".join(format_manifest_type(supported) for supported in sorted(MANIFESTS))
            return _make_refusal(406, f"Accept {served}.")
        manifest = build_manifest(
            self.services.values(),
            version=manifest_version,
            duplex=_is_duplex(scope),
            protocols=(LOWEST, NEWEST),
        )
        headers = {
            "content-type": format_manifest_type(manifest_version),
            SERVER: _get_server_name(),
        }
        return Response(json.dumps(manifest), headers=headers)


def _is_duplex(scope: Scope) -> bool:
    """Over HTTP/2 both sides send at the same time, over HTTP/1.1 in turn."""
    return str(scope["http_version"]).startswith("2")


def _get_raw_path(scope: Scope) -> str:
    """The path as it was sent, since an encoded slash is not a separator."""
    raw_path: bytes | None = scope.get("raw_path")
    return quote(scope["path"]) if raw_path is None else raw_path.decode("latin-1")


def _make_refusal(status: int, reason: str, **headers: Any) -> Response:
    return PlainTextResponse(f"{reason}\n", status, headers={**headers, SERVER: _get_server_name()})


@cache
def _get_server_name() -> str:
    """Name and version, in the protocol's form."""
    try:
        return f"durable-invocations/{version('durable-invocations')}"
    except PackageNotFoundError:
        return "durable-invocations/0"
