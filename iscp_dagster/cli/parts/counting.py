"""Counts of what a command lists, and how much of it is shown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated

import typer

from iscp_dagster.cli.parts.sanitizing import to_one_line
from iscp_dagster.cli.parts.tables import print_line

ROWS = 100
"""The most rows that a command shows by default."""

Limit = Annotated[
    int | None,
    typer.Option(
        min=1, help=f"The most rows to show; default: {ROWS}, with --json all.", show_default=False
    ),
]


def count_nouns(number: int, noun: str) -> str:
    """A number with its noun: `1 job`, `1,920 jobs`, `2 deliveries`."""
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


def print_counts(number: int, noun: str, parts: Mapping[str, int], beside: str = "") -> None:
    """Print how many there are, and the parts that are not 0: `12 jobs: 3 error, 9 completed`.

    `beside` says what is listed but not counted.
    """
    text = join_counts(parts)
    suffix = f"; {beside}" if beside else ""
    print_line(f"{count_nouns(number, noun)}{f': {text}' if text else ''}{suffix}")


def join_counts(parts: Mapping[str, int]) -> str:
    """The parts that are not 0, as `3 error, 9 completed`."""
    return ", ".join(f"{number:,} {to_one_line(name)}" for name, number in parts.items() if number)


def count_labels(labels: Iterable[str], order: Iterable[str]) -> dict[str, int]:
    """How often each label of `order` occurs, in that order."""
    occurrences = list(labels)
    return {name: occurrences.count(name) for name in order}


def print_rest(shown: int, number: int, options: str) -> None:
    """If not all rows are shown, name the options that select them."""
    if shown < number:
        print_line(f"{shown:,} of {number:,} are shown; see --limit, {options}.")
