"""Batches delivered at least once end up with each row stored once, by the decision table."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from iscp_dagster.model.batch import (
    BatchAction,
    BatchRecord,
    BatchStep,
    Decision,
    Phase,
    Range,
    decide,
)
from iscp_dagster.model.moment import Moment
from support.paths import DOCS

PAGE = DOCS / "exactly-once.md"
SHOWN = {
    "none: no record": (4, 8),
    "same": (4, 8),
    "overlapping": (4, 11),
    "overlapping, begins inside": (5, 11),
    "contains": (5, 7),
    "new": (8, 11),
    "cropped: begins before": (2, 11),
    "invalid: lies before": (2, 4),
    "invalid, tolerated": (2, 4),
}
SEEN = ((Phase.BEFORE, True), (Phase.BEFORE, False), (Phase.AFTER, True))


def span(start: int, end: int) -> Range:
    return Range(from_=Moment(start), to=Moment(end))


def shown(decision: Decision) -> str:
    steps = [f"{step.action.value} {step.range}" for step in decision.steps]
    return "; ".join([f"crop {decision.cropped}"] * bool(decision.cropped) + steps)


def test_the_page_on_it_has_the_table_that_the_code_decides_by():
    lines = [
        "| case | incoming | after `BEFORE` | after `BEFORE` that is gone | after `AFTER` |",
        "|---|---|---|---|---|",
    ]
    for case, ends in SHOWN.items():
        told = [
            decide(
                None if case.startswith("none") else BatchRecord(range=span(4, 8), phase=phase),
                span(*ends),
                tolerate_state_mismatch=case.endswith("tolerated"),
                repeatable=repeatable,
            )
            for phase, repeatable in SEEN
        ]
        for decision in told:
            assert case.partition(":")[0].partition(",")[0] in {decision.case.value, "cropped"}
        lines.append(f"| {case} | {span(*ends)} | {' | '.join(map(shown, told))} |")
    assert "\n".join(lines) in PAGE.read_text(encoding="utf-8")


class Crash(BaseException):
    """The writer died."""


class Sink:
    """A table that remembers tokens and the state of the last batch; its writer may die."""

    def __init__(self, chance: random.Random, crashing: float):
        self.chance, self.crashing = chance, crashing
        self.rows: Counter[int] = Counter()
        self.tokens: set[tuple[int, int, int, int]] = set()
        self.record: BatchRecord | None = None
        self.aside: set[int] = set()
        self.crashes = 0

    def confirmed(self) -> int:
        """Return the latest point from which a source may deliver."""
        if self.record is None:
            return 0
        ends = self.record.range
        return ends.to.version if self.record.phase is Phase.AFTER else ends.from_.version

    def maybe_die(self) -> None:
        if self.chance.random() < self.crashing:
            self.crashes += 1
            raise Crash

    def deliver(self, incoming: Range) -> None:
        for step in decide(self.record, incoming).steps:
            if step.action in {BatchAction.INSERT, BatchAction.REPLAY}:
                self.write(step)
            elif step.action is BatchAction.DEAD_LETTER:
                self.aside |= set(versions(step.range))
            else:
                assert step.action is BatchAction.SKIP, step

    def write(self, step: BatchStep) -> None:
        layout = step.layout or {"chunk": self.chance.randint(1, 4)}
        self.maybe_die()
        self.record = BatchRecord(range=step.range, phase=Phase.BEFORE, layout=layout)
        held = list(versions(step.range))
        for start in range(0, len(held), layout["chunk"]):
            self.maybe_die()
            chunk = held[start : start + layout["chunk"]]
            token = (*ends(step.range), start, layout["chunk"])
            if token not in self.tokens:
                self.tokens.add(token)
                self.rows.update(chunk)
        self.maybe_die()
        self.record = BatchRecord(range=step.range, phase=Phase.AFTER, layout=layout)
        self.maybe_die()


def ends(range_: Range) -> tuple[int, int]:
    return range_.from_.version, range_.to.version


def versions(range_: Range) -> range:
    return range(range_.from_.version + 1, range_.to.version + 1)


def deliver_all(seed: int, batches: int) -> Sink:
    """Deliver batches that begin at the latest point or a little before, and end anywhere later."""
    chance = random.Random(seed)
    sink, written = Sink(chance, crashing=0.1), 0
    for _ in range(batches):
        written += chance.randint(0, 4)
        start = max(sink.confirmed() - chance.choice([0, 0, 0, 1, 3]), 0)
        if start < written:
            end = chance.choice([written, chance.randint(start + 1, written)])
            deliver(sink, span(start, end))
    sink.crashing = 0.0
    if sink.confirmed() < written:
        deliver(sink, span(sink.confirmed(), written))
    expected = Counter(dict.fromkeys(range(1, written + 1), 1))
    assert sink.rows == expected
    return sink


def deliver(sink: Sink, incoming: Range) -> None:
    """Deliver a batch; a source never delivers one that ends before the record begins."""
    record = sink.record
    if record is not None and incoming.to.version <= record.range.from_.version:
        return
    try:
        sink.deliver(incoming)
    except Crash:
        return


def test_ten_thousand_small_batches_with_crashes_are_there_once():
    sinks = [deliver_all(seed, 1_000) for seed in range(10)]
    assert sum(sink.crashes for sink in sinks) > 1_000
    # Some were also set aside: they came again with the replay of their batch.
    assert any(sink.aside for sink in sinks)


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_soak_of_half_a_million_batches():
    assert deliver_all(seed=7_919, batches=500_000).crashes > 50_000
