"""Invocations that must end the same with faults, and repeat no effect after its ack."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from support.peers.fault_plans import Invocation, Plan
from support.peers.protocol_peer import Peer

JOURNEY = {
    "runs": ["run 0", "run 1"],
    "state": [None, ["other", "total"], [1, None], None],
    "heard": ["hello you", {"got": 42}],
}
JOURNEY_ENTRIES = 17
"""Input to Output; the same with both SDKs."""
ERRAND_ENTRIES = 14
NAMES = [f"n{number}" for number in range(6)]
NEW = itertools.count()


def once_after_ack(lines: Iterable[str]) -> dict[str, int]:
    """Return how often each effect happened; none may happen after its Run was acknowledged.

    A handler notes `past N` once the Run that notes `run N` is acknowledged.
    """
    effects: dict[str, int] = {}
    past: set[str] = set()
    for line in lines:
        kind, number = line.split()
        if kind == "past":
            past.add(number)
        else:
            assert number not in past, f"the effect {line} happened after its acknowledgement"
            effects[line] = effects.get(line, 0) + 1
    return effects


async def drive_journey(peer: Peer, folder: Path, plan: Plan) -> Invocation:
    """Drive the handler that makes entries of many kinds."""
    number = next(NEW)
    file = folder / f"journey {number}"
    invocation = peer.begin("Counter", "journey", str(file), key=f"j{number}", plan=plan)
    assert await peer.result(invocation) == JOURNEY
    effects = once_after_ack(file.read_text().splitlines())
    assert effects.keys() == {"run 0", "run 1"}, effects
    return invocation


async def drive_many(peer: Peer, folder: Path, plan: Plan) -> Invocation:
    """Drive the handler that issues its calls at once and then awaits each."""
    invocation = peer.begin("Steps", "many", NAMES, plan=plan)
    assert await peer.result(invocation) == [f"hello {name}" for name in NAMES]
    return invocation


async def drive_errand(peer: Peer, _: Path, plan: Plan) -> Invocation:
    """Drive the handler that makes the entries of version 3."""
    name = f"e{next(NEW)}"
    invocation = peer.begin("Newer", "errand", name, plan=plan)
    assert await peer.result(invocation) == done_errand(name)
    return invocation


PARALLEL = ["run 0", "run 1", "run 2", "hello you", "run 3", None, "again"]
PARALLEL_ENTRIES = 10


async def drive_parallel(peer: Peer, folder: Path, plan: Plan) -> Invocation:
    """Drive the handler that runs several things at once."""
    file = folder / f"parallel {next(NEW)}"
    invocation = peer.begin("Newer", "parallel", str(file), plan=plan)
    assert await peer.result(invocation) == PARALLEL
    effects = once_after_ack(file.read_text().splitlines())
    assert len(effects) == 4, effects
    return invocation


def done_errand(name: str) -> dict[str, Any]:
    """Return the output of the handler that makes the entries of version 3."""
    return {"greetings": [f"hello {name}"] * 5, "canceled": ["not yet", 409], "picked": "soon"}


def cut_everywhere(entries: int, *, stored: bool) -> Plan:
    """Break the stream off once after each entry, which is stored or lost."""
    return Plan(cuts=dict.fromkeys(range(1, entries), stored))


def _some(most: int) -> Any:
    return st.frozensets(st.integers(1, most), max_size=4)


def plans(entries: int) -> Any:
    """Any plan for an invocation of so many entries that does not await in between."""
    return st.builds(
        Plan,
        cuts=st.dictionaries(st.integers(1, entries - 1), st.booleans(), max_size=4),
        lost=_some(entries - 1),
        twice=_some(entries - 1),
        piece=st.sampled_from((0, 7, 64)),
        eager=st.sampled_from((None, lambda _: True, lambda key: key == b"total")),
    )


def orders(entries: int) -> Any:
    """Any order in which the calls of `many` may end, with faults."""
    indexes = st.permutations(range(1, entries)).map(tuple)
    return st.builds(
        lambda plan, order: Plan(**{**vars(plan), "order": order}), plans(entries), indexes
    )
