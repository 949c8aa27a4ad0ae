"""Batches delivered at least once end up with each row stored once, by the decision table."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from iscp_dagster.model.batch import BatchAction, BatchRecord, BatchStep, Phase, Range, decide
from iscp_dagster.model.moment import Moment


class Crash(BaseException):
    """The writer died."""


class Sink:
    """A table that remembers tokens and the state of the last batch; its writer may die."""

    def __init__(self, chance: random.Random, crash_rate: float):
        self.chance, self.crash_rate = chance, crash_rate
        self.rows: Counter[int] = Counter()
        self.tokens: set[tuple[Range, int, int]] = set()
        self.record: BatchRecord | None = None
        self.dead_letters: set[int] = set()
        self.crashes = 0

    def get_confirmed(self) -> int:
        """Return the latest point from which a source may deliver."""
        if self.record is None:
            return 0
        latest = self.record.range
        return latest.to.version if self.record.phase is Phase.AFTER else latest.from_.version

    def crash_at_random(self) -> None:
        if self.chance.random() < self.crash_rate:
            self.crashes += 1
            raise Crash

    def deliver(self, incoming: Range) -> None:
        for step in decide(self.record, incoming).steps:
            if step.action in {BatchAction.INSERT, BatchAction.REPLAY}:
                self.write(step)
            elif step.action is BatchAction.DEAD_LETTER:
                self.dead_letters |= set(list_versions(step.range))
            else:
                assert step.action is BatchAction.SKIP, step

    def write(self, step: BatchStep) -> None:
        layout = step.layout or {"chunk": self.chance.randint(1, 4)}
        self.crash_at_random()
        self.record = BatchRecord(range=step.range, phase=Phase.BEFORE, layout=layout)
        rows = list(list_versions(step.range))
        for start in range(0, len(rows), layout["chunk"]):
            self.crash_at_random()
            chunk = rows[start : start + layout["chunk"]]
            token = (step.range, start, layout["chunk"])
            if token not in self.tokens:
                self.tokens.add(token)
                self.rows.update(chunk)
        self.crash_at_random()
        self.record = BatchRecord(range=step.range, phase=Phase.AFTER, layout=layout)
        self.crash_at_random()


def make_range(start: int, end: int) -> Range:
    return Range(from_=Moment(start), to=Moment(end))


def list_versions(range_: Range) -> range:
    return range(range_.from_.version + 1, range_.to.version + 1)


def deliver_all(seed: int, batches: int) -> Sink:
    """Deliver batches that begin at the latest point or a little before, and end anywhere later."""
    chance = random.Random(seed)
    sink, written = Sink(chance, crash_rate=0.1), 0
    for _ in range(batches):
        written += chance.randint(0, 4)
        start = max(sink.get_confirmed() - chance.choice([0, 0, 0, 1, 3]), 0)
        if start < written:
            end = chance.choice([written, chance.randint(start + 1, written)])
            deliver_one(sink, make_range(start, end))
    sink.crash_rate = 0.0
    if sink.get_confirmed() < written:
        deliver_one(sink, make_range(sink.get_confirmed(), written))
    assert sink.rows == Counter(range(1, written + 1))
    return sink


def deliver_one(sink: Sink, incoming: Range) -> None:
    """Deliver a batch; a source never delivers one that ends before the record begins."""
    record = sink.record
    if record is not None and incoming.to.version <= record.range.from_.version:
        return
    try:
        sink.deliver(incoming)
    except Crash:
        return


def test_each_row_of_ten_thousand_small_batches_with_crashes_is_stored_once():
    sinks = [deliver_all(seed, 1_000) for seed in range(10)]
    assert sum(sink.crashes for sink in sinks) > 1_000
    # Some rows were also set aside: they came again with the replay of their batch.
    assert any(sink.dead_letters for sink in sinks)


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_soak_of_half_a_million_batches():
    assert deliver_all(seed=7_919, batches=500_000).crashes > 50_000
