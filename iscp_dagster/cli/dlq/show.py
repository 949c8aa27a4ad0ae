"""What `iscp dlq` prints."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from iscp_dagster.cli.jobs.json import write
from iscp_dagster.cli.jobs.show import line
from iscp_dagster.cli.parts.plain import cell
from iscp_dagster.clickhouse.write.letters import DeadLetter
from iscp_dagster.upkeep.dead_letters import Replayed

_HEAD = 8
"""Characters of an id that are enough to tell it from others."""


def letters(found: Sequence[DeadLetter], *, as_json: bool) -> None:
    """Print one line per letter."""
    if as_json:
        write([_json(each) for each in found])
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("id", "index", "tenant", "version", "code", "reason"):
        table.add_column(name, overflow="fold", no_wrap=name == "id")
    for each in found:
        reason = f"deleted; {each.reason}" if each.deleted else each.reason
        values = (each.id[:_HEAD], each.index, each.tenant, str(each.version), str(each.code))
        table.add_row(*map(cell, (*values, _short(reason))))
    if found:
        Console(highlight=False).print(table)
    line(f"{len(found):,} dead letters")


def whole(found: Sequence[DeadLetter], *, as_json: bool) -> None:
    """Print one line per fact."""
    if as_json:
        write([_json(each) for each in found])
        return
    console = Console(highlight=False)
    for each in found:
        table = Table(box=None, pad_edge=False, show_header=False)
        table.add_column(style="bold", no_wrap=True)
        table.add_column(overflow="fold")
        for name, value in _json(each).items():
            table.add_row(name, cell(str(value)))
        console.print(table)


def replayed(done: Sequence[Replayed], *, as_json: bool) -> None:
    """Print what became of each letter."""
    if as_json:
        write([_replayed(each) for each in done])
        return
    for each in done:
        why = "" if each.error is None else f": {each.error}"
        line(f"{each.letter.id[:_HEAD]}: {_SAID[_outcome(each)]}{why}")
    left = sum(each.error is not None for each in done)
    line(f"{len(done) - left:,} replayed, {left:,} stay")


def dropped(found: Sequence[DeadLetter], *, as_json: bool) -> None:
    """Print how many letters were dropped."""
    if as_json:
        write([each.id for each in found])
    else:
        line(f"{len(found):,} dead letters dropped")


_SAID = {
    "refused": "refused again",
    "rebuild": "the tenant will be rebuilt",
    "dropped": "dropped: its row is deleted or has a later letter",
    "written": "written",
}


def _outcome(each: Replayed) -> str:
    if each.error is not None:
        return "refused"
    if each.rebuilt:
        return "rebuild"
    return "dropped" if each.superseded else "written"


def _replayed(each: Replayed) -> dict[str, Any]:
    error = each.error
    return {
        "id": each.letter.id,
        "outcome": _outcome(each),
        "code": None if error is None else error.code,
        "message": None if error is None else str(error),
    }


def _json(each: DeadLetter) -> dict[str, Any]:
    times = {"timestamp": each.timestamp.isoformat(), "at": each.at.isoformat()}
    # Too large for the integers of many JSON readers.
    return asdict(each) | times | {"registration": str(each.registration)}


def _short(reason: str) -> str:
    return textwrap.shorten(reason, 160, placeholder="...")
