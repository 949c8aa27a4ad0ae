"""Decorators that declare handlers, with and without parentheses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar, overload

from durable_invocations.errors import ConfigError

Function = Callable[..., Awaitable[Any]]
F = TypeVar("F", bound=Function)


class Decorator(Protocol):
    """`@it`, `@it()` or `@it(name="…")`, if the handler's name is not the function's."""

    @overload
    def __call__(self, function: F, /) -> F: ...

    @overload
    def __call__(self, *, name: str | None = None) -> Callable[[F], F]: ...


def make_decorator(declare: Callable[[Function, str | None], None]) -> Decorator:
    """The decorator that declares a function, under a given name, and returns it unchanged."""

    def decorate(function: Any = None, /, *, name: str | None = None) -> Any:
        if function is None:
            return lambda function: decorate(function, name=name)
        if not callable(function):
            raise ConfigError(f'{function!r} is not a function; to name a handler, write name="…"')
        declare(function, name)
        return function

    return decorate
