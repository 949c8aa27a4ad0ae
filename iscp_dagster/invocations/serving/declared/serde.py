"""Values to bytes and back: JSON by type hints, or bytes as they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from inspect import unwrap
from types import NoneType
from typing import TYPE_CHECKING, Any, Protocol, get_type_hints

from pydantic_core import PydanticSerializationError, ValidationError, from_json, to_json

from iscp_dagster.invocations.serving.errors import ContextError

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
    """The serde for what a function returns, by its annotation; JSON where there is none."""
    plain = unwrap(getattr(function, "__func__", function))
    if "return" not in getattr(plain, "__annotations__", ()):
        return JSON
    return _returned(plain)


@lru_cache(maxsize=1024)
def _returned(function: Callable[..., Any]) -> Serde:
    return serde_for(get_type_hints(function, include_extras=True)["return"])


@lru_cache(maxsize=1024)
def adapter(hint: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(hint)


def _told(error: ValidationError) -> str:
    """What does not fit, without the value, which may be a secret."""
    each = error.errors(include_url=False, include_input=False, include_context=False)
    return "; ".join(
        f"{'.'.join(map(str, one['loc'])) or 'the value'}: {one['msg']}" for one in each[:5]
    )
