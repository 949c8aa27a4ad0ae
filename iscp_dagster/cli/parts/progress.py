"""Progress, shown only if stderr is a terminal; stdout is for results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

from iscp_dagster.cli.parts.plain import cell


@contextmanager
def telling(console: Console) -> Iterator[Callable[[str], None]]:
    """Show the latest text beside a spinner, and erase it at the end."""
    if not console.is_terminal:
        yield _untold
        return
    with console.status("") as shown:
        yield lambda text: shown.update(cell(text))


def _untold(_: str) -> None:
    """Nobody watches."""
