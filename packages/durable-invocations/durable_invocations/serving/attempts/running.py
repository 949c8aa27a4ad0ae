"""Side effects: functions whose results the journal keeps, so that a replay calls none again."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from inspect import isawaitable, iscoroutinefunction
from typing import Any

from anyio import to_thread

from durable_invocations.errors import ConfigError
from durable_invocations.protocol.failures import Failure
from durable_invocations.protocol.pb import protocol_pb2 as pb
from durable_invocations.serving.attempts.reports import format_error
from durable_invocations.serving.declarations.serde import Serde
from durable_invocations.serving.errors import RetryableError, TerminalError

_STEEPEST = 100
logger = logging.getLogger("durable_invocations")


@dataclass(frozen=True, kw_only=True)
class RunRetry:
    """When a failed run is retried, in seconds: after `initial`, then `factor` longer up to `cap`.

    After `attempts`, or `within` seconds of trying, whichever is first, the run has failed for
    good: awaiting it raises TerminalError. Without either bound it is retried forever.
    """

    initial: float = 0.1
    factor: float = 2.0
    cap: float = 60.0
    attempts: int | None = None
    within: float | None = None

    def __post_init__(self) -> None:
        if self.initial < 0 or not 1 <= self.factor <= _STEEPEST or self.cap < self.initial:
            raise ConfigError(
                f"{self} is invalid: 0 <= initial <= cap, and 1 <= factor <= {_STEEPEST}"
            )
        if self.attempts is not None and self.attempts < 1:
            raise ConfigError(f"attempts={self.attempts} is invalid; try at least once")

    def delay(self, tried: int, seconds: float) -> float | None:
        """The wait after `tried` attempts that took `seconds` in total; None for no more."""
        if self.attempts is not None and tried >= self.attempts:
            return None
        if self.within is not None and seconds >= self.within:
            return None
        exponent = min(tried - 1, 64)
        return min(self.cap, self.initial * self.factor**exponent)


@dataclass(frozen=True, kw_only=True)
class PriorTries:
    """How often a run has failed before, and for how many seconds it has been tried."""

    count: int = 0
    seconds: float = 0.0
    failure: Failure | None = None
    """Its final failure, which could not be stored."""


@dataclass(frozen=True, kw_only=True)
class RunAction:
    """A named function with its arguments, and how its result is kept and retried."""

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    serde: Serde
    retry: RunRetry | None

    async def execute(
        self, tried: PriorTries, clock: Callable[[], float], attempt: object
    ) -> pb.RunEntryMessage:
        """Run it: the entry that records its result or final failure; `attempt` is for the log.

        One that has already failed for good is not executed again.

        Raises the function's error if it is to be retried, as RetryableError if `retry` says
        when.
        """
        if tried.failure is not None:
            return pb.RunEntryMessage(name=self.name, failure=tried.failure.written())
        started_at = clock()
        try:
            value = await self._call_function()
            return pb.RunEntryMessage(name=self.name, value=self.serde.dumps(value))
        except TerminalError as error:
            return self._make_failure(format_error(error), error.status)
        except Exception as error:
            if self.retry is None:
                raise
            spent = tried.seconds + clock() - started_at
            delay = self.retry.delay(tried.count + 1, spent)
            message = f"{type(error).__name__}: {format_error(error)}"
            if delay is None:
                logger.warning("%s: the run %r failed for good", attempt, self.name, exc_info=error)
                return self._make_failure(message, 500)
            if isinstance(error, RetryableError):
                # It has its own delay.
                raise
            raise RetryableError(message, delay) from error

    def _make_failure(self, message: str, status: int) -> pb.RunEntryMessage:
        failure = Failure(code=status, message=message)
        return pb.RunEntryMessage(name=self.name, failure=failure.written())

    async def _call_function(self) -> Any:
        """Call it: async functions here, others in a thread, so that they do not block."""
        if iscoroutinefunction(self.function):
            return await self.function(*self.args)
        call = partial(self.function, *self.args)
        value = await to_thread.run_sync(call, abandon_on_cancel=True)
        return await value if isawaitable(value) else value
