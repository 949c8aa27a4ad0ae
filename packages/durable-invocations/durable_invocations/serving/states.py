"""The state of an object's or a workflow's key, by names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from durable_invocations.protocol.pb import protocol_pb2 as pb
from durable_invocations.protocol.services import ServiceKind
from durable_invocations.serving.attempts.operations import Operation, keys, valued
from durable_invocations.serving.declared.serde import JSON, serde_for
from durable_invocations.serving.errors import ContextError

if TYPE_CHECKING:
    from durable_invocations.serving.attempts.attempt import Attempt


class State:
    """Read by every handler of the key; changed by its exclusive ones, and a workflow's run."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt

    def get(self, name: str, returns: Any = Any, *, default: Any = None) -> Operation[Any]:
        """The value of a name, `default` if there is none; `returns` is a type hint."""
        self._check()
        taken = valued(serde_for(returns), default)
        return self._attempt.get_state(pb.GetStateEntryMessage(key=name.encode()), taken)

    def keys(self) -> Operation[list[str]]:
        """The names that have a value, in their order."""
        self._check()
        return self._attempt.get_state(pb.GetStateKeysEntryMessage(), keys)

    def set(self, name: str, value: Any) -> None:
        """Give a name a value, in JSON; bytes are kept as they are."""
        self._check(writes=True)
        dumped = value if isinstance(value, bytes) else JSON.dumps(value)
        self._attempt.change_state(pb.SetStateEntryMessage(key=name.encode(), value=dumped))

    def clear(self, name: str) -> None:
        """Let a name have no value."""
        self._check(writes=True)
        self._attempt.change_state(pb.ClearStateEntryMessage(key=name.encode()))

    def clear_all(self) -> None:
        """Let no name have a value."""
        self._check(writes=True)
        self._attempt.change_state(pb.ClearAllStateEntryMessage())

    def _check(self, *, writes: bool = False) -> None:
        called = self._attempt.handler.called
        if self._attempt.service is ServiceKind.SERVICE:
            raise ContextError(f"{called} has no state; virtual objects and workflows have it.")
        if writes and not self._attempt.handler.kind.writes:
            raise ContextError(
                f"{called} is shared, and only reads the state; change it in an exclusive handler."
            )
