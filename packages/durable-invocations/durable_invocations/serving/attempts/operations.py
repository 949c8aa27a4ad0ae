"""What a handler awaits: operations whose results come from the journal or the runtime."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from durable_invocations.protocol.failures import Failure
from durable_invocations.protocol.results import Empty, Result, state_keys
from durable_invocations.serving.errors import ContextError, TerminalError

if TYPE_CHECKING:
    from durable_invocations.serving.declared.serde import Serde

T = TypeVar("T")
BAD_REQUEST = 400


class Waits(Protocol):
    """The attempt, as an operation knows it."""

    def until(self, operation: Operation[Any]) -> Coroutine[Any, Any, None]:
        """Wait until the operation is done."""


class Operation(Generic[T]):
    """Begun when it was made; `await` gives its result, as often as it is awaited.

    Awaiting raises TerminalError for a failure. Several are awaited with the context's `gather`
    and `select`, since the order in which other ways find them done is not in the journal.
    """

    __slots__ = ("_result", "_taken", "_waits", "index", "order")

    def __init__(self, waits: Waits, taken: Callable[[Result], T]) -> None:
        self._waits = waits
        self._taken = taken
        self._result: Result | None = None
        self.index = -1
        self.order = 0
        """The place among all results of the attempt, in the order of their coming."""

    @property
    def done(self) -> bool:
        return self._result is not None

    def finish(self, result: Result, order: int) -> None:
        self._result, self.order = result, order

    def __await__(self) -> Generator[Any, None, T]:
        yield from self._waits.until(self).__await__()
        return self.value()

    def value(self) -> T:
        """The result of an operation that is done. Raises TerminalError for a failure."""
        if isinstance(self._result, Failure):
            raise TerminalError(self._result.message, self._result.code)
        assert self._result is not None
        try:
            return self._taken(self._result)
        except ValueError as error:
            raise ContextError(
                f"The result of entry {self.index} cannot be read: {error}. Give the type hint or "
                "serde with which it was written."
            ) from None


def valued(serde: Serde, empty: Any = None) -> Callable[[Result], Any]:
    """Reads a value by `serde`; no value at all is `empty`."""

    def taken(result: Result) -> Any:
        return empty if isinstance(result, Empty) else serde.loads(_bytes(result))

    return taken


def given(serde: Serde, what: str, empty: Any = None) -> Callable[[Result], Any]:
    """Reads what somebody else gave, once and for good: `value` raises TerminalError for a misfit.

    No other attempt, and no better answer, would change it; the handler may catch that.
    """
    read = valued(serde, empty)

    def taken(result: Result) -> Any:
        try:
            return read(result)
        except ValueError as error:
            raise TerminalError(f"{what} does not fit: {error}", BAD_REQUEST) from None

    return taken


def nothing(_result: Result) -> None:
    """Reads results that say no more than that there is one."""


def text(result: Result) -> str:
    """Reads the id of an invocation."""
    return _bytes(result).decode()


def keys(result: Result) -> list[str]:
    """Reads the keys of a state, in their order."""
    return sorted(each.decode() for each in state_keys(_bytes(result)))


def _bytes(result: Result) -> bytes:
    return b"" if isinstance(result, (Empty, Failure)) else result.value
