"""Serializes values: as JSON by type hints, or bytes unchanged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from inspect import unwrap
from types import NoneType
from typing import TYPE_CHECKING, Any, Protocol, get_type_hints

from pydantic_core import PydanticSerializationError, ValidationError, from_json, to_json

from asgi_guards import strictjson
from durable_invocations.serving.errors import ContextError

if TYPE_CHECKING:
    from pydantic import TypeAdapter


class Serde(Protocol):
    """Serializes values; `loads` raises ValueError for bytes that do not fit."""

    content_type: str

    def dumps(self, value: Any) -> bytes: ...

    def loads(self, body: bytes) -> Any: ...

    def schema(self) -> Any:
        """The JSON schema of the values, or None."""


@dataclass(frozen=True)
class Json:
    """JSON, checked against a type hint when there is one. None is the empty body."""

    hint: Any = Any

    content_type = "application/json"

    def dumps(self, value: Any) -> bytes:
        if value is None:
            return b""
        try:
            return to_json(value, inf_nan_mode="constants")
        except PydanticSerializationError as error:
            raise ContextError(
                f"{type(value).__name__} cannot be written as JSON: {error}. Give lists, dicts, "
                "dataclasses or pydantic models, or bytes with serde=BYTES."
            ) from None

    def loads(self, body: bytes) -> Any:
        if self.hint is Any or self.hint is NoneType:
            return from_json(body) if body else None
        try:
            return get_adapter(self.hint).validate_json(body or b"null")
        except ValidationError as error:
            raise ValueError(_format_errors(error)) from None

    def schema(self) -> Any:
        return None if self.hint is Any else get_adapter(self.hint).json_schema()


def check_numbers(body: bytes) -> None:
    """Raise ContextError for JSON with NaN or an infinity, which a journal may keep.

    Standard JSON has neither (RFC 8259, 6), so others could not read the answer.
    """
    if b"NaN" in body or b"Infinity" in body:
        try:
            strictjson.loads(body)
        except ValueError as error:
            raise ContextError(
                f"The result cannot be written as JSON: {error}; return None."
            ) from None


@dataclass(frozen=True)
class Bytes:
    """The bytes themselves."""

    content_type = "application/octet-stream"

    def dumps(self, value: Any) -> bytes:
        if not isinstance(value, (bytes, bytearray, memoryview)):
            raise ContextError(f"{type(value).__name__} is not bytes; leave serde=BYTES out.")
        return bytes(value)

    def loads(self, body: bytes) -> bytes:
        return body

    def schema(self) -> None:
        return None


JSON = Json()
BYTES = Bytes()


def get_serde(hint: Any) -> Serde:
    """The serde of a type hint: bytes unchanged, anything else as JSON."""
    if hint is bytes:
        return BYTES
    return JSON if hint is Any else Json(hint)


def get_return_serde(function: Callable[..., Any]) -> Serde:
    """The serde of a function's return annotation; JSON if it has none.

    Raises ContextError for an annotation that cannot be resolved.
    """
    plain = unwrap(getattr(function, "__func__", function))
    hint = getattr(plain, "__annotations__", {}).get("return", Any)
    if isinstance(hint, str):
        try:
            hint = get_hints(plain)["return"]
        except NameError as error:
            raise ContextError(format_unreadable(plain, error)) from None
    return get_serde(NoneType if hint is None else hint)


def get_hints(function: Callable[..., Any]) -> dict[str, Any]:
    """The type hints of a function. Raises NameError for a name that its module lacks."""
    return get_type_hints(function, include_extras=True)


def format_unreadable(function: Callable[..., Any], error: NameError) -> str:
    """Why the hints of a function cannot be read, and the remedy."""
    return (
        f"The annotations of {function.__qualname__} cannot be read: {error}. Define or import "
        "their names at the top of its module, not in a function or under TYPE_CHECKING."
    )


def get_adapter(hint: Any) -> TypeAdapter[Any]:
    """The adapter that parses and describes values of a type hint."""
    try:
        return _get_cached_adapter(hint)
    except TypeError:
        # An Annotated may contain unhashable metadata.
        return _make_adapter(hint)


def _make_adapter(hint: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(hint)


_get_cached_adapter = lru_cache(maxsize=1024)(_make_adapter)


def _format_errors(error: ValidationError) -> str:
    """What does not fit, without the value, which may be secret."""
    problems = error.errors(include_url=False, include_input=False, include_context=False)
    return "; ".join(
        f"{'.'.join(map(str, problem['loc'])) or 'the value'}: {problem['msg']}"
        for problem in problems[:5]
    )
