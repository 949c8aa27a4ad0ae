"""A service that books rows in the file BOOKS, for a process that tests kill."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from durable_invocations import Context, Service, service_app

REST_SECONDS = 0.05
Row = tuple[str, int]
trades = Service("Trades")


def write(*words: Any) -> None:
    """Append a whole line, also while other processes write."""
    file = os.open(os.environ["BOOKS"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(file, (" ".join(map(str, words)) + "\n").encode())
    finally:
        os.close(file)


@trades.handler
async def booked(ctx: Context, batch: dict[str, Any]) -> int:
    """Book each row in a step; a sleep has the invocation suspended in between."""
    for row in batch["rows"]:
        words = batch["tenant"], row["id"], ctx.id
        await ctx.run(f"book {row['id']}", write, "books", *words)
        write("past", *words)
    await ctx.sleep(REST_SECONDS)
    return len(batch["rows"])


app = service_app(trades)


@dataclass
class Books:
    """The lines of the file: how often each row was booked, and by which invocations."""

    booked: Counter[Row] = field(default_factory=Counter)
    invocations: dict[Row, set[str]] = field(default_factory=dict)
    past: set[Row] = field(default_factory=set)
    """Rows whose step was acknowledged."""
    repeated: list[str] = field(default_factory=list)
    """Lines that book a row after its step was acknowledged."""


def books_of(lines: Iterable[str]) -> Books:
    """Read the lines of the file."""
    books = Books()
    for line in lines:
        kind, tenant, id_, invocation = line.split()
        row = tenant, int(id_)
        books.invocations.setdefault(row, set()).add(invocation)
        if kind == "past":
            books.past.add(row)
            continue
        books.booked[row] += 1
        if row in books.past:
            books.repeated.append(line)
    return books
