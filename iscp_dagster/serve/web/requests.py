"""Reads GraphQL requests from HTTP (GraphQL over HTTP, and RFC 9110 for media types)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from asgi_guards import strictjson

RESPONSE, JSON = "application/graphql-response+json", "application/json"


class RefusedRequestError(Exception):
    """A request that is answered without being executed, with its HTTP status."""

    def __init__(
        self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.headers = status, code, dict(headers or {})


@dataclass(frozen=True, kw_only=True)
class GraphQLRequest:
    """A request: a document, with its variables and the operation to execute."""

    query: str
    variables: Mapping[str, Any]
    operation: str | None = None


def choose_media_type(accept: str | None) -> str:
    """Return the answer's media type. Raises RefusedRequestError if both share none."""
    if accept is None or not accept.strip():
        return JSON
    candidates: list[tuple[float, int, str]] = []
    for position, part in enumerate(accept.split(",")):
        name, *parameters = (segment.strip().lower() for segment in part.split(";"))
        quality = _parse_quality(parameters)
        # The server prefers the type that says more.
        media_type = {"*/*": RESPONSE, "application/*": RESPONSE}.get(name, name)
        if media_type in {RESPONSE, JSON} and quality > 0:
            candidates.append((-quality, position, JSON if name == "*/*" else media_type))
    if not candidates:
        raise RefusedRequestError(406, "NOT_ACCEPTABLE", f"Accept {RESPONSE} or {JSON}.")
    return min(candidates)[2]


def _parse_quality(parameters: list[str]) -> float:
    for parameter in parameters:
        if parameter.startswith("q="):
            try:
                return float(parameter[2:])
            except ValueError:
                return 0
    return 1


def check_content(content_type: str | None) -> None:
    """Raises RefusedRequestError for a body that is not JSON in UTF-8."""
    name, *parameters = ((content_type or "").lower().replace(" ", "")).split(";")
    charsets = {
        parameter.partition("=")[2].strip('"')
        for parameter in parameters
        if "charset=" in parameter
    }
    if name != JSON or charsets - {"utf-8", "utf8"}:
        raise RefusedRequestError(
            415, "UNSUPPORTED_MEDIA_TYPE", f"Send the query as {JSON}, in UTF-8."
        )


async def read_body(request: Request, max_bytes: int) -> bytes:
    """Return the body. Raises RefusedRequestError beyond `max_bytes`, which are not read."""
    too_large = RefusedRequestError(
        413,
        "PAYLOAD_TOO_LARGE",
        f"The request is larger than {max_bytes:,} bytes; ask for less, or in several requests.",
        {"Connection": "close"},
    )
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > max_bytes:
        raise too_large
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > max_bytes:
            raise too_large
        parts.append(part)
    return b"".join(parts)


def parse_body(content: bytes) -> GraphQLRequest:
    """Read the JSON of a POST. Raises RefusedRequestError."""
    try:
        fields = strictjson.loads(content)
    except ValueError as error:
        raise _make_bad_request("The body is not JSON.") from error
    if not isinstance(fields, dict):
        raise _make_bad_request("The body is not a JSON object; batches are not supported.")
    return _build_request(fields)


def parse_url_parameters(parameters: Mapping[str, str]) -> GraphQLRequest:
    """Read the parameters of a GET. Raises RefusedRequestError."""
    fields: dict[str, Any] = dict(parameters)
    for name in ("variables", "extensions"):
        if name in fields:
            try:
                fields[name] = strictjson.loads(fields[name] or "null")
            except ValueError as error:
                raise _make_bad_request(f"`{name}` is not JSON.") from error
    return _build_request(fields)


def _build_request(fields: Mapping[str, Any]) -> GraphQLRequest:
    query, variables = fields.get("query"), fields.get("variables")
    operation, extensions = fields.get("operationName"), fields.get("extensions")
    if not isinstance(query, str) or not query:
        raise _make_bad_request("`query` is missing; give a GraphQL document as text.")
    for name, value, type_ in (
        ("variables", variables, dict),
        ("extensions", extensions, dict),
        ("operationName", operation, str),
    ):
        if value is not None and not isinstance(value, type_):
            raise _make_bad_request(f"`{name}` has the wrong type.")
    return GraphQLRequest(query=query, variables=variables or {}, operation=operation or None)


def _make_bad_request(message: str) -> RefusedRequestError:
    return RefusedRequestError(400, "BAD_REQUEST", message)
