"""Where a run server is: its socket, and beside it a lock that it and its runs hold."""

from __future__ import annotations

import fcntl
import os
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from iscp_dagster.model.errors import UnavailableError

if TYPE_CHECKING:
    from dagster import DagsterRun

SERVER_TAG = ".dagster/iscp_run_server"
"""Says which server has a run, see `RunServerAddress.from_run`; the UI hides such tags."""
LOCK_SECONDS = 20.0
"""How long a server waits for an earlier one at its place, and for that one's runs, to end."""


@dataclass(frozen=True, kw_only=True)
class RunServerAddress:
    """A server's socket, and a name that lasts from one server there to the next.

    The same path may lead elsewhere on another machine or in another container; the name does not.
    """

    socket: str
    name: str

    @classmethod
    def from_socket(cls, socket: str) -> RunServerAddress:
        """The place of the socket. Raises FileNotFoundError if no server has ever been there."""
        return cls(socket=socket, name=_get_lock_path(socket).read_text())

    @classmethod
    def from_run(cls, run: DagsterRun) -> RunServerAddress | None:
        """The place of the server that has the run; None if a code server has it, or nobody yet.

        Dagster copies tags to a run that repeats another, so the tag counts only with the run's id.
        """
        run_id, _, rest = run.tags.get(SERVER_TAG, "").partition(" ")
        name, _, socket = rest.partition(" ")
        return cls(socket=socket, name=name) if run_id == run.run_id else None

    def build_tags(self, run_id: str) -> dict[str, str]:
        """The tag of a run that the server here will start."""
        return {SERVER_TAG: f"{run_id} {self.name} {self.socket}"}

    @property
    def is_here(self) -> bool:
        """Whether this process sees the same place under the socket's path."""
        with suppress(OSError):
            return RunServerAddress.from_socket(self.socket) == self
        return False

    @property
    def is_deserted(self) -> bool:
        """Whether neither a server nor any of its runs lives; False if that is unknown."""
        with suppress(OSError), _get_lock_path(self.socket).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return lock.read() == self.name
        return False


def lock_address(socket: str) -> RunServerAddress:
    """Take the place for as long as this process, or a fork of it, lives.

    Waits for an earlier server and its runs to end. Raises UnavailableError if they do not.
    """
    path = _get_lock_path(socket)
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    until = time.monotonic() + LOCK_SECONDS
    while not _try_lock(lock):
        if time.monotonic() > until:
            os.close(lock)
            raise UnavailableError(
                f"Another run server, or a run of it, still uses {socket} (it holds {path}). End "
                "it, or give this one another socket."
            )
        time.sleep(0.05)
    if not os.fstat(lock).st_size:
        os.write(lock, secrets.token_hex(8).encode())
    return RunServerAddress(socket=socket, name=os.pread(lock, 64, 0).decode())


def _try_lock(lock: int) -> bool:
    with suppress(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def _get_lock_path(socket: str) -> Path:
    return Path(f"{socket}.lock")
