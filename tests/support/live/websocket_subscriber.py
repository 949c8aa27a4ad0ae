"""A subscriber on a real websocket, which connects again with its cursor whenever it is cut off."""

from __future__ import annotations

import json
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidMessage
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

PROTOCOL = Subprotocol("graphql-transport-ws")
AGAIN_SECONDS = 0.1
LOOK_SECONDS = 0.2
LATE = 5
"""By how many messages its saved cursor is behind; those come again."""


@dataclass
class Follower:
    """Follows one subscription field, from a snapshot on; `address` is asked at each connection."""

    address: Callable[[], str]
    field: str
    columns: str
    messages: list[dict[str, Any]] = field(default_factory=list)
    """Every message as it came, repeated ones too."""
    connections: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    """Why connections ended."""
    cursor: str | None = None
    """Saved so far; it continues after it."""
    _cursors: deque[str] = field(default_factory=deque)
    _stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Follow until it is stopped."""
        while not self._stop.is_set():
            try:
                with connect(self.address(), subprotocols=[PROTOCOL], open_timeout=5) as socket:
                    self.connections += 1
                    self._converse(socket)
            except (OSError, ConnectionClosed, InvalidHandshake, InvalidMessage) as error:
                self.ends[type(error).__name__] += 1
            self._stop.wait(AGAIN_SECONDS)

    def stop(self) -> None:
        self._stop.set()

    def _converse(self, socket: ClientConnection) -> None:
        # It loses the cursors that are not saved yet.
        self._cursors.clear()
        socket.send(json.dumps({"type": "connection_init"}))
        assert json.loads(socket.recv(timeout=10))["type"] == "connection_ack"
        query = (
            f"subscription($after: String) {{ {self.field}(after: $after) {{ "
            f"operation data {{ {self.columns} }} fields ts_timestamp cursor }} }}"
        )
        payload = {"query": query, "variables": {"after": self.cursor}}
        socket.send(json.dumps({"type": "subscribe", "id": "1", "payload": payload}))
        while not self._stop.is_set():
            try:
                frame = json.loads(socket.recv(timeout=LOOK_SECONDS))
            except TimeoutError:
                continue
            if frame["type"] != "next":
                self.ends[json.dumps(frame["payload"])] += 1
                return
            self._take(frame["payload"]["data"][self.field])

    def _take(self, message: dict[str, Any]) -> None:
        self.messages.append(message)
        self._cursors.append(message["cursor"])
        if len(self._cursors) > LATE:
            self.cursor = self._cursors.popleft()


@contextmanager
def following(follower: Follower) -> Iterator[Follower]:
    """Run it in a thread."""
    thread = threading.Thread(target=follower.run, daemon=True)
    thread.start()
    try:
        yield follower
    finally:
        follower.stop()
        thread.join(20)
        assert not thread.is_alive()
