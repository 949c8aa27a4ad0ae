"""Promises of a workflow: values that its handlers pass to each other once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from durable_invocations.protocol.failures import Failure
from durable_invocations.protocol.pb import protocol_pb2 as pb
from durable_invocations.protocol.services import ServiceKind
from durable_invocations.serving.attempts.operations import (
    Operation,
    ignore_result,
    make_external_parser,
)
from durable_invocations.serving.errors import ContextError

if TYPE_CHECKING:
    from durable_invocations.serving.attempts.attempt import HandlerAttempt
    from durable_invocations.serving.declarations.serde import Serde


class Promise:
    """A promise by its name, kept with the workflow's key."""

    def __init__(self, attempt: HandlerAttempt, name: str, serde: Serde) -> None:
        if attempt.service is not ServiceKind.WORKFLOW:
            raise ContextError(
                f"{attempt.handler.qualified_name} has no promises; only workflows have them."
            )
        self._attempt = attempt
        self._name = name
        self._serde = serde

    @property
    def _label(self) -> str:
        return f"The value of the promise {self._name!r}"

    def value(self) -> Operation[Any]:
        """The value, once there is one. Awaiting it raises TerminalError if it was rejected."""
        message = pb.GetPromiseEntryMessage(key=self._name)
        return self._attempt.issue_operation(
            message, make_external_parser(self._serde, self._label)
        )

    def peek(self, default: Any = None) -> Operation[Any]:
        """The value if there is one by now, else `default`."""
        message = pb.PeekPromiseEntryMessage(key=self._name)
        return self._attempt.issue_operation(
            message, make_external_parser(self._serde, self._label, default)
        )

    def resolve(self, value: Any = None) -> Operation[None]:
        """Complete it with a value. Awaiting raises TerminalError if it was completed before."""
        dumped = self._serde.dumps(value)
        message = pb.CompletePromiseEntryMessage(key=self._name, completion_value=dumped)
        return self._attempt.issue_operation(message, ignore_result)

    def reject(self, message: str, status: int = 500) -> Operation[None]:
        """Complete it with a failure. Awaiting raises TerminalError if it was completed before."""
        failure = Failure(code=status, message=message).written()
        entry = pb.CompletePromiseEntryMessage(key=self._name, completion_failure=failure)
        return self._attempt.issue_operation(entry, ignore_result)
