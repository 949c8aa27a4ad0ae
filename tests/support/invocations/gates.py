"""Points at which a process stops until a test lets it continue."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

SECONDS = 60.0
PAUSE = 0.005


def _await_file(file: Path) -> None:
    end = time.monotonic() + SECONDS
    while not file.exists():
        assert time.monotonic() < end, f"{file} did not come"
        time.sleep(PAUSE)


@dataclass(frozen=True)
class Gates:
    """Named points, kept as files of a folder that both sides know."""

    folder: Path

    def arm(self, point: str) -> None:
        """Have the next process that comes to the point stop there."""
        (self.folder / f"go {point}").unlink(missing_ok=True)
        (self.folder / f"stop {point}").touch()

    def pass_point(self, point: str) -> None:
        """Continue, unless a test armed the point: then once it opens it."""
        file = self.folder / f"{os.getpid()} {point}"
        try:
            # One process alone is stopped, whichever comes first.
            (self.folder / f"stop {point}").rename(file)
        except FileNotFoundError:
            return
        file.write_text(str(os.getpid()))
        file.rename(self.folder / f"at {point}")
        _await_file(self.folder / f"go {point}")

    def await_process(self, point: str) -> int:
        """Wait until a process is at the point; return its id."""
        file = self.folder / f"at {point}"
        _await_file(file)
        pid = int(file.read_text())
        file.unlink()
        return pid

    def open(self, point: str) -> None:
        """Let the process at the point continue."""
        (self.folder / f"go {point}").touch()
