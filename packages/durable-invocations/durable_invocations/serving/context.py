"""What a handler works with: every operation of it is an entry of the invocation's journal."""

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
from durable_invocations.protocol.awakeables import awakeable_id
from durable_invocations.protocol.failures import Failure
from durable_invocations.protocol.frames import frame
from durable_invocations.protocol.pb import protocol_pb2 as pb
from durable_invocations.serving.attempts.operations import Operation, given, nothing, valued
from durable_invocations.serving.attempts.running import Action, RunRetry
from durable_invocations.serving.calls import Call, Sent, Target, targeted
from durable_invocations.serving.declared.serde import JSON, Serde, returned_by, serde_for
from durable_invocations.serving.errors import ContextError
from durable_invocations.serving.promises import Promise
from durable_invocations.serving.states import State

if TYPE_CHECKING:
    from durable_invocations.serving.attempts.attempt import Attempt

Seconds = float | timedelta
T = TypeVar("T")


class Context:
    """One invocation, as its handler sees it.

    Operations begin when they are called, and most are awaited for their result. On replay the
    handler gets the results that the journal has, so between operations its code must do the same
    each time: what depends on time, chance or the outside world belongs into `run`.
    """

    def __init__(self, attempt: Attempt, headers: Mapping[str, str]) -> None:
        self._attempt = attempt
        self.id: str = attempt.start.debug_id
        """The invocation's id."""
        self.key: str = attempt.start.key
        """The key of the object or workflow; empty in a service."""
        self.headers = headers
        """The headers of the request that began it; the values of a repeated one as a list."""
        self.state = State(attempt)
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
        """Call a function, whose result the journal keeps: the one place for side effects.

        An async function runs here, another in a thread. Its result comes back as the annotation
        of its return value says, in this attempt as in a replay. It may run again when the attempt
        breaks before the runtime has acknowledged the result. What it raises fails the attempt,
        and is tried again as `retry` or the runtime says; TerminalError is kept as its result.
        """
        if not callable(function):
            raise ContextError(
                f"The run {name!r} gets {type(function).__name__} in place of a function; give it "
                "the function, and its arguments behind it: ctx.run(name, function, argument)."
            )
        kept = serde or returned_by(function)
        action = Action(name=name, function=function, args=args, serde=kept, retry=retry)
        return self._attempt.run(action)

    def time(self) -> Operation[float]:
        """The time in seconds since 1970, the same in each replay."""

        async def now() -> float:
            return self._attempt.clock()

        return self.run("time", now, serde=JSON)

    @cached_property
    def random(self) -> random.Random:
        """Chance that is the same in each replay."""
        seed = sha256(self._attempt.start.id).digest()[:8]
        return random.Random(int.from_bytes(seed, "big"))  # noqa: S311 - it must repeat

    def uuid(self) -> UUID:
        """A UUID that is the same in each replay."""
        return UUID(int=self.random.getrandbits(128), version=4)

    def sleep(self, duration: Seconds, name: str = "") -> Operation[None]:
        """Done after so many seconds, however often the invocation is suspended meanwhile."""
        due = self._after(duration)
        return self._attempt.operation(pb.SleepEntryMessage(wake_up_time=due, name=name), nothing)

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
        """Call a handler, with a `key` that of an object or workflow; `returns` is a type hint.

        Awaiting it raises TerminalError if the other invocation ends with one.
        """
        message = pb.CallEntryMessage(
            service_name=service,
            handler_name=handler,
            parameter=_dumped(argument),
            headers=_headers(headers),
            key=key,
            idempotency_key=_idempotency(idempotency_key),
        )
        call: Call[Any] = Call(self._attempt, valued(serde_for(returns)))
        self._attempt.begin(call, frame(message))
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
    ) -> Sent:
        """Begin an invocation now, or after `delay`, and do not wait for it."""
        message = pb.OneWayCallEntryMessage(
            service_name=service,
            handler_name=handler,
            parameter=_dumped(argument),
            invoke_time=0 if delay is None else self._after(delay),
            headers=_headers(headers),
            key=key,
            idempotency_key=_idempotency(idempotency_key),
        )
        return Sent(self._attempt, self._attempt.record(message))

    def awakeable(self, returns: Any = Any, name: str = "") -> tuple[str, Operation[Any]]:
        """An id to hand out, and what whoever has it completes it with.

        Awaiting that raises TerminalError (400) for a value that `returns` does not fit.
        """
        taken = given(serde_for(returns), "The value of the awakeable")
        operation = self._attempt.operation(pb.AwakeableEntryMessage(name=name), taken)
        return awakeable_id(self._attempt.start.id, operation.index), operation

    def resolve_awakeable(self, id_: str, value: Any = None) -> None:
        """Complete an awakeable of any invocation with a value."""
        self._attempt.record(pb.CompleteAwakeableEntryMessage(id=id_, value=_dumped(value)))

    def reject_awakeable(self, id_: str, message: str, status: int = 500) -> None:
        """Complete an awakeable of any invocation with a failure."""
        failure = Failure(code=status, message=message).written()
        self._attempt.record(pb.CompleteAwakeableEntryMessage(id=id_, failure=failure))

    def promise(self, name: str, returns: Any = Any) -> Promise:
        """A promise of this workflow's run, by its name."""
        return Promise(self._attempt, name, serde_for(returns))

    def cancel(self, invocation_id: str) -> None:
        """Ask the runtime to cancel an invocation; what it awaits fails with status 409."""
        self._attempt.record(pb.CancelInvocationEntryMessage(invocation_id=invocation_id))

    def attach(self, target: Target, returns: Any = Any) -> Operation[Any]:
        """The result of an invocation that there is, when it ends."""
        message = targeted(pb.AttachInvocationEntryMessage(), target)
        return self._attempt.operation(message, valued(serde_for(returns)))

    def output(self, target: Target, returns: Any = Any, *, default: Any = None) -> Operation[Any]:
        """The result of an invocation that has ended; `default` for one that has not."""
        message = targeted(pb.GetInvocationOutputEntryMessage(), target)
        return self._attempt.operation(message, valued(serde_for(returns), default))

    async def gather(self, *operations: Operation[Any]) -> list[Any]:
        """The results of all, once all are done. Raises the first failure in this order."""
        await self._attempt.all_of(operations)
        return [each.value() for each in operations]

    async def select(self, **operations: Operation[Any]) -> tuple[str, Any]:
        """Name and result of the first that is done; on replay the same. Raises its failure."""
        if not operations:
            raise ContextError("select() needs operations by name, as in select(reply=…, late=…).")
        chosen = await self._attempt.first_of(tuple(operations.values()))
        name = next(name for name, each in operations.items() if each is chosen)
        return name, chosen.value()

    def _after(self, duration: Seconds) -> int:
        """When `duration` from now has passed, in ms since 1970."""
        # Handlers are not always type-checked.
        seconds: Any = duration.total_seconds() if isinstance(duration, timedelta) else duration
        # Compared as it is: a float has not every integer, and NaN compares with none.
        number = isinstance(seconds, Real)
        if not (number and abs(seconds) <= CENTURY):
            raise ContextError(
                f"{duration!r} is no time; give seconds up to a century, or a timedelta."
            )
        return round((self._attempt.clock() + max(0.0, float(seconds))) * 1000)


def _dumped(value: Any) -> bytes:
    return value if isinstance(value, bytes) else JSON.dumps(value)


def _headers(headers: Mapping[str, str] | None) -> list[pb.Header]:
    return [pb.Header(key=key, value=value) for key, value in (headers or {}).items()]


def _idempotency(key: str | None) -> str | None:
    if key is not None and not key:
        raise ContextError("idempotency_key is empty; leave it out, or name the request.")
    return key
