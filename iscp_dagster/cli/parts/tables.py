"""Tables as commands print them: facts one below the other, and rows under heads."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.table import Table

from iscp_dagster.cli.parts.plain import cell


def print_facts(facts: Mapping[str, str]) -> None:
    """Print names and values, a line each."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts.items():
        table.add_row(name, cell(value))
    Console(highlight=False).print(table)


def table_of(*names: str) -> Table:
    """A table with these heads, whose lines are aligned at the bottom of theirs."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    lines = max(name.count("\n") for name in names)
    for name in names:
        table.add_column(name + "\n" * (lines - name.count("\n")), overflow="fold")
    return table


def print_table(table: Table) -> None:
    """Print the table if it has rows."""
    if table.row_count:
        Console(highlight=False).print(table)
