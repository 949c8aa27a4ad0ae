"""Reads the answers of a runtime of invocations within bounds; any server may send them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx

from durable_invocations.errors import UnavailableError

JSON = "application/json"
ID_HEADER = "x-restate-id"
"""The header with the id of the invocation that an answer is about."""
MOST_BYTES = 256 * 1024 * 1024
"""The most bytes of an answer: a journal of many entries is large."""
LATE_SECONDS = 60.0
"""How long the body may take, once the answer has begun."""
_TEXT = 2_000
"""Characters of an unknown answer that a message shows."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A complete answer."""

    url: str
    """The runtime's."""
    status: int
    headers: Mapping[str, str] = field(repr=False)
    content: bytes = field(repr=False)

    @property
    def value(self) -> Any:
        """The JSON value of an answer; its objects raise UnavailableError for a missing field.

        Raises UnavailableError if it is not a runtime's answer.
        """
        try:
            return json.loads(self.content, object_hook=lambda fields: JsonObject(self.url, fields))
        except (ValueError, RecursionError) as error:
            raise make_no_runtime_error(self.url) from error

    @property
    def object(self) -> JsonObject:
        """The JSON object. Raises UnavailableError if it is not a runtime's answer."""
        parsed = self.value
        if not isinstance(parsed, JsonObject):
            raise make_no_runtime_error(self.url)
        return parsed

    def output(self) -> Any:
        """An invocation's output: the JSON value, else its bytes; None if it is empty.

        Raises UnavailableError if it is not a runtime's answer.
        """
        if ID_HEADER not in self.headers:
            raise make_no_runtime_error(self.url)
        if not self.content:
            return None
        kind = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == JSON:
            # A handler may declare JSON and return something else.
            with suppress(ValueError, RecursionError):
                return json.loads(self.content)
        return self.content

    def reason(self) -> tuple[int, str]:
        """The code and message of a refusal or failure; else the status and the text."""
        try:
            parsed = json.loads(self.content)
            return int(parsed["code"]), str(parsed["message"])
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return self.status, " ".join(self.content.decode(errors="replace")[:_TEXT].split())


class JsonObject(dict[str, Any]):
    """A JSON object of an answer. A missing field means that the server is not a runtime."""

    def __init__(self, url: str, fields: Mapping[str, Any]) -> None:
        super().__init__(fields)
        self._url = url

    def __missing__(self, name: str) -> Any:
        raise make_no_runtime_error(self._url)

    def text(self, name: str) -> str:
        """A string field. Raises UnavailableError."""
        return str(self._get_field(name, str))

    def flag(self, name: str) -> bool:
        """A boolean field. Raises UnavailableError."""
        return bool(self._get_field(name, bool))

    def get_objects(self, name: str) -> list[Mapping[str, Any]]:
        """A field that is a list of objects. Raises UnavailableError."""
        objects = self._get_field(name, list)
        if not all(isinstance(value, JsonObject) for value in objects):
            raise make_no_runtime_error(self._url)
        return list(objects)

    def check_shape(self, shape: Mapping[str, Any]) -> JsonObject:
        """Check that fields have these types, or are lists or objects of them; returns itself."""
        if not _has_shape(self, shape):
            raise make_no_runtime_error(self._url)
        return self

    def _get_field(self, name: str, kind: type) -> Any:
        value = self[name]
        if not isinstance(value, kind):
            raise make_no_runtime_error(self._url)
        return value


def _has_shape(value: Any, shape: Any) -> bool:
    if isinstance(shape, list):
        return isinstance(value, list) and all(_has_shape(element, shape[0]) for element in value)
    if isinstance(shape, Mapping):
        has_keys = isinstance(value, JsonObject) and shape.keys() <= value.keys()
        return has_keys and all(
            _has_shape(value[name], field_shape) for name, field_shape in shape.items()
        )
    return isinstance(value, shape)


def read(url: str, response: httpx.Response, clock: Callable[[], float]) -> Answer:
    """Read the complete answer. Raises UnavailableError if it is too large or too slow."""
    if response.headers.get("content-encoding", "identity") != "identity":
        # It was not requested, and a few bytes may unpack to many.
        raise make_no_runtime_error(url)
    deadline, body = clock() + LATE_SECONDS, bytearray()
    for part in response.iter_bytes():
        body += part
        if len(body) > MOST_BYTES:
            raise UnavailableError(
                f"An answer of the runtime of invocations at {url} is larger than "
                f"{MOST_BYTES:,} bytes; request less of it."
            )
        if clock() > deadline:
            raise UnavailableError(
                f"An answer of the runtime of invocations at {url} did not end within "
                f"{LATE_SECONDS:g} s."
            )
    headers = {name.lower(): value for name, value in response.headers.items()}
    return Answer(url=url, status=response.status_code, headers=headers, content=bytes(body))


def make_no_runtime_error(url: str) -> UnavailableError:
    """The error for an answer that is not a runtime's."""
    return UnavailableError(
        f"The server at {url} is not a runtime of invocations; correct the address, or "
        "the proxy before it."
    )
