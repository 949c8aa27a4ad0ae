"""What the workers of pytest-xdist have in common, though each is a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from fcntl import LOCK_EX, LOCK_NB, LOCK_SH, LOCK_UN, flock
from pathlib import Path
from typing import IO


@contextmanager
def one_for_all(folder: Path, start: Callable[[], AbstractContextManager[str]]) -> Iterator[str]:
    """What `start()` gave to whoever came first, in any process.

    Whoever came first ends it, once nobody else has it.
    """
    with (folder / "turn").open("a") as turn, (folder / "users").open("a+") as users:
        flock(turn, LOCK_EX)
        if not _alone(users):
            flock(users, LOCK_SH)
            flock(turn, LOCK_UN)
            yield (folder / "told").read_text()
            return
        with start() as told:
            (folder / "told").write_text(told)
            flock(users, LOCK_SH)
            flock(turn, LOCK_UN)
            yield told
            # From now on nobody else gets it.
            flock(turn, LOCK_EX)
            flock(users, LOCK_EX)


def _alone(users: IO[str]) -> bool:
    try:
        flock(users, LOCK_EX | LOCK_NB)
    except BlockingIOError:
        return False
    return True
