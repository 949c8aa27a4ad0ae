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
from iscp_dagster.upkeep.dead_letters import ReplayOutcome

_REASON = 72
"""Characters of a reason that a terminal shows in a list."""
_HEAD = 8
"""Characters of an id that distinguish it from others."""


def print_letters(
    letters: Sequence[DeadLetter], *, as_json: bool, limit: int | None = None
) -> None:
    """Print how many letters each index has, then one line per letter."""
    if as_json:
        write([_describe_letter(letter) for letter in letters[:limit]])
        return
    counts = Counter(letter.index for letter in letters)
    print_counts(len(letters), "dead letter", {f"of {name}": n for name, n in counts.items()})
    rows = [_build_row(letter) for letter in letters[: limit or ROWS]]
    heads = ("id", "index\ntenant", "version\ncode", "reason")
    print_listing(Listing(heads=heads, rows=rows, unwrapped=(heads[0], heads[2]), spreads=True))
    print_rest(len(rows), len(letters), "--index, --tenant")


def _build_row(letter: DeadLetter) -> tuple[Cell, ...]:
    reason = letter.reason.removeprefix(f"{letter.index}: ")
    reason = f"deleted; {reason}" if letter.deleted else reason
    place = (letter.index, letter.tenant)
    return (
        letter.id[:_HEAD],
        place,
        (str(letter.version), str(letter.code)),
        _truncate_reason(reason),
    )


def print_letter_facts(letters: Sequence[DeadLetter], *, as_json: bool) -> None:
    """Print one line per fact."""
    if as_json:
        write([_describe_letter(letter) for letter in letters])
        return
    for letter in letters:
        print_facts({name: str(value) for name, value in _describe_letter(letter).items()})


def print_replay_results(results: Sequence[ReplayOutcome], *, as_json: bool) -> None:
    """Print what became of each letter."""
    if as_json:
        write([_describe_replay(result) for result in results])
        return
    for result in results:
        reason = "" if result.error is None else f": {result.error}"
        line(f"{result.letter.id[:_HEAD]}: {_OUTCOME_TEXTS[_get_outcome(result)]}{reason}")
    remaining = sum(result.error is not None for result in results)
    line(f"{len(results) - remaining:,} replayed, {remaining:,} stay")


def print_drop_count(letters: Sequence[DeadLetter], *, as_json: bool) -> None:
    """Print how many letters were dropped."""
    text = f"{count_nouns(len(letters), 'dead letter')} dropped"
    print_result([letter.id for letter in letters], text, as_json=as_json)


_OUTCOME_TEXTS = {
    "refused": "refused again",
    "rebuild": "the tenant will be rebuilt",
    "dropped": "dropped: its row is deleted or has a later letter",
    "written": "written",
}


def _get_outcome(result: ReplayOutcome) -> str:
    if result.error is not None:
        return "refused"
    if result.rebuilt:
        return "rebuild"
    return "dropped" if result.superseded else "written"


def _describe_replay(result: ReplayOutcome) -> dict[str, Any]:
    error = result.error
    return {
        "id": result.letter.id,
        "outcome": _get_outcome(result),
        "code": None if error is None else error.code,
        "message": None if error is None else str(error),
    }


def _describe_letter(letter: DeadLetter) -> dict[str, Any]:
    times = {"timestamp": letter.timestamp.isoformat(), "at": letter.at.isoformat()}
    # Too large for the integers of many JSON readers.
    return asdict(letter) | times | {"registration": str(letter.registration)}


def _truncate_reason(reason: str) -> str:
    """The reason, shortened on a terminal; `iscp dlq show` prints all of it."""
    return textwrap.shorten(reason, _REASON, placeholder="...") if is_terminal() else reason
