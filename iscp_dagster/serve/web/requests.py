"""Reads GraphQL requests from HTTP (GraphQL over HTTP, and RFC 9110 for media types)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from asgi_guards import strictjson

RESPONSE, JSON = "application/graphql-response+json", "application/json"


class RefusedError(Exception):
    """A request that is answered without being executed, with its HTTP status."""

    def __init__(
        self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.headers = status, code, dict(headers or {})


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A request: a document, with its variables and the operation to execute."""

    query: str
    variables: Mapping[str, Any]
    operation: str | None = None


def media_type(accept: str | None) -> str:
    """Return the answer's media type. Raises RefusedError for none that both know."""
    if accept is None or not accept.strip():
        return JSON
    ranked: list[tuple[float, int, str]] = []
    for place, part in enumerate(accept.split(",")):
        name, *parameters = (each.strip().lower() for each in part.split(";"))
        quality = _quality(parameters)
        # A server prefers what tells a client more.
        found = {"*/*": RESPONSE, "application/*": RESPONSE}.get(name, name)
        if found in {RESPONSE, JSON} and quality > 0:
            ranked.append((-quality, place, JSON if name == "*/*" else found))
    if not ranked:
        raise RefusedError(406, "NOT_ACCEPTABLE", f"Accept {RESPONSE} or {JSON}.")
    return min(ranked)[2]


def _quality(parameters: list[str]) -> float:
    for each in parameters:
        if each.startswith("q="):
            try:
                return float(each[2:])
            except ValueError:
                return 0
    return 1


def check_content(content_type: str | None) -> None:
    """Raises RefusedError for a body that is not JSON in UTF-8."""
    name, *parameters = ((content_type or "").lower().replace(" ", "")).split(";")
    charsets = {each.partition("=")[2].strip('"') for each in parameters if "charset=" in each}
    if name != JSON or charsets - {"utf-8", "utf8"}:
        raise RefusedError(415, "UNSUPPORTED_MEDIA_TYPE", f"Send the query as {JSON}, in UTF-8.")


async def body(request: Request, most: int) -> bytes:
    """Return the body. Raises RefusedError beyond `most` bytes, which are not read."""
    large = RefusedError(
        413,
        "PAYLOAD_TOO_LARGE",
        f"The request is larger than {most:,} bytes; ask for less, or in several requests.",
        {"Connection": "close"},
    )
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > most:
        raise large
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise large
        parts.append(part)
    return b"".join(parts)


def of_body(content: bytes) -> Asked:
    """Read the JSON of a POST. Raises RefusedError."""
    try:
        given = strictjson.loads(content)
    except ValueError as error:
        raise _bad("The body is no JSON.") from error
    if not isinstance(given, dict):
        raise _bad("The body is no JSON object; batches are not supported.")
    return _asked(given)


def of_url(parameters: Mapping[str, str]) -> Asked:
    """Read the parameters of a GET. Raises RefusedError."""
    given: dict[str, Any] = dict(parameters)
    for name in ("variables", "extensions"):
        if name in given:
            try:
                given[name] = strictjson.loads(given[name] or "null")
            except ValueError as error:
                raise _bad(f"`{name}` is no JSON.") from error
    return _asked(given)


def _asked(given: Mapping[str, Any]) -> Asked:
    query, variables = given.get("query"), given.get("variables")
    operation, extensions = given.get("operationName"), given.get("extensions")
    if not isinstance(query, str) or not query:
        raise _bad("`query` is missing; give a GraphQL document as text.")
    for name, value, type_ in (
        ("variables", variables, dict),
        ("extensions", extensions, dict),
        ("operationName", operation, str),
    ):
        if value is not None and not isinstance(value, type_):
            raise _bad(f"`{name}` has the wrong type.")
    return Asked(query=query, variables=variables or {}, operation=operation or None)


def _bad(message: str) -> RefusedError:
    return RefusedError(400, "BAD_REQUEST", message)
