"""Reads what a server answers as a runtime of invocations, whatever it is, and within bounds."""

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
"""The header that names the invocation that an answer is of."""
MOST_BYTES = 256 * 1024 * 1024
"""Bytes of an answer: a journal of many entries is large."""
LATE_SECONDS = 60.0
"""How long the body may take, once the answer has begun."""
_TEXT = 2_000
"""Characters of an answer that is not ours, for a message."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A whole answer."""

    url: str
    """The runtime's."""
    status: int
    headers: Mapping[str, str] = field(repr=False)
    content: bytes = field(repr=False)

    @property
    def value(self) -> Any:
        """The JSON value of an answer; its objects say so where they lack a field.

        Raises UnavailableError for what no runtime answers.
        """
        try:
            return json.loads(self.content, object_hook=lambda told: Told(self.url, told))
        except (ValueError, RecursionError) as error:
            raise no_runtime(self.url) from error

    @property
    def object(self) -> Told:
        """The JSON object. Raises UnavailableError for what no runtime answers."""
        found = self.value
        if not isinstance(found, Told):
            raise no_runtime(self.url)
        return found

    def output(self) -> Any:
        """An invocation's output: JSON's value, or else its bytes; None for no bytes.

        Raises UnavailableError for what no runtime answers.
        """
        if ID_HEADER not in self.headers:
            raise no_runtime(self.url)
        if not self.content:
            return None
        kind = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == JSON:
            # A handler may return what is none, though it says that it is.
            with suppress(ValueError, RecursionError):
                return json.loads(self.content)
        return self.content

    def reason(self) -> tuple[int, str]:
        """The code and the message of a refusal or failure, or what there is instead."""
        try:
            told = json.loads(self.content)
            return int(told["code"]), str(told["message"])
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return self.status, " ".join(self.content.decode(errors="replace")[:_TEXT].split())


class Told(dict[str, Any]):
    """An object of an answer. Without a field that is asked for, it was no runtime's."""

    def __init__(self, url: str, fields: Mapping[str, Any]) -> None:
        super().__init__(fields)
        self._url = url

    def __missing__(self, name: str) -> Any:
        raise no_runtime(self._url)

    def text(self, name: str) -> str:
        """A field that is a text. Raises UnavailableError."""
        return str(self._of(name, str))

    def flag(self, name: str) -> bool:
        """A field that is true or false. Raises UnavailableError."""
        return bool(self._of(name, bool))

    def objects(self, name: str) -> list[Mapping[str, Any]]:
        """A field that is a list of objects. Raises UnavailableError."""
        found = self._of(name, list)
        if not all(isinstance(each, Told) for each in found):
            raise no_runtime(self._url)
        return list(found)

    def shaped(self, shape: Mapping[str, Any]) -> Told:
        """Itself, where its fields are of these types, or lists or objects of such."""
        if not _fits(self, shape):
            raise no_runtime(self._url)
        return self

    def _of(self, name: str, kind: type) -> Any:
        found = self[name]
        if not isinstance(found, kind):
            raise no_runtime(self._url)
        return found


def _fits(found: Any, shape: Any) -> bool:
    if isinstance(shape, list):
        return isinstance(found, list) and all(_fits(each, shape[0]) for each in found)
    if isinstance(shape, Mapping):
        named = isinstance(found, Told) and shape.keys() <= found.keys()
        return named and all(_fits(found[name], each) for name, each in shape.items())
    return isinstance(found, shape)


def read(url: str, response: httpx.Response, clock: Callable[[], float]) -> Answer:
    """The whole of an answer that has begun. Raises UnavailableError beyond size and time."""
    if response.headers.get("content-encoding", "identity") != "identity":
        # Nobody asked for it, and a few bytes may unpack to many.
        raise no_runtime(url)
    until, found = clock() + LATE_SECONDS, bytearray()
    for part in response.iter_bytes():
        found += part
        if len(found) > MOST_BYTES:
            raise UnavailableError(
                f"An answer of the runtime of invocations at {url} is larger than "
                f"{MOST_BYTES:,} bytes; ask for less of it."
            )
        if clock() > until:
            raise UnavailableError(
                f"An answer of the runtime of invocations at {url} did not end within "
                f"{LATE_SECONDS:g} s."
            )
    headers = {name.lower(): value for name, value in response.headers.items()}
    return Answer(url=url, status=response.status_code, headers=headers, content=bytes(found))


def no_runtime(url: str) -> UnavailableError:
    """The error of an answer that a runtime does not give."""
    return UnavailableError(
        f"What answers at {url} is none of a runtime of invocations; correct the address, or "
        "what is before it."
    )
