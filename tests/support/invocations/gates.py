"""Points at which a process stops until a test lets it continue."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

SECONDS = 60.0
PAUSE = 0.005


def _until_there(*files: Path) -> Path:
    """Wait until one of the files is there; the first that is."""
    until = time.monotonic() + SECONDS
    while True:
        found = next((file for file in files if file.exists()), None)
        if found is not None:
            return found
        assert time.monotonic() < until, f"none of {files} came"
        time.sleep(PAUSE)


@dataclass(frozen=True)
class Gates:
    """Named places, kept as files of a folder that both sides know."""

    folder: Path

    def arm(self, point: str) -> None:
        """Let the next process stop that comes to the point."""
        (self.folder / f"go {point}").unlink(missing_ok=True)
        (self.folder / f"stop {point}").touch()

    def pass_(self, point: str) -> None:
        """Go on, unless a test armed the point: then when it opens it."""
        at = self.folder / f"at {point}"
        try:
            # One process alone is stopped, whichever comes first.
            (self.folder / f"stop {point}").rename(self.folder / f"{os.getpid()} {point}")
        except FileNotFoundError:
            return
        written = self.folder / f"{os.getpid()} {point}"
        written.write_text(str(os.getpid()))
        written.rename(at)
        _until_there(self.folder / f"go {point}")

    def reached(self, point: str) -> int:
        """Wait until a process stands at the point; its id."""
        at = self.folder / f"at {point}"
        pid = int(_until_there(at).read_text())
        at.unlink()
        return pid

    def open(self, point: str) -> None:
        """Let whoever stands there go on."""
        (self.folder / f"go {point}").touch()
