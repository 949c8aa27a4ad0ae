"""What `iscp dlq` prints."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from iscp_dagster.cli.jobs.json import write
from iscp_dagster.cli.jobs.show import line
from iscp_dagster.cli.parts.counting import ROWS, count_nouns, print_counts, print_rest
from iscp_dagster.cli.parts.results import print_result
from iscp_dagster.cli.parts.tables import Cell, Listing, is_terminal, print_facts, print_listing
from iscp_dagster.clickhouse.write.letters import DeadLetter
from iscp_dagster.upkeep.dead_letters import Replayed

_REASON = 72
"""Characters of a reason that a terminal shows in a list."""
_HEAD = 8
"""Characters of an id that are enough to tell it from others."""


def letters(found: Sequence[DeadLetter], *, as_json: bool, limit: int | None = None) -> None:
    """Print how many letters each index has, then one line per letter."""
    if as_json:
        write([_json(each) for each in found[:limit]])
        return
    counts = Counter(each.index for each in found)
    print_counts(len(found), "dead letter", {f"of {name}": n for name, n in counts.items()})
    rows = [_row(each) for each in found[: limit or ROWS]]
    heads = ("id", "index\ntenant", "version\ncode", "reason")
    print_listing(Listing(heads=heads, rows=rows, unwrapped=(heads[0], heads[2]), spreads=True))
    print_rest(len(rows), len(found), "--index, --tenant")


def _row(each: DeadLetter) -> tuple[Cell, ...]:
    reason = each.reason.removeprefix(f"{each.index}: ")
    reason = f"deleted; {reason}" if each.deleted else reason
    of = (each.index, each.tenant)
    return each.id[:_HEAD], of, (str(each.version), str(each.code)), _short(reason)


def whole(found: Sequence[DeadLetter], *, as_json: bool) -> None:
    """Print one line per fact."""
    if as_json:
        write([_json(each) for each in found])
        return
    for each in found:
        print_facts({name: str(value) for name, value in _json(each).items()})


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
    text = f"{count_nouns(len(found), 'dead letter')} dropped"
    print_result([each.id for each in found], text, as_json=as_json)


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
    """The reason; a terminal gets its beginning, and all of it from `iscp dlq show`."""
    return textwrap.shorten(reason, _REASON, placeholder="...") if is_terminal() else reason
