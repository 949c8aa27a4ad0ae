"""`iscp logs`: prints the last lines of the services' log files, and new ones as they come."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from iscp_dagster.local.services import logs
from iscp_dagster.model.errors import ConfigError

_POLL = 0.2


def files(folder: Path, only: Collection[str]) -> dict[str, Path]:
    """The log files by name, all or `only` some. Raises ConfigError for an unknown name."""
    found = {path.stem: path for path in sorted(folder.glob("*.log"))}
    unknown = [name for name in only if name not in found]
    if unknown:
        there = f"there are: {', '.join(found)}" if found else "there are none yet"
        raise ConfigError(f"There is no log {', '.join(unknown)} in {folder}; {there}.")
    return {name: path for name, path in found.items() if not only or name in only}


def show(
    found: dict[str, Path],
    lines: int,
    say: Callable[[str], None],
    *,
    follow: bool,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Print the last `lines` of each log, under its name if there are several.

    With `follow`, keep printing new lines for ever.
    """
    places = {path: logs.size(path) for path in found.values()}
    for name, path in found.items():
        if len(found) > 1:
            say(f"== {name}: {path}")
        if lines and (text := logs.tail(path, lines)):
            say(text)
    while follow:
        sleep(_POLL)
        for name, path in found.items():
            for line in _added(path, places):
                say(f"{name}: {line}" if len(found) > 1 else line)


def _added(path: Path, places: dict[Path, int]) -> Iterator[str]:
    """Whole lines added since the last call; all of them if the log was rotated meanwhile."""
    if logs.size(path) < places[path]:
        places[path] = 0
    if logs.size(path) == places[path]:
        return
    with path.open("rb") as file:
        file.seek(places[path])
        whole = file.read().rpartition(b"\n")[0]
    if whole:
        places[path] += len(whole) + 1
        yield from whole.decode("utf-8", "replace").splitlines()
