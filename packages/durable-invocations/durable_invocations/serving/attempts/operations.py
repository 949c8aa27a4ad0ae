"""Operations, which handlers await: their results come from the journal or the runtime."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from durable_invocations.protocol.failures import Failure
from durable_invocations.protocol.results import Empty, Result, parse_state_keys
from durable_invocations.serving.errors import ContextError, TerminalError

if TYPE_CHECKING:
    from durable_invocations.serving.declarations.serde import Serde

T = TypeVar("T")
BAD_REQUEST = 400


class OperationWaiter(Protocol):
    """What an operation needs from its attempt."""

    def wait_operation(self, operation: Operation[Any]) -> Coroutine[Any, Any, None]:
        """Wait until the operation is done."""


class Operation(Generic[T]):
    """Begins when it is created; `await` returns its result, every time.

    Awaiting raises TerminalError for a failure. Await several with the context's `gather` and
    `select`: the journal does not record the order in which asyncio would complete them.
    """

    __slots__ = ("_parse", "_result", "_waits", "index", "order")

    def __init__(self, waits: OperationWaiter, parse: Callable[[Result], T]) -> None:
        self._waits = waits
        self._parse = parse
        self._result: Result | None = None
        self.index = -1
        self.order = 0
        """The position among the attempt's results, by arrival."""

    @property
    def done(self) -> bool:
        return self._result is not None

    def finish(self, result: Result, order: int) -> None:
        self._result, self.order = result, order

    def __await__(self) -> Generator[Any, None, T]:
        yield from self._waits.wait_operation(self).__await__()
        return self.value()

    def value(self) -> T:
        """The result of an operation that is done. Raises TerminalError for a failure."""
        if isinstance(self._result, Failure):
            raise TerminalError(self._result.message, self._result.code)
        assert self._result is not None
        try:
            return self._parse(self._result)
        except ValueError as error:
            raise ContextError(
                f"The result of entry {self.index} cannot be read: {error}. Use the type hint or "
                "serde with which it was written."
            ) from None


def make_value_parser(serde: Serde, empty: Any = None) -> Callable[[Result], Any]:
    """Parses a value by `serde`; Empty becomes `empty`."""

    def parse_result(result: Result) -> Any:
        return empty if isinstance(result, Empty) else serde.loads(_get_bytes(result))

    return parse_result


def make_external_parser(serde: Serde, label: str, empty: Any = None) -> Callable[[Result], Any]:
    """Parses a value that others gave: `value` raises TerminalError if it does not fit.

    Another attempt would not change the value; the handler may catch the error.
    """
    read = make_value_parser(serde, empty)

    def parse_result(result: Result) -> Any:
        try:
            return read(result)
        except ValueError as error:
            raise TerminalError(f"{label} does not fit: {error}", BAD_REQUEST) from None

    return parse_result


def ignore_result(_result: Result) -> None:
    """Parses results that have no value."""


def parse_id(result: Result) -> str:
    """Parses the id of an invocation."""
    return _get_bytes(result).decode()


def parse_keys(result: Result) -> list[str]:
    """Parses the keys of a state, sorted."""
    return sorted(key.decode() for key in parse_state_keys(_get_bytes(result)))


def _get_bytes(result: Result) -> bytes:
    return b"" if isinstance(result, (Empty, Failure)) else result.value
