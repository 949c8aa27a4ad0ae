"""Other invocations: begun by a handler, or named by it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from durable_invocations.protocol.pb import protocol_pb2 as pb
from durable_invocations.serving.attempts.operations import Operation, parse_id

if TYPE_CHECKING:
    from durable_invocations.protocol.results import Result
    from durable_invocations.serving.attempts.attempt import HandlerAttempt

T = TypeVar("T")


class InvocationHandle:
    """An invocation that this handler began: a call, or a send."""

    def __init__(self, attempt: HandlerAttempt, index: int) -> None:
        self._attempt_of = attempt
        self.entry = index

    def invocation_id(self) -> Operation[str]:
        """The invocation's id."""
        message = pb.GetCallInvocationIdEntryMessage(call_entry_index=self.entry)
        return self._attempt_of.issue_operation(message, parse_id)

    def cancel(self) -> None:
        """Ask the runtime to cancel the invocation."""
        self._attempt_of.issue_unawaited(
            pb.CancelInvocationEntryMessage(call_entry_index=self.entry)
        )


class SendHandle(InvocationHandle):
    """A send, whose result is not awaited."""


class Call(Operation[T], InvocationHandle, Generic[T]):
    """A call: awaiting it returns the other handler's result."""

    def __init__(self, attempt: HandlerAttempt, parse: Callable[[Result], T]) -> None:
        Operation.__init__(self, attempt, parse)
        InvocationHandle.__init__(self, attempt, -1)


@dataclass(frozen=True, kw_only=True)
class WorkflowRun:
    """The run of a workflow, by its key."""

    workflow: str
    key: str


@dataclass(frozen=True, kw_only=True)
class IdempotentRequest:
    """A request that had an idempotency key."""

    service: str
    handler: str
    idempotency_key: str
    key: str | None = None


Target = str | InvocationHandle | WorkflowRun | IdempotentRequest


def set_target(message: Any, target: Target) -> Any:
    """The message with its target invocation set."""
    if isinstance(target, str):
        message.invocation_id = target
    elif isinstance(target, InvocationHandle):
        message.call_entry_index = target.entry
    elif isinstance(target, WorkflowRun):
        run = pb.WorkflowTarget(workflow_name=target.workflow, workflow_key=target.key)
        message.workflow_target.CopyFrom(run)
    else:
        message.idempotent_request_target.CopyFrom(_build_request(target))
    return message


def _build_request(target: IdempotentRequest) -> pb.IdempotentRequestTarget:
    return pb.IdempotentRequestTarget(
        service_name=target.service,
        service_key=target.key,
        handler_name=target.handler,
        idempotency_key=target.idempotency_key,
    )
