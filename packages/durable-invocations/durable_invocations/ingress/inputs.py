"""Checks requests against what a handler's manifest says of its input, and shapes its output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from asgi_guards.sending import Sending
from durable_invocations.ingress.bodies import JSON, media_type, parsed
from durable_invocations.ingress.refusals import BAD, PLAIN, UNSUPPORTED, RefusedError, failed
from durable_invocations.protocol.failures import Failure
from durable_invocations.protocol.results import Result, Value
from durable_invocations.runtime.store.deployments import Handler

ID_HEADER = "x-restate-id"
_OWN = {
    *("authorization", "connection", "content-length", "cookie", "expect", "host", "keep-alive"),
    *("proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer"),
    *("transfer-encoding", "upgrade", "idempotency-key"),
}
"""Headers that are about the connection or carry secrets: they are not kept with an invocation."""
_ANY_INPUT: Mapping[str, Any] = {"contentType": "*/*", "required": False}
_ANY_OUTPUT: Mapping[str, Any] = {"contentType": JSON}


def check_input(handler: Handler, request: Request, content: bytes) -> None:
    """Raises RefusedError: 400 for a missing, unwanted or malformed body, 415 for its type."""
    wanted, given = _described(handler, "input", _ANY_INPUT), media_type(request)
    type_ = wanted.get("contentType")
    if type_ is None and (content or given):
        raise RefusedError(BAD, f"The handler {handler.name} takes no body.")
    if not content and not given:
        if wanted.get("required"):
            raise RefusedError(BAD, f"The handler {handler.name} needs a body of {type_}.")
        return
    if type_ is not None and given and not _accepts(type_, given):
        raise RefusedError(
            UNSUPPORTED, f"The handler {handler.name} takes {type_}, and not {given}."
        )
    if content and type_ == JSON:
        parsed(content)


def _accepts(type_: str, given: str) -> bool:
    wanted = type_.partition(";")[0].strip().lower()
    main, _, sub = wanted.partition("/")
    return wanted in {"*/*", given} or (sub == "*" and given.startswith(f"{main}/"))


def kept_headers(request: Request) -> tuple[tuple[str, str], ...]:
    """The headers that the handler gets with its input."""
    found = request.headers.items()
    return tuple((name, value) for name, value in found if name.lower() not in _OWN)


def answer(handler: Handler | None, id_: str, result: Result, sending: Sending) -> Response:
    """How an invocation ended: its output as its manifest says, or its failure's code."""
    headers = {ID_HEADER: id_}
    if isinstance(result, Failure):
        return failed(result.code, result.message, headers)
    content = result.value if isinstance(result, Value) else b""
    shape = _described(handler, "output", _ANY_OUTPUT) if handler else _ANY_OUTPUT
    type_ = shape.get("contentType")
    if type_ and (content or shape.get("setContentTypeIfEmpty")):
        headers["Content-Type"] = type_
    return sending.response(id_, content, {**PLAIN, **headers})


def _described(handler: Handler, what: str, otherwise: Mapping[str, Any]) -> Mapping[str, Any]:
    found = handler.described.get(what) if isinstance(handler.described, dict) else None
    return found if isinstance(found, dict) else otherwise
