"""Reads the bodies of requests within bounds."""

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
    """The whole body. Raises RefusedError: 413 beyond `most` bytes, which are not read."""
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > most:
        raise _large(most)
    with anyio.move_on_after(_SECONDS):
        return await _streamed(request, most)
    raise RefusedError(TIMEOUT, f"The body did not arrive in {_SECONDS:g} s; send it again.")


async def _streamed(request: Request, most: int) -> bytes:
    parts, size = [], 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > most:
                raise _large(most)
            parts.append(part)
    except ClientDisconnect as gone:
        raise RefusedError(BAD, "The body ended before it was whole; send it again.") from gone
    return b"".join(parts)


def _large(most: int) -> RefusedError:
    message = f"The body is larger than {most:,} bytes; send less, or the address of the data."
    return RefusedError(TOO_LARGE, message, {"Connection": "close"})


async def fields(request: Request, **types: type) -> dict[str, Any]:
    """The fields of a JSON object, checked by type; those that are left out are left out here, too.

    Raises RefusedError: 415 for another content type, 400 for no JSON, 422 for other fields.
    """
    if media_type(request) != JSON:
        raise RefusedError(UNSUPPORTED, f"Send the content type {JSON}.")
    given = parsed(await body(request, ADMIN_BYTES))
    if not isinstance(given, dict):
        raise RefusedError(UNPROCESSABLE, "The body is no JSON object.")
    for name, value in given.items():
        if name not in types:
            known = ", ".join(sorted(types))
            raise RefusedError(UNPROCESSABLE, f"The field {name!r} is unknown; known: {known}.")
        if type(value) is not types[name]:
            raise RefusedError(UNPROCESSABLE, f"The field {name!r} is no {types[name].__name__}.")
    return given


def parsed(content: bytes) -> Any:
    """The JSON value, see `strictjson`. Raises RefusedError (400)."""
    try:
        return strictjson.loads(content)
    except ValueError as error:
        raise RefusedError(BAD, f"The body is no JSON: {error}.") from error


def media_type(request: Request) -> str:
    """The body's content type, in lower case, without parameters; empty if none is given."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()
