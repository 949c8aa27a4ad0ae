"""What is being done now, on a terminal's stderr alone: stdout is for what was found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

from iscp_dagster.cli.parts.plain import cell


@contextmanager
def telling(console: Console) -> Iterator[Callable[[str], None]]:
    """Shows the latest text that is told beside a spinner, and leaves nothing behind."""
    if not console.is_terminal:
        yield _untold
        return
    with console.status("") as shown:
        yield lambda text: shown.update(cell(text))


def _untold(_: str) -> None:
    """Nobody watches."""
