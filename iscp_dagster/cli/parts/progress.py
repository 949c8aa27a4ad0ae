"""Progress on stderr; stdout is for results."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console

from iscp_dagster.cli.parts.plain import cell, plain

FRAMES_A_SECOND = 2
"""Of the spinner: more of them take processor time."""


@contextmanager
def telling(
    console: Console,
    *,
    seconds: float | None = None,
    monotonic: Callable[[], float] = time.monotonic,
) -> Iterator[Callable[[str], None]]:
    """Show the latest text beside a spinner, and erase it at the end.

    Where stderr is no terminal, print a line when the text has changed and `seconds` have gone by
    since the last one, or since the start; with None, print nothing.
    """
    if not console.is_terminal:
        yield _untold if seconds is None else Lines(console, seconds, monotonic)
        return
    with console.status("", refresh_per_second=FRAMES_A_SECOND) as shown:
        yield lambda text: shown.update(cell(text))


@dataclass
class Lines:
    """Prints a text now and then."""

    console: Console
    seconds: float
    monotonic: Callable[[], float]
    _last: str = ""
    _at: float = field(init=False)

    def __post_init__(self) -> None:
        self._at = self.monotonic()

    def __call__(self, text: str) -> None:
        """Print the text if it is new, and not too soon."""
        if text != self._last and self.monotonic() - self._at >= self.seconds:
            self.console.print(plain(text), markup=False, highlight=False, soft_wrap=True)
            self._last, self._at = text, self.monotonic()


def _untold(_: str) -> None:
    """Nobody watches."""
