"""Progress on stderr; stdout is for results."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console

from iscp_dagster.cli.parts.sanitizing import escape_cell, escape_control_chars

FRAMES_A_SECOND = 2
"""Of the spinner; more would take processor time."""


@contextmanager
def show_progress(
    console: Console,
    *,
    seconds: float | None = None,
    monotonic: Callable[[], float] = time.monotonic,
) -> Iterator[Callable[[str], None]]:
    """Show the latest text beside a spinner, and erase it at the end.

    If stderr is not a terminal, print a line when the text has changed and `seconds` have passed
    since the last one, or since the start; with None, print nothing.
    """
    if not console.is_terminal:
        yield _ignore_text if seconds is None else ProgressLines(console, seconds, monotonic)
        return
    with console.status("", refresh_per_second=FRAMES_A_SECOND) as status:
        yield lambda text: status.update(escape_cell(text))


@dataclass
class ProgressLines:
    """Prints a text now and then."""

    console: Console
    seconds: float
    monotonic: Callable[[], float]
    _last_text: str = ""
    _printed_at: float = field(init=False)

    def __post_init__(self) -> None:
        self._printed_at = self.monotonic()

    def __call__(self, text: str) -> None:
        """Print the text if it is new, and not too soon."""
        if text != self._last_text and self.monotonic() - self._printed_at >= self.seconds:
            self.console.print(
                escape_control_chars(text), markup=False, highlight=False, soft_wrap=True
            )
            self._last_text, self._printed_at = text, self.monotonic()


def _ignore_text(_: str) -> None:
    """Nobody watches."""
