"""Tables as commands print them: facts one below the other, and rows under heads.

A terminal gets a table that fits its width. Any other stdout gets one line a row, however long:
nothing is wrapped, folded or cut, and tabs separate the columns.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from rich.console import Console
from rich.table import Table

from iscp_dagster.cli.parts.sanitizing import (
    escape_cell,
    escape_control_chars,
    escape_word,
    to_one_line,
)

_UNBOUNDED = 10_000

Cell = str | tuple[str, ...]
"""A text, or several, one below the other on a terminal."""


@dataclass(frozen=True, kw_only=True)
class Listing:
    """Rows under heads; a head of several lines has cells of as many texts, which may be empty."""

    heads: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    numbers: Collection[str] = ()
    """The heads of columns that are aligned at the right."""
    unwrapped: Collection[str] = ()
    """The heads of columns that a narrow terminal does not fold."""
    styles: Mapping[str, str] = field(default_factory=dict)
    """Colours of cells with these texts."""
    spreads: bool = False
    """Whether a terminal that is wide enough gets a column for each text."""


def is_terminal() -> bool:
    """Whether stdout is a terminal."""
    return sys.stdout.isatty()


def format_time(at: datetime | None, form: str) -> str:
    """Return the time in that form of `strftime`; empty if there is none."""
    return "" if at is None else at.strftime(form)


def print_facts(facts: Mapping[str, str]) -> None:
    """Print names and values, a line each; a value of several lines is printed as it is."""
    if not is_terminal():
        width = max(map(len, facts), default=0)
        for name, value in facts.items():
            print_line(f"{name:{width}} {value}".rstrip())
        return
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts.items():
        table.add_row(name, escape_cell(value))
    Console(highlight=False).print(table)


def print_line(text: str) -> None:
    """Print a line without wrapping or markup."""
    Console(soft_wrap=True, highlight=False).print(escape_control_chars(text), markup=False)


def print_listing(listing: Listing, nothing: str = "") -> None:
    """Print the listing, or `nothing` if it has no rows."""
    if not listing.rows:
        if nothing:
            print_line(nothing)
    elif is_terminal():
        spread = _split_columns(listing) if listing.spreads else listing
        Console(highlight=False).print(build_table(spread if can_fit(spread) else listing))
    else:
        print_lines(listing)


def can_fit(listing: Listing) -> bool:
    """Whether the terminal is as wide as the widest row."""
    console = Console(highlight=False)
    unbounded = console.options.update(max_width=_UNBOUNDED)
    return console.measure(build_table(listing), options=unbounded).maximum <= console.width


def _split_columns(listing: Listing) -> Listing:
    """The listing with a column, and a cell, for each text."""
    spans = [head.split("\n") for head in listing.heads]
    heads = {head: head.split("\n") for head in listing.heads}
    return replace(
        listing,
        heads=[name for names in heads.values() for name in names],
        rows=[_flatten_row(row, spans) for row in listing.rows],
        numbers=[name for head in listing.numbers for name in heads.get(head, ())],
        unwrapped=[name for head in listing.unwrapped for name in heads.get(head, ())],
    )


def build_table(listing: Listing) -> Table:
    """The listing as a terminal shows it; heads are aligned at the bottom."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    lines = max(head.count("\n") for head in listing.heads)
    for head in listing.heads:
        table.add_column(
            head + "\n" * (lines - head.count("\n")),
            overflow="fold",
            no_wrap=head in listing.unwrapped,
            justify="right" if head in listing.numbers else "left",
        )
    for row in listing.rows:
        table.add_row(*(_apply_style(listing, cell) for cell in row))
    return table


def print_lines(listing: Listing) -> None:
    """Print one line a row, with tabs between columns; a head of two lines makes two columns."""
    spread = _split_columns(listing)
    for line in (spread.heads, *spread.rows):
        print("\t".join(map(to_one_line, map(str, line))))  # noqa: T201


def _flatten_row(row: Sequence[Cell], spans: Sequence[Sequence[str]]) -> list[str]:
    """A cell for each column; more texts than columns become one."""
    flat: list[str] = []
    for cell, span in zip(row, spans, strict=True):
        texts = [cell] if isinstance(cell, str) else list(cell)
        texts = texts if len(texts) <= len(span) else [" ".join(filter(None, texts))]
        flat += texts + [""] * (len(span) - len(texts))
    return flat


def _apply_style(listing: Listing, cell: Cell) -> str:
    if not isinstance(cell, str):
        return "\n".join(map(escape_word, cell))
    style = listing.styles.get(cell)
    return f"[{style}]{cell}[/]" if style else escape_word(cell)
