"""One connection's conversation in the subprotocol graphql-transport-ws, without a socket.

Rules and close codes are those of graphql-ws, PROTOCOL.md. The caller gives what arrives, and the
results of operations; it gets back what to do. Nothing is to be done after a `Close`.
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
class Send:
    """Send the message as one text frame."""

    message: Mapping[str, Any]


@dataclass(frozen=True)
class Close:
    """Close the socket; every operation has ended."""

    code: int
    reason: str


@dataclass(frozen=True)
class Admit:
    """Decide on the `connection_init` with this payload: answer with `admitted` or `refused`."""

    payload: Mapping[str, Any]


@dataclass(frozen=True)
class Start:
    """Begin an operation; its results name `serial`, as a client may use an id again."""

    serial: int
    query: str
    variables: Mapping[str, Any] | None
    operation: str | None


@dataclass(frozen=True)
class Stop:
    """End an operation; what it still tells is dropped."""

    serial: int


Action = Send | Close | Admit | Start | Stop


@dataclass(kw_only=True)
class Conversation:
    """What has been said on one connection. `most` operations run at a time."""

    most: int = 100
    _asked: bool = field(default=False, init=False)
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

    def received(self, frame: str | bytes) -> list[Action]:
        """Take in one frame of the client's."""
        if self._closed:
            return []
        try:
            message = _read(frame)
            return self._answer(message)
        except _BadRequestError as error:
            return self.close(BAD_REQUEST, str(error))

    def admitted(self, payload: Mapping[str, Any] | None = None) -> list[Action]:
        """Acknowledge the connection."""
        if self._closed:
            return []
        self._admitted = True
        return [Send(_message("connection_ack", payload=payload))]

    def refused(self, reason: str = "Forbidden") -> list[Action]:
        """Turn the connection away, or end it when its token is withdrawn."""
        return self.close(FORBIDDEN, reason)

    def waited(self) -> list[Action]:
        """Note that the time for `connection_init` is over."""
        return [] if self._asked else self.close(TIMED_OUT, "Connection initialisation timeout")

    def next(self, serial: int, result: Mapping[str, Any]) -> list[Action]:
        """Tell one result of an operation, unless it has ended."""
        return self._told(serial, "next", result)

    def failed(self, serial: int, errors: Sequence[Mapping[str, Any]]) -> list[Action]:
        """End an operation with errors."""
        told = self._told(serial, "error", list(errors))
        self._running.pop(serial, None)
        return told

    def ended(self, serial: int) -> list[Action]:
        """End an operation that told all it had."""
        told = self._told(serial, "complete", None)
        self._running.pop(serial, None)
        return told

    def close(self, code: int, reason: str) -> list[Action]:
        """End every operation and the connection. A second call does nothing."""
        if self._closed:
            return []
        stopped = [Stop(serial) for serial in self._running]
        self._running.clear()
        self._closed = True
        return [*stopped, Close(code, cut(reason))]

    def _told(self, serial: int, kind: str, payload: Any) -> list[Action]:
        if self._closed or serial not in self._running:
            return []
        return [Send(_message(kind, id=self._running[serial], payload=payload))]

    def _answer(self, message: Mapping[str, Any]) -> list[Action]:
        kind = message.get("type")
        if kind == "connection_init":
            return self._init(_payload(message))
        if kind == "ping":
            return [Send(_message("pong", payload=_payload(message)))]
        if kind == "pong":
            _payload(message)
            return []
        if kind == "subscribe":
            return self._subscribe(message)
        if kind == "complete":
            return self._complete(_id(message))
        raise _BadRequestError(f"Unknown message type {str(kind)[:40]!r}")

    def _init(self, payload: Mapping[str, Any] | None) -> list[Action]:
        if self._asked:
            return self.close(TOO_MANY_INITS, "Too many initialisation requests")
        self._asked = True
        return [Admit(payload or {})]

    def _subscribe(self, message: Mapping[str, Any]) -> list[Action]:
        if not self._admitted:
            return self.close(UNAUTHORIZED, "Unauthorized")
        id_, payload = _id(message), _payload(message) or {}
        start = _start(self._serials + 1, payload)
        if id_ in self._running.values():
            return self.close(EXISTS, f"Subscriber for {id_} already exists")
        if len(self._running) >= self.most:
            return [Send(_message("error", id=id_, payload=[self._too_many()]))]
        self._serials += 1
        self._running[start.serial] = id_
        return [start]

    def _too_many(self) -> Mapping[str, Any]:
        return {
            "message": f"This connection has {self.most} operations, the most that it may have; "
            "complete one, or open another connection.",
            "extensions": {"code": "TOO_MANY_SUBSCRIPTIONS"},
        }

    def _complete(self, id_: str) -> list[Action]:
        found = [serial for serial, each in self._running.items() if each == id_]
        for serial in found:
            del self._running[serial]
        return [Stop(serial) for serial in found]


class _BadRequestError(Exception):
    """A message is not one of the protocol's."""


def cut(reason: str) -> str:
    """Shorten a reason to what a close frame can carry."""
    return reason.encode()[:MOST_REASON].decode(errors="ignore")


def too_slow(name: str, position: str) -> str:
    """Return the reason to close with; half a position would lead nowhere, and is left out."""
    whole = f"{name} {position}"
    return whole if len(whole.encode()) <= MOST_REASON else name


def _read(frame: str | bytes) -> Mapping[str, Any]:
    if isinstance(frame, bytes):
        raise _BadRequestError("Messages are text frames, not binary ones")
    try:
        message = strictjson.loads(frame)
    except ValueError:
        raise _BadRequestError("The message is not JSON") from None
    if not isinstance(message, dict):
        raise _BadRequestError("The message is not a JSON object")
    return message


def _payload(message: Mapping[str, Any]) -> Mapping[str, Any] | None:
    payload = message.get("payload")
    if payload is None or isinstance(payload, dict):
        return payload
    raise _BadRequestError("The message's payload is not an object")


def _id(message: Mapping[str, Any]) -> str:
    id_ = message.get("id")
    if isinstance(id_, str) and 0 < len(id_) <= MOST_ID:
        return id_
    raise _BadRequestError(f"The message's id is not a text of 1 to {MOST_ID} characters")


def _start(serial: int, payload: Mapping[str, Any]) -> Start:
    query, name = payload.get("query"), payload.get("operationName")
    variables, extensions = payload.get("variables"), payload.get("extensions")
    if not isinstance(query, str):
        raise _BadRequestError("The payload's query is not a text")
    if not isinstance(name, str | None):
        raise _BadRequestError("The payload's operationName is not a text")
    if not isinstance(variables, dict | None) or not isinstance(extensions, dict | None):
        raise _BadRequestError("The payload's variables and extensions are objects or null")
    return Start(serial=serial, query=query, variables=variables, operation=name or None)


def _message(kind: str, **parts: Any) -> Mapping[str, Any]:
    return {"type": kind} | {name: value for name, value in parts.items() if value is not None}
