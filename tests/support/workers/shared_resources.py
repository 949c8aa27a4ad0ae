"""Resources that the worker processes of pytest-xdist share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from fcntl import LOCK_EX, LOCK_NB, LOCK_SH, LOCK_UN, flock
from pathlib import Path
from typing import IO


@contextmanager
def one_for_all(folder: Path, start: Callable[[], AbstractContextManager[str]]) -> Iterator[str]:
    """Start once for all processes, and give each of them the text of `start()`.

    The first process ends it, once no other process uses it.
    """
    with (folder / "turn").open("a") as turn, (folder / "users").open("a+") as users:
        flock(turn, LOCK_EX)
        if not _alone(users):
            flock(users, LOCK_SH)
            flock(turn, LOCK_UN)
            yield (folder / "told").read_text()
            return
        with start() as text:
            (folder / "told").write_text(text)
            flock(users, LOCK_SH)
            flock(turn, LOCK_UN)
            yield text
            # From here on no other process gets it.
            flock(turn, LOCK_EX)
            flock(users, LOCK_EX)


def _alone(users: IO[str]) -> bool:
    try:
        flock(users, LOCK_EX | LOCK_NB)
    except BlockingIOError:
        return False
    return True
