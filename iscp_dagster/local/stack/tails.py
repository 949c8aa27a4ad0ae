"""`iscp logs`: prints the last lines of the services' log files, and new ones as they come."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from iscp_dagster.local.services import logs
from iscp_dagster.model.errors import ConfigError

_POLL = 0.2


def find_log_files(folder: Path, only: Collection[str]) -> dict[str, Path]:
    """The log files by name, all or `only` some. Raises ConfigError for an unknown name."""
    files = {path.stem: path for path in sorted(folder.glob("*.log"))}
    unknown = [name for name in only if name not in files]
    if unknown:
        hint = f"there are: {', '.join(files)}" if files else "there are none yet"
        raise ConfigError(f"There is no log {', '.join(unknown)} in {folder}; {hint}.")
    return {name: path for name, path in files.items() if not only or name in only}


def show(
    files: dict[str, Path],
    lines: int,
    write: Callable[[str], None],
    *,
    follow: bool,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Print the last `lines` of each log, under its name if there are several.

    With `follow`, keep printing new lines for ever.
    """
    offsets = {path: logs.size(path) for path in files.values()}
    for name, path in files.items():
        if len(files) > 1:
            write(f"== {name}: {path}")
        if lines and (text := logs.read_tail(path, lines)):
            write(text)
    while follow:
        sleep(_POLL)
        for name, path in files.items():
            for line in _read_added_lines(path, offsets):
                write(f"{name}: {line}" if len(files) > 1 else line)


def _read_added_lines(path: Path, offsets: dict[Path, int]) -> Iterator[str]:
    """Whole lines added since the last call; all of them if the log was rotated meanwhile."""
    if logs.size(path) < offsets[path]:
        offsets[path] = 0
    if logs.size(path) == offsets[path]:
        return
    with path.open("rb") as file:
        file.seek(offsets[path])
        data = file.read().rpartition(b"\n")[0]
    if data:
        offsets[path] += len(data) + 1
        yield from data.decode("utf-8", "replace").splitlines()
