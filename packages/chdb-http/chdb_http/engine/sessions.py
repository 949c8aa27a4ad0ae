"""Connections that outlive a request: one named session each, for one request at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from chdb_http.sql.errors import Code, EngineError

if TYPE_CHECKING:
    from asyncio import TimerHandle
    from collections.abc import Callable

    from chdb_http.engine.engine import Connection
    from chdb_http.engine.options import SessionRequest


@dataclass(kw_only=True)
class _Session:
    connection: Connection | None = None
    busy: bool = True
    timer: TimerHandle | None = None


class Sessions:
    """Named sessions; used from the event loop's thread only.

    `later(seconds, call)` schedules the end of an idle session.
    """

    def __init__(self, later: Callable[[float, Callable[[], None]], TimerHandle]) -> None:
        self._later = later
        self._sessions: dict[str, _Session] = {}

    def acquire(self, requested: SessionRequest) -> Connection | None:
        """Take the session; None for a new one, which gets its connection from `release`.

        Raises `EngineError` 373 while another request has it, and 372 if session_check finds
        none.
        """
        name = requested.session_id
        session = self._sessions.get(name)
        if session is None:
            if requested.must_exist:
                raise EngineError(Code.SESSION_NOT_FOUND, f"Session {name} not found")
            self._sessions[name] = _Session()
            return None
        if session.busy:
            raise EngineError(
                Code.SESSION_IS_LOCKED, f"Session {name} is locked by a concurrent client"
            )
        session.busy = True
        if session.timer is not None:
            session.timer.cancel()
        return session.connection

    def get_idle_connection(self, name: str) -> Connection | None:
        """The connection of a session that nobody uses now."""
        session = self._sessions.get(name)
        return None if session is None or session.busy else session.connection

    def release(self, requested: SessionRequest, connection: Connection | None) -> None:
        """Give the session back; it ends after its timeout, or now when it has no connection."""
        session = self._sessions[requested.session_id]
        session.connection, session.busy = connection, False
        if connection is None or requested.close:
            self._end_session(requested.session_id)
        else:
            session.timer = self._later(
                requested.seconds, lambda: self._end_session(requested.session_id)
            )

    def _end_session(self, name: str) -> None:
        session = self._sessions.pop(name)
        if session.connection is not None:
            session.connection.close()

    def close(self) -> None:
        """End the idle sessions."""
        for name in [name for name, session in self._sessions.items() if not session.busy]:
            timer = self._sessions[name].timer
            if timer is not None:
                timer.cancel()
            self._end_session(name)
