"""Checks requests against the input in a handler's manifest, and builds answers from its output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from asgi_guards.sending import SharedOutputs
from durable_invocations.ingress.bodies import JSON, get_media_type, parse_json
from durable_invocations.ingress.refusals import (
    BAD,
    PLAIN,
    UNSUPPORTED,
    RefusedError,
    make_failure_response,
)
from durable_invocations.protocol.failures import Failure
from durable_invocations.protocol.results import Result, Value
from durable_invocations.runtime.store.deployments import RegisteredHandler

ID_HEADER = "x-restate-id"
_OWN = {
    *("authorization", "connection", "content-length", "cookie", "expect", "host", "keep-alive"),
    *("proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer"),
    *("transfer-encoding", "upgrade", "idempotency-key"),
}
"""Headers of the connection, or with secrets: they are not kept with an invocation."""
_ANY_INPUT: Mapping[str, Any] = {"contentType": "*/*", "required": False}
_ANY_OUTPUT: Mapping[str, Any] = {"contentType": JSON}


def check_input(handler: RegisteredHandler, request: Request, content: bytes) -> None:
    """Raises RefusedError: 400 for a missing, unwanted or malformed body, 415 for its type."""
    payload, media_type = _get_payload(handler, "input", _ANY_INPUT), get_media_type(request)
    type_ = payload.get("contentType")
    if type_ is None and (content or media_type):
        raise RefusedError(BAD, f"The handler {handler.name} takes no body.")
    if not content and not media_type:
        if payload.get("required"):
            raise RefusedError(BAD, f"The handler {handler.name} needs a body of {type_}.")
        return
    if type_ is not None and media_type and not _is_accepted(type_, media_type):
        raise RefusedError(
            UNSUPPORTED, f"The handler {handler.name} takes {type_}, not {media_type}."
        )
    if content and type_ == JSON:
        parse_json(content)


def _is_accepted(type_: str, media_type: str) -> bool:
    accepted = type_.partition(";")[0].strip().lower()
    main, _, sub = accepted.partition("/")
    return accepted in {"*/*", media_type} or (sub == "*" and media_type.startswith(f"{main}/"))


def select_headers(request: Request) -> tuple[tuple[str, str], ...]:
    """The headers that the handler gets with its input."""
    headers = request.headers.items()
    return tuple((name, value) for name, value in headers if name.lower() not in _OWN)


def build_output_response(
    handler: RegisteredHandler | None, id_: str, result: Result, sending: SharedOutputs
) -> Response:
    """The answer for an ended invocation: its output as its manifest says, or its failure."""
    headers = {ID_HEADER: id_}
    if isinstance(result, Failure):
        return make_failure_response(result.code, result.message, headers)
    content = result.value if isinstance(result, Value) else b""
    payload = _get_payload(handler, "output", _ANY_OUTPUT) if handler else _ANY_OUTPUT
    type_ = payload.get("contentType")
    if type_ and (content or payload.get("setContentTypeIfEmpty")):
        headers["Content-Type"] = type_
    return sending.make_response(id_, content, {**PLAIN, **headers})


def _get_payload(
    handler: RegisteredHandler, direction: str, default: Mapping[str, Any]
) -> Mapping[str, Any]:
    payload = handler.described.get(direction) if isinstance(handler.described, dict) else None
    return payload if isinstance(payload, dict) else default
