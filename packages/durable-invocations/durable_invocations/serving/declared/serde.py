"""Values to bytes and back: JSON by type hints, or bytes as they are."""

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
    """How values become bytes; `loads` raises ValueError for what it cannot read."""

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
                f"{type(value).__name__} has no form in JSON: {error}. Give lists, dicts, "
                "dataclasses or pydantic models, or bytes with serde=BYTES."
            ) from None

    def loads(self, body: bytes) -> Any:
        if self.hint is Any or self.hint is NoneType:
            return from_json(body) if body else None
        try:
            return adapter(self.hint).validate_json(body or b"null")
        except ValidationError as error:
            raise ValueError(_told(error)) from None

    def schema(self) -> Any:
        return None if self.hint is Any else adapter(self.hint).json_schema()


def check_numbers(body: bytes) -> None:
    """Raise ContextError for JSON with NaN or an infinity, which a journal keeps.

    JSON itself has neither (RFC 8259, 6), so others would not read the answer.
    """
    if b"NaN" in body or b"Infinity" in body:
        try:
            strictjson.loads(body)
        except ValueError as error:
            raise ContextError(f"The result has no form in JSON: {error}; return None.") from None


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


def serde_for(hint: Any) -> Serde:
    """The serde of a type hint: bytes as they are, anything else as JSON."""
    if hint is bytes:
        return BYTES
    return JSON if hint is Any else Json(hint)


def returned_by(function: Callable[..., Any]) -> Serde:
    """The serde for what a function returns, by its annotation; JSON where there is none.

    Raises ContextError for an annotation that cannot be read.
    """
    plain = unwrap(getattr(function, "__func__", function))
    hint = getattr(plain, "__annotations__", {}).get("return", Any)
    if isinstance(hint, str):
        try:
            hint = hints_of(plain)["return"]
        except NameError as error:
            raise ContextError(unreadable(plain, error)) from None
    return serde_for(NoneType if hint is None else hint)


def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The type hints of a function. Raises NameError for a name that its module has not."""
    return get_type_hints(function, include_extras=True)


def unreadable(function: Callable[..., Any], error: NameError) -> str:
    """Why the hints of a function cannot be read, and the remedy."""
    return (
        f"The annotations of {function.__qualname__} cannot be read: {error}. Define or import at "
        "the top of its module what they name, not in a function or under TYPE_CHECKING."
    )


def adapter(hint: Any) -> TypeAdapter[Any]:
    """What reads and describes values of a type hint."""
    try:
        return _adapter(hint)
    except TypeError:
        # An Annotated may hold what has no hash.
        return _made(hint)


def _made(hint: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(hint)


_adapter = lru_cache(maxsize=1024)(_made)


def _told(error: ValidationError) -> str:
    """What does not fit, without the value, which may be a secret."""
    each = error.errors(include_url=False, include_input=False, include_context=False)
    return "; ".join(
        f"{'.'.join(map(str, one['loc'])) or 'the value'}: {one['msg']}" for one in each[:5]
    )
