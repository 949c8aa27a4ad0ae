"""The state of an object's or workflow's key, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from durable_invocations.protocol.pb import protocol_pb2 as pb
from durable_invocations.protocol.services import ServiceKind
from durable_invocations.serving.attempts.operations import Operation, make_value_parser, parse_keys
from durable_invocations.serving.declarations.serde import JSON, get_serde
from durable_invocations.serving.errors import ContextError

if TYPE_CHECKING:
    from durable_invocations.serving.attempts.attempt import HandlerAttempt


class KeyState:
    """Every handler of the key may read it; exclusive ones and a workflow's run may change it."""

    def __init__(self, attempt: HandlerAttempt) -> None:
        self._attempt = attempt

    def get(self, name: str, returns: Any = Any, *, default: Any = None) -> Operation[Any]:
        """The value of a name, `default` if there is none; `returns` is a type hint."""
        self._check_access()
        parse = make_value_parser(get_serde(returns), default)
        return self._attempt.get_state(pb.GetStateEntryMessage(key=name.encode()), parse)

    def keys(self) -> Operation[list[str]]:
        """The names that have a value, sorted."""
        self._check_access()
        return self._attempt.get_state(pb.GetStateKeysEntryMessage(), parse_keys)

    def set(self, name: str, value: Any) -> None:
        """Set a name's value, as JSON; bytes are kept unchanged."""
        self._check_access(writes=True)
        dumped = value if isinstance(value, bytes) else JSON.dumps(value)
        self._attempt.update_state(pb.SetStateEntryMessage(key=name.encode(), value=dumped))

    def clear(self, name: str) -> None:
        """Remove a name's value."""
        self._check_access(writes=True)
        self._attempt.update_state(pb.ClearStateEntryMessage(key=name.encode()))

    def clear_all(self) -> None:
        """Remove all values."""
        self._check_access(writes=True)
        self._attempt.update_state(pb.ClearAllStateEntryMessage())

    def _check_access(self, *, writes: bool = False) -> None:
        called = self._attempt.handler.qualified_name
        if self._attempt.service is ServiceKind.SERVICE:
            raise ContextError(
                f"{called} has no state; only virtual objects and workflows have it."
            )
        if writes and not self._attempt.handler.kind.writes:
            raise ContextError(
                f"{called} is shared, and only reads the state; change it in an exclusive handler."
            )
