"""Two file locks that show, without process ids, whether a stack runs and whether it is gone."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_POLL = 0.05


class HomeLocks:
    """The locks of one home folder.

    `supervisor.lock` is held only by the supervisor: while it is, the stack is up or coming up.
    `processes.lock` is held by the supervisor and by the ward of every child: once it is free,
    no process of the stack is left, even if the supervisor was killed.
    """

    def __init__(self, home: Path) -> None:
        self._supervisor = home / "supervisor.lock"
        self._processes = home / "processes.lock"

    def is_supervised(self) -> bool:
        """Whether a supervisor runs."""
        return not _is_free(self._supervisor)

    def is_gone(self) -> bool:
        """Whether no process of the stack is left."""
        return _is_free(self._processes)

    def wait_gone(self, seconds: float) -> bool:
        """Wait until no process of the stack is left; False when some still is."""
        deadline = time.monotonic() + seconds
        while not self.is_gone():
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL)
        return True

    @contextmanager
    def hold(self, seconds: float) -> Iterator[int | None]:
        """Become the supervisor; yields the open `processes.lock`, which wards inherit.

        Yields None when another supervisor runs, or when an earlier one's children are not gone
        after `seconds`.
        """
        with _open_file(self._supervisor) as supervisor, _open_file(self._processes) as processes:
            deadline = time.monotonic() + seconds
            # `status` holds the lock for a moment while it looks.
            first = min(deadline, time.monotonic() + 1.0)
            locked = _lock_until(supervisor, first) and _lock_until(processes, deadline)
            yield processes if locked else None


def _is_free(path: Path) -> bool:
    if not path.exists():
        return True
    with _open_file(path) as file:
        return _try_lock(file, fcntl.LOCK_SH)


def _lock_until(file: int, deadline: float) -> bool:
    while not _try_lock(file, fcntl.LOCK_EX):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL)
    return True


def _try_lock(file: int, kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _open_file(path: Path) -> Iterator[int]:
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield file
    finally:
        os.close(file)
