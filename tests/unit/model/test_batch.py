"""The batch decision table: each case, as documented, properties of all ranges, and crashes."""

from __future__ import annotations

import random
from collections import Counter
from itertools import combinations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from iscp_dagster.model.batch import (
    BatchAction,
    BatchRecord,
    BatchStep,
    Case,
    Decision,
    Phase,
    Range,
    decide,
    plan_steps,
)
from iscp_dagster.model.errors import BatchError
from iscp_dagster.model.moment import Moment
from support.errors import raises_naming
from support.paths import DOCS, GOLDEN

PAGE = DOCS / "exactly-once.md"
TABLE = GOLDEN / "batch.txt"
HEAD = """\
# What becomes of an incoming range after the previous batch.
# Ranges are (from, to] in commit versions. "tolerant" is tolerate_state_mismatch, "gone" what was
# begun and cannot be read again.

"""
DOCUMENTED = {
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
DOCUMENTED_PHASES = ((Phase.BEFORE, True), (Phase.BEFORE, False), (Phase.AFTER, True))
PREVIOUS = (4, 8)
POINTS = (2, 4, 5, 7, 8, 9, 11)


def make_range(ends: tuple[int, int]) -> Range:
    return Range(from_=Moment(ends[0]), to=Moment(ends[1]))


def make_record(phase: Phase, ends: tuple[int, int] = PREVIOUS) -> BatchRecord:
    return BatchRecord(range=make_range(ends), phase=phase, layout={"stored": 1})


def list_steps(decision: Decision) -> str:
    steps = [f"{step.action.value} {step.range}" for step in decision.steps]
    return "; ".join([f"crop {decision.cropped}"] * bool(decision.cropped) + steps)


def describe(decision: Decision) -> str:
    return f"{decision.case.value:<12} {list_steps(decision)}"


def list_decisions() -> str:
    lines = [f"{'previous':<16} {'incoming':<9} {'case':<12} steps"]
    lines.append(f"{'none':<16} {'(4, 8]':<9} {describe(decide(None, make_range(PREVIOUS)))}")
    for phase in Phase:
        previous = make_record(phase)
        for ends in combinations(POINTS, 2):
            decision = decide(previous, make_range(ends))
            start = f"{phase.value + ' ' + str(previous.range):<16} {make_range(ends)!s:<9}"
            lines.append(f"{start} {describe(decision)}")
            if decision.case is Case.INVALID:
                tolerant = decide(previous, make_range(ends), tolerate_state_mismatch=True)
                lines.append(f"{start} {describe(tolerant)}, tolerant")
            gone = decide(previous, make_range(ends), repeatable=False)
            if gone != decision:
                lines.append(f"{start} {describe(gone)}, gone")
    return HEAD + "\n".join(lines) + "\n"


def test_the_decision_table():
    assert list_decisions() == TABLE.read_text()


def test_the_page_has_the_table_that_the_code_decides_by():
    lines = [
        "| case | incoming | after `BEFORE` | after `BEFORE` that is gone | after `AFTER` |",
        "|---|---|---|---|---|",
    ]
    for case, ends in DOCUMENTED.items():
        decisions, tolerated = [], case.endswith("tolerated")
        for phase, repeatable in DOCUMENTED_PHASES:
            record = None if case.startswith("none") else make_record(phase)
            options = {"tolerate_state_mismatch": tolerated, "repeatable": repeatable}
            decisions.append(decide(record, make_range(ends), **options))
        name = case.partition(":")[0].partition(",")[0]
        assert name == "cropped" or {each.case.value for each in decisions} == {name}
        lines.append(f"| {case} | {make_range(ends)} | {' | '.join(map(list_steps, decisions))} |")
    assert "\n".join(lines) in PAGE.read_text(encoding="utf-8")


def test_a_replay_keeps_the_stored_layout_and_an_insert_has_none_yet():
    decision = decide(make_record(Phase.BEFORE), make_range((4, 11)))
    assert [step.layout for step in decision.steps] == [{"stored": 1}, None]


def test_an_empty_range_is_refused():
    with raises_naming(BatchError, "(8, 8]"):
        make_range((8, 8))


ENDS = st.tuples(st.integers(0, 9), st.integers(0, 9)).filter(lambda pair: pair[0] < pair[1])


def list_versions(range_: Range) -> set[int]:
    return set(range(range_.from_.version + 1, range_.to.version + 1))


@given(previous=ENDS, incoming=ENDS, phase=st.sampled_from(Phase), repeatable=st.booleans())
def test_no_version_is_lost_or_doubled(previous, incoming, phase, repeatable):
    stored = make_record(phase, previous)
    decision = decide(stored, make_range(incoming), repeatable=repeatable)
    taken = [list_versions(step.range) for step in decision.steps]
    assert sum(map(len, taken)) == len(set().union(*taken))
    assert decision.steps == tuple(sorted(decision.steps, key=lambda s: s.range.from_.version))
    if decision.case is Case.INVALID:
        assert incoming[1] <= previous[0]
        return
    new = {v for v in list_versions(make_range(incoming)) if v > previous[1]}
    inserted = [s.range for s in decision.steps if s.action is BatchAction.INSERT]
    assert set().union(*map(list_versions, inserted)) == new
    replayed = [s.range for s in decision.steps if s.action is BatchAction.REPLAY]
    assert replayed in ([], [stored.range])
    assert repeatable or not replayed
    assert phase is Phase.BEFORE or not replayed


@given(
    previous=st.none() | ENDS, incoming=ENDS, phase=st.sampled_from(Phase), repeatable=st.booleans()
)
def test_a_claim_sets_aside_only_a_batch_that_cannot_be_repeated(
    previous, incoming, phase, repeatable
):
    stored = None if previous is None else make_record(phase, previous)
    assume(previous is None or previous[0] < incoming[1])
    case, steps = plan_steps(stored, make_range(incoming), {"new": 1}, repeatable=repeatable)
    assert all(step.layout is not None for step in steps)
    assert BatchAction.REJECT not in {step.action for step in steps}
    set_aside = [step.range for step in steps if step.action is BatchAction.DEAD_LETTER]
    assert set_aside in ([], [stored and stored.range])
    assert not (repeatable and set_aside)
    assert steps[-1].range.to.version >= incoming[1]
    assert case is not Case.INVALID


@pytest.mark.parametrize(
    ("tolerate", "action"), [(False, BatchAction.REJECT), (True, BatchAction.SKIP)]
)
def test_a_claim_before_its_record_is_rejected_unless_that_is_tolerated(tolerate, action):
    stored, incoming = make_record(Phase.AFTER), make_range((1, 4))
    case, steps = plan_steps(stored, incoming, {}, tolerate_state_mismatch=tolerate)
    assert case is Case.INVALID
    assert [(step.action, step.range) for step in steps] == [(action, incoming)]


@given(to=st.integers(0, 9), phase=st.sampled_from(Phase), before=st.integers(0, 9))
def test_an_initial_synchronization_starts_from_scratch(to, phase, before):
    _, steps = plan_steps(make_record(phase, (-1, before)), make_range((-1, to)), {"new": 1})
    assert [(s.action, s.range, s.layout) for s in steps] == [
        (BatchAction.INSERT, make_range((-1, to)), {"new": 1})
    ]


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
                self.dead_letters |= list_versions(step.range)
            else:
                assert step.action is BatchAction.SKIP, step

    def write(self, step: BatchStep) -> None:
        layout = step.layout or {"chunk": self.chance.randint(1, 4)}
        self.crash_at_random()
        self.record = BatchRecord(range=step.range, phase=Phase.BEFORE, layout=layout)
        rows = sorted(list_versions(step.range))
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


def deliver_all(seed: int, batches: int) -> Sink:
    """Deliver batches that begin at the latest point or a little before, and end anywhere later."""
    chance = random.Random(seed)
    sink, written = Sink(chance, crash_rate=0.1), 0
    for _ in range(batches):
        written += chance.randint(0, 4)
        start = max(sink.get_confirmed() - chance.choice([0, 0, 0, 1, 3]), 0)
        if start < written:
            end = chance.choice([written, chance.randint(start + 1, written)])
            deliver_one(sink, make_range((start, end)))
    sink.crash_rate = 0.0
    if sink.get_confirmed() < written:
        deliver_one(sink, make_range((sink.get_confirmed(), written)))
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
