"""Other invocations: those that a handler begins, and those that it names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from durable_invocations.protocol.pb import protocol_pb2 as pb
from durable_invocations.serving.attempts.operations import Operation, text

if TYPE_CHECKING:
    from durable_invocations.protocol.results import Result
    from durable_invocations.serving.attempts.attempt import Attempt

T = TypeVar("T")


class Begun:
    """An invocation that this handler began: a call, or a send."""

    def __init__(self, attempt: Attempt, index: int) -> None:
        self._attempt_of = attempt
        self.entry = index

    def invocation_id(self) -> Operation[str]:
        """The invocation's id."""
        asked = pb.GetCallInvocationIdEntryMessage(call_entry_index=self.entry)
        return self._attempt_of.operation(asked, text)

    def cancel(self) -> None:
        """Ask the runtime to cancel the invocation."""
        self._attempt_of.record(pb.CancelInvocationEntryMessage(call_entry_index=self.entry))


class Sent(Begun):
    """A send, whose result nobody waits for."""


class Call(Operation[T], Begun, Generic[T]):
    """A call: awaiting it gives what the other handler returns."""

    def __init__(self, attempt: Attempt, taken: Callable[[Result], T]) -> None:
        Operation.__init__(self, attempt, taken)
        Begun.__init__(self, attempt, -1)


@dataclass(frozen=True, kw_only=True)
class WorkflowRun:
    """The run of a workflow, by its key."""

    workflow: str
    key: str


@dataclass(frozen=True, kw_only=True)
class KeyedRequest:
    """A request that had an idempotency key."""

    service: str
    handler: str
    idempotency_key: str
    key: str | None = None


Target = str | Begun | WorkflowRun | KeyedRequest


def targeted(message: Any, target: Target) -> Any:
    """The message, with the invocation that it is about."""
    if isinstance(target, str):
        message.invocation_id = target
    elif isinstance(target, Begun):
        message.call_entry_index = target.entry
    elif isinstance(target, WorkflowRun):
        run = pb.WorkflowTarget(workflow_name=target.workflow, workflow_key=target.key)
        message.workflow_target.CopyFrom(run)
    else:
        message.idempotent_request_target.CopyFrom(_request(target))
    return message


def _request(target: KeyedRequest) -> pb.IdempotentRequestTarget:
    return pb.IdempotentRequestTarget(
        service_name=target.service,
        service_key=target.key,
        handler_name=target.handler,
        idempotency_key=target.idempotency_key,
    )
