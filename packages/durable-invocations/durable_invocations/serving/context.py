"""The context of a handler: each of its operations is an entry of the invocation's journal."""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine, Mapping
from datetime import timedelta
from functools import cached_property
from hashlib import sha256
from numbers import Real
from typing import TYPE_CHECKING, Any, TypeVar, overload
from uuid import UUID

from durable_invocations.durations import CENTURY
from durable_invocations.protocol.awakeables import make_awakeable_id
from durable_invocations.protocol.failures import Failure
from durable_invocations.protocol.frames import make_frame
from durable_invocations.protocol.pb import protocol_pb2 as pb
from durable_invocations.serving.attempts.operations import (
    Operation,
    ignore_result,
    make_external_parser,
    make_value_parser,
)
from durable_invocations.serving.attempts.running import RunAction, RunRetry
from durable_invocations.serving.calls import Call, SendHandle, Target, set_target
from durable_invocations.serving.declarations.serde import JSON, Serde, get_return_serde, get_serde
from durable_invocations.serving.errors import ContextError
from durable_invocations.serving.promises import Promise
from durable_invocations.serving.states import KeyState

if TYPE_CHECKING:
    from durable_invocations.serving.attempts.attempt import HandlerAttempt

Seconds = float | timedelta
T = TypeVar("T")


class Context:
    """One invocation, as its handler sees it.

    Operations begin when they are called, and most are awaited for their result. On replay the
    handler gets the results from the journal, so the code between operations must do the same each
    time: whatever depends on time, chance or the outside world belongs in `run`.
    """

    def __init__(self, attempt: HandlerAttempt, headers: Mapping[str, str]) -> None:
        self._attempt = attempt
        self.id: str = attempt.start.debug_id
        """The invocation's id."""
        self.key: str = attempt.start.key
        """The key of the object or workflow; empty in a service."""
        self.headers = headers
        """The headers of the request that began it; repeated ones are joined by commas."""
        self.state = KeyState(attempt)
        """The state of the key."""

    @overload
    def run(
        self,
        name: str,
        function: Callable[..., Coroutine[Any, Any, T]],
        *args: Any,
        retry: RunRetry | None = ...,
        serde: Serde | None = ...,
    ) -> Operation[T]: ...

    @overload
    def run(
        self,
        name: str,
        function: Callable[..., T],
        *args: Any,
        retry: RunRetry | None = ...,
        serde: Serde | None = ...,
    ) -> Operation[T]: ...

    def run(
        self,
        name: str,
        function: Callable[..., Any],
        *args: Any,
        retry: RunRetry | None = None,
        serde: Serde | None = None,
    ) -> Operation[Any]:
        """Call a function, whose result the journal keeps: the place for all side effects.

        An async function runs here, any other in a thread. The result has the type of its return
        annotation, in this attempt and in a replay. It may run again if the attempt breaks before
        the runtime has acknowledged the result. Its errors fail the attempt, and are retried as
        `retry` or the runtime says; TerminalError is kept as its result.
        """
        if not callable(function):
            raise ContextError(
                f"The run {name!r} gets {type(function).__name__} instead of a function; give it "
                "the function, then its arguments: ctx.run(name, function, argument)."
            )
        result_serde = serde or get_return_serde(function)
        action = RunAction(name=name, function=function, args=args, serde=result_serde, retry=retry)
        return self._attempt.run(action)

    def time(self) -> Operation[float]:
        """The time in seconds since 1970, the same in each replay."""

        async def now() -> float:
            return self._attempt.clock()

        return self.run("time", now, serde=JSON)

    @cached_property
    def random(self) -> random.Random:
        """A random generator that is the same in each replay."""
        seed = sha256(self._attempt.start.id).digest()[:8]
        return random.Random(int.from_bytes(seed, "big"))  # noqa: S311 - it must repeat

    def uuid(self) -> UUID:
        """A UUID that is the same in each replay."""
        return UUID(int=self.random.getrandbits(128), version=4)

    def sleep(self, duration: Seconds, name: str = "") -> Operation[None]:
        """Sleep for a duration, however often the invocation is suspended meanwhile."""
        due = self._compute_due(duration)
        return self._attempt.issue_operation(
            pb.SleepEntryMessage(wake_up_time=due, name=name), ignore_result
        )

    def call(
        self,
        service: str,
        handler: str,
        argument: Any = None,
        *,
        key: str = "",
        idempotency_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        returns: Any = Any,
    ) -> Call[Any]:
        """Call a handler; `key` is that of an object or workflow, `returns` a type hint.

        Awaiting it raises TerminalError if the other invocation ends with one.
        """
        message = pb.CallEntryMessage(
            service_name=service,
            handler_name=handler,
            parameter=_dump_value(argument),
            headers=_build_headers(headers),
            key=key,
            idempotency_key=_check_idempotency_key(idempotency_key),
        )
        call: Call[Any] = Call(self._attempt, make_value_parser(get_serde(returns)))
        self._attempt.attach_and_issue(call, make_frame(message))
        call.entry = call.index
        return call

    def send(
        self,
        service: str,
        handler: str,
        argument: Any = None,
        *,
        key: str = "",
        delay: Seconds | None = None,
        idempotency_key: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> SendHandle:
        """Begin an invocation now, or after `delay`, without waiting for it."""
        message = pb.OneWayCallEntryMessage(
            service_name=service,
            handler_name=handler,
            parameter=_dump_value(argument),
            invoke_time=0 if delay is None else self._compute_due(delay),
            headers=_build_headers(headers),
            key=key,
            idempotency_key=_check_idempotency_key(idempotency_key),
        )
        return SendHandle(self._attempt, self._attempt.issue_unawaited(message))

    def awakeable(self, returns: Any = Any, name: str = "") -> tuple[str, Operation[Any]]:
        """An id to hand out, and the operation that whoever has it completes.

        Awaiting it raises TerminalError (400) for a value that does not fit `returns`.
        """
        parse = make_external_parser(get_serde(returns), "The value of the awakeable")
        operation = self._attempt.issue_operation(pb.AwakeableEntryMessage(name=name), parse)
        return make_awakeable_id(self._attempt.start.id, operation.index), operation

    def resolve_awakeable(self, id_: str, value: Any = None) -> None:
        """Complete an awakeable of any invocation with a value."""
        self._attempt.issue_unawaited(
            pb.CompleteAwakeableEntryMessage(id=id_, value=_dump_value(value))
        )

    def reject_awakeable(self, id_: str, message: str, status: int = 500) -> None:
        """Complete an awakeable of any invocation with a failure."""
        failure = Failure(code=status, message=message).written()
        self._attempt.issue_unawaited(pb.CompleteAwakeableEntryMessage(id=id_, failure=failure))

    def promise(self, name: str, returns: Any = Any) -> Promise:
        """A promise of this workflow's run, by its name."""
        return Promise(self._attempt, name, get_serde(returns))

    def cancel(self, invocation_id: str) -> None:
        """Ask the runtime to cancel an invocation; what it awaits fails with status 409."""
        self._attempt.issue_unawaited(pb.CancelInvocationEntryMessage(invocation_id=invocation_id))

    def attach(self, target: Target, returns: Any = Any) -> Operation[Any]:
        """The result of an existing invocation, once it ends."""
        message = set_target(pb.AttachInvocationEntryMessage(), target)
        return self._attempt.issue_operation(message, make_value_parser(get_serde(returns)))

    def output(self, target: Target, returns: Any = Any, *, default: Any = None) -> Operation[Any]:
        """The result of an invocation that has ended; `default` for one that has not."""
        message = set_target(pb.GetInvocationOutputEntryMessage(), target)
        return self._attempt.issue_operation(
            message, make_value_parser(get_serde(returns), default)
        )

    async def gather(self, *operations: Operation[Any]) -> list[Any]:
        """The results of all, once all are done. Raises the first failure in this order."""
        await self._attempt.wait_all(operations)
        return [operation.value() for operation in operations]

    async def select(self, **operations: Operation[Any]) -> tuple[str, Any]:
        """Name and result of the first that is done, also on replay. Raises its failure."""
        if not operations:
            raise ContextError("select() needs operations by name, as in select(reply=…, late=…).")
        chosen = await self._attempt.wait_first(tuple(operations.values()))
        name = next(name for name, operation in operations.items() if operation is chosen)
        return name, chosen.value()

    def _compute_due(self, duration: Seconds) -> int:
        """The end of `duration` from now, in ms since 1970."""
        # Handlers are not always type-checked.
        seconds: Any = duration.total_seconds() if isinstance(duration, timedelta) else duration
        # Compared before conversion: floats overflow, and NaN compares false.
        number = isinstance(seconds, Real)
        if not (number and abs(seconds) <= CENTURY):
            raise ContextError(
                f"{duration!r} is not a duration; give seconds up to a century, or a timedelta."
            )
        return round((self._attempt.clock() + max(0.0, float(seconds))) * 1000)


def _dump_value(value: Any) -> bytes:
    return value if isinstance(value, bytes) else JSON.dumps(value)


def _build_headers(headers: Mapping[str, str] | None) -> list[pb.Header]:
    return [pb.Header(key=key, value=value) for key, value in (headers or {}).items()]


def _check_idempotency_key(key: str | None) -> str | None:
    if key is not None and not key:
        raise ContextError("idempotency_key is empty; leave it out, or give a text.")
    return key
