"""One connection's conversation in the subprotocol graphql-transport-ws, without a socket.

Rules and close codes come from graphql-ws, PROTOCOL.md. The caller passes in what arrives, and the
results of operations, and gets back actions. There are none after a `CloseSocket`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from asgi_guards import strictjson

SUBPROTOCOL = "graphql-transport-ws"
MOST_REASON = 123
"""Bytes that a close frame has room for beside its code (RFC 6455, 5.5)."""
MOST_ID = 128
"""Characters of an operation's id."""

RESTART, OVERLOADED, TOO_BIG = 1012, 1013, 1009
BAD_REQUEST, UNAUTHORIZED, FORBIDDEN = 4400, 4401, 4403
NOT_ACCEPTABLE, TIMED_OUT, EXISTS, TOO_MANY_INITS = 4406, 4408, 4409, 4429


@dataclass(frozen=True)
class SendMessage:
    """Send the message as one text frame."""

    message: Mapping[str, Any]


@dataclass(frozen=True)
class CloseSocket:
    """Close the socket; every operation has ended."""

    code: int
    reason: str


@dataclass(frozen=True)
class AdmitClient:
    """Decide on a `connection_init` with this payload.

    By `accept_connection` or `refuse_connection`.
    """

    payload: Mapping[str, Any]


@dataclass(frozen=True)
class StartOperation:
    """Begin an operation; its results name `serial`, as a client may use an id again."""

    serial: int
    query: str
    variables: Mapping[str, Any] | None
    operation: str | None


@dataclass(frozen=True)
class StopOperation:
    """End an operation; its further results are dropped."""

    serial: int


SocketAction = SendMessage | CloseSocket | AdmitClient | StartOperation | StopOperation


@dataclass(kw_only=True)
class Conversation:
    """The state of one connection. `most` operations run at a time."""

    most: int = 100
    _init_received: bool = field(default=False, init=False)
    _admitted: bool = field(default=False, init=False)
    _closed: bool = field(default=False, init=False)
    _serials: int = field(default=0, init=False)
    _running: dict[int, str] = field(default_factory=dict, init=False)
    """The ids of operations, by serial."""

    @property
    def running(self) -> tuple[int, ...]:
        """The operations that have not ended."""
        return tuple(self._running)

    @property
    def closed(self) -> bool:
        return self._closed

    def handle_frame(self, frame: str | bytes) -> list[SocketAction]:
        """Handle one frame from the client."""
        if self._closed:
            return []
        try:
            message = _parse_frame(frame)
            return self._answer_message(message)
        except _BadRequestError as error:
            return self.close(BAD_REQUEST, str(error))

    def accept_connection(self, payload: Mapping[str, Any] | None = None) -> list[SocketAction]:
        """Acknowledge the connection."""
        if self._closed:
            return []
        self._admitted = True
        return [SendMessage(_build_message("connection_ack", payload=payload))]

    def refuse_connection(self, reason: str = "Forbidden") -> list[SocketAction]:
        """Refuse the connection, or end it when its token is withdrawn."""
        return self.close(FORBIDDEN, reason)

    def expire_init(self) -> list[SocketAction]:
        """Note that the time for `connection_init` is over."""
        return (
            []
            if self._init_received
            else self.close(TIMED_OUT, "Connection initialisation timeout")
        )

    def send_result(self, serial: int, result: Mapping[str, Any]) -> list[SocketAction]:
        """Send one result of an operation, unless it has ended."""
        return self._send_payload(serial, "next", result)

    def fail_operation(
        self, serial: int, errors: Sequence[Mapping[str, Any]]
    ) -> list[SocketAction]:
        """End an operation with errors."""
        actions = self._send_payload(serial, "error", list(errors))
        self._running.pop(serial, None)
        return actions

    def complete_operation(self, serial: int) -> list[SocketAction]:
        """End an operation that has sent all its results."""
        actions = self._send_payload(serial, "complete", None)
        self._running.pop(serial, None)
        return actions

    def close(self, code: int, reason: str) -> list[SocketAction]:
        """End every operation and the connection. A second call does nothing."""
        if self._closed:
            return []
        stops = [StopOperation(serial) for serial in self._running]
        self._running.clear()
        self._closed = True
        return [*stops, CloseSocket(code, truncate_reason(reason))]

    def _send_payload(self, serial: int, kind: str, payload: Any) -> list[SocketAction]:
        if self._closed or serial not in self._running:
            return []
        return [SendMessage(_build_message(kind, id=self._running[serial], payload=payload))]

    def _answer_message(self, message: Mapping[str, Any]) -> list[SocketAction]:
        kind = message.get("type")
        if kind == "connection_init":
            return self._handle_init(_parse_payload(message))
        if kind == "ping":
            return [SendMessage(_build_message("pong", payload=_parse_payload(message)))]
        if kind == "pong":
            _parse_payload(message)
            return []
        if kind == "subscribe":
            return self._handle_subscribe(message)
        if kind == "complete":
            return self._handle_complete(_parse_id(message))
        raise _BadRequestError(f"Unknown message type {str(kind)[:40]!r}")

    def _handle_init(self, payload: Mapping[str, Any] | None) -> list[SocketAction]:
        if self._init_received:
            return self.close(TOO_MANY_INITS, "Too many initialisation requests")
        self._init_received = True
        return [AdmitClient(payload or {})]

    def _handle_subscribe(self, message: Mapping[str, Any]) -> list[SocketAction]:
        if not self._admitted:
            return self.close(UNAUTHORIZED, "Unauthorized")
        id_, payload = _parse_id(message), _parse_payload(message) or {}
        start = _parse_start(self._serials + 1, payload)
        if id_ in self._running.values():
            return self.close(EXISTS, f"Subscriber for {id_} already exists")
        if len(self._running) >= self.most:
            return [
                SendMessage(_build_message("error", id=id_, payload=[self._build_limit_error()]))
            ]
        self._serials += 1
        self._running[start.serial] = id_
        return [start]

    def _build_limit_error(self) -> Mapping[str, Any]:
        return {
            "message": f"This connection has {self.most} operations, the most that it may have; "
            "complete one, or open another connection.",
            "extensions": {"code": "TOO_MANY_SUBSCRIPTIONS"},
        }

    def _handle_complete(self, id_: str) -> list[SocketAction]:
        serials = [serial for serial, running_id in self._running.items() if running_id == id_]
        for serial in serials:
            del self._running[serial]
        return [StopOperation(serial) for serial in serials]


class _BadRequestError(Exception):
    """A message violates the protocol."""


def truncate_reason(reason: str) -> str:
    """Shorten a reason to what a close frame can carry."""
    return reason.encode()[:MOST_REASON].decode(errors="ignore")


def format_slow_reason(name: str, position: str) -> str:
    """Return the reason to close with; a position that does not fit is left out."""
    reason = f"{name} {position}"
    return reason if len(reason.encode()) <= MOST_REASON else name


def _parse_frame(frame: str | bytes) -> Mapping[str, Any]:
    if isinstance(frame, bytes):
        raise _BadRequestError("Messages are text frames, not binary ones")
    try:
        message = strictjson.loads(frame)
    except ValueError:
        raise _BadRequestError("The message is not JSON") from None
    if not isinstance(message, dict):
        raise _BadRequestError("The message is not a JSON object")
    return message


def _parse_payload(message: Mapping[str, Any]) -> Mapping[str, Any] | None:
    payload = message.get("payload")
    if payload is None or isinstance(payload, dict):
        return payload
    raise _BadRequestError("The message's payload is not an object")


def _parse_id(message: Mapping[str, Any]) -> str:
    id_ = message.get("id")
    if isinstance(id_, str) and 0 < len(id_) <= MOST_ID:
        return id_
    raise _BadRequestError(f"The message's id is not a text of 1 to {MOST_ID} characters")


def _parse_start(serial: int, payload: Mapping[str, Any]) -> StartOperation:
    query, name = payload.get("query"), payload.get("operationName")
    variables, extensions = payload.get("variables"), payload.get("extensions")
    if not isinstance(query, str):
        raise _BadRequestError("The payload's query is not a text")
    if not isinstance(name, str | None):
        raise _BadRequestError("The payload's operationName is not a text")
    if not isinstance(variables, dict | None) or not isinstance(extensions, dict | None):
        raise _BadRequestError("The payload's variables and extensions are objects or null")
    return StartOperation(serial=serial, query=query, variables=variables, operation=name or None)


def _build_message(kind: str, **parts: Any) -> Mapping[str, Any]:
    return {"type": kind} | {name: value for name, value in parts.items() if value is not None}
