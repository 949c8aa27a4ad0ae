"""Reads request bodies within bounds."""

from __future__ import annotations

from typing import Any

import anyio
from starlette.requests import ClientDisconnect, Request

from asgi_guards import strictjson
from durable_invocations.ingress.refusals import (
    BAD,
    TIMEOUT,
    TOO_LARGE,
    UNPROCESSABLE,
    UNSUPPORTED,
    RefusedError,
)

JSON = "application/json"
ADMIN_BYTES = 64 * 1024
_SECONDS = 60.0
"""How long a client may take to send a body."""


async def body(request: Request, most: int) -> bytes:
    """The complete body. Raises RefusedError: 413 beyond `most` bytes, which are not read."""
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > most:
        raise _make_size_error(most)
    with anyio.move_on_after(_SECONDS):
        return await _read_stream(request, most)
    raise RefusedError(TIMEOUT, f"The body did not arrive in {_SECONDS:g} s; send it again.")


async def _read_stream(request: Request, most: int) -> bytes:
    parts, size = [], 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > most:
                raise _make_size_error(most)
            parts.append(part)
    except ClientDisconnect as gone:
        raise RefusedError(BAD, "The body is incomplete; send it again.") from gone
    return b"".join(parts)


def _make_size_error(most: int) -> RefusedError:
    message = f"The body is larger than {most:,} bytes; send less, or the address of the data."
    return RefusedError(TOO_LARGE, message, {"Connection": "close"})


async def fields(request: Request, **types: type) -> dict[str, Any]:
    """The fields of a JSON object, checked by type; omitted fields are omitted here, too.

    Raises RefusedError: 415 for another content type, 400 for invalid JSON, 422 for other fields.
    """
    if get_media_type(request) != JSON:
        raise RefusedError(UNSUPPORTED, f"Send the content type {JSON}.")
    parsed = parse_json(await body(request, ADMIN_BYTES))
    if not isinstance(parsed, dict):
        raise RefusedError(UNPROCESSABLE, "The body is not a JSON object.")
    for name, value in parsed.items():
        if name not in types:
            allowed = ", ".join(sorted(types))
            raise RefusedError(UNPROCESSABLE, f"The field {name!r} is unknown; known: {allowed}.")
        if type(value) is not types[name]:
            raise RefusedError(
                UNPROCESSABLE, f"The field {name!r} is not a {types[name].__name__}."
            )
    return parsed


def parse_json(content: bytes) -> Any:
    """The JSON value, see `strictjson`. Raises RefusedError (400)."""
    try:
        return strictjson.loads(content)
    except ValueError as error:
        raise RefusedError(BAD, f"The body is not JSON: {error}.") from error


def get_media_type(request: Request) -> str:
    """The body's content type, in lower case, without parameters; empty if missing."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()
