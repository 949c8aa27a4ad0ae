"""The batch decision table, case by case, and properties of every pair of ranges."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from iscp_dagster.model.batch import (
    BatchAction,
    BatchRecord,
    Case,
    Decision,
    Phase,
    Range,
    claim_steps,
    decide,
)
from iscp_dagster.model.errors import BatchError
from iscp_dagster.model.moment import Moment
from support.paths import GOLDEN

TABLE = GOLDEN / "batch.txt"
HEAD = """\
# What becomes of an incoming range after the previous batch.
# Ranges are (from, to] in commit versions. "tolerant" is tolerate_state_mismatch, "gone" what was
# begun and cannot be read again.

"""
PREVIOUS = (4, 8)
POINTS = (2, 4, 5, 7, 8, 9, 11)


def span(ends: tuple[int, int]) -> Range:
    return Range(from_=Moment(ends[0]), to=Moment(ends[1]))


def record(phase: Phase, ends: tuple[int, int] = PREVIOUS) -> BatchRecord:
    return BatchRecord(range=span(ends), phase=phase, layout={"stored": 1})


def shown(decision: Decision) -> str:
    steps = "; ".join(f"{step.action.value} {step.range}" for step in decision.steps)
    cropped = f"crop {decision.cropped}; " if decision.cropped else ""
    return f"{decision.case.value:<12} {cropped}{steps}"


def table() -> str:
    lines = [f"{'previous':<16} {'incoming':<9} {'case':<12} steps"]
    lines.append(f"{'none':<16} {'(4, 8]':<9} {shown(decide(None, span(PREVIOUS)))}")
    for phase in Phase:
        previous = record(phase)
        for ends in combinations(POINTS, 2):
            decision = decide(previous, span(ends))
            start = f"{phase.value + ' ' + str(previous.range):<16} {span(ends)!s:<9}"
            lines.append(f"{start} {shown(decision)}")
            if decision.case is Case.INVALID:
                tolerant = decide(previous, span(ends), tolerate_state_mismatch=True)
                lines.append(f"{start} {shown(tolerant)}, tolerant")
            gone = decide(previous, span(ends), repeatable=False)
            if gone != decision:
                lines.append(f"{start} {shown(gone)}, gone")
    return HEAD + "\n".join(lines) + "\n"


def test_the_decision_table():
    assert table() == TABLE.read_text()


def test_a_replay_keeps_the_stored_layout_and_an_insert_has_none_yet():
    decision = decide(record(Phase.BEFORE), span((4, 11)))
    assert [step.layout for step in decision.steps] == [{"stored": 1}, None]


def test_an_empty_range_is_refused():
    with pytest.raises(BatchError, match=r"\(8, 8\] is empty"):
        span((8, 8))


ends = st.tuples(st.integers(0, 9), st.integers(0, 9)).filter(lambda pair: pair[0] < pair[1])


def versions(range_: Range) -> set[int]:
    return set(range(range_.from_.version + 1, range_.to.version + 1))


@given(previous=ends, incoming=ends, phase=st.sampled_from(Phase), repeatable=st.booleans())
def test_no_version_is_lost_or_doubled(previous, incoming, phase, repeatable):
    stored = record(phase, previous)
    decision = decide(stored, span(incoming), repeatable=repeatable)
    taken = [versions(step.range) for step in decision.steps]
    assert sum(map(len, taken)) == len(set().union(*taken))
    assert decision.steps == tuple(sorted(decision.steps, key=lambda s: s.range.from_.version))
    if decision.case is Case.INVALID:
        assert incoming[1] <= previous[0]
        return
    new = {v for v in versions(span(incoming)) if v > previous[1]}
    inserted = [s.range for s in decision.steps if s.action is BatchAction.INSERT]
    assert set().union(*map(versions, inserted)) == new
    replayed = [s.range for s in decision.steps if s.action is BatchAction.REPLAY]
    assert replayed in ([], [stored.range])
    assert repeatable or not replayed
    assert phase is Phase.BEFORE or not replayed


@given(
    previous=st.none() | ends, incoming=ends, phase=st.sampled_from(Phase), repeatable=st.booleans()
)
def test_a_claim_needs_the_dead_letters_only_for_what_is_gone(
    previous, incoming, phase, repeatable
):
    stored = None if previous is None else record(phase, previous)
    assume(previous is None or previous[0] < incoming[1])
    case, steps = claim_steps(stored, span(incoming), {"new": 1}, repeatable=repeatable)
    assert all(step.layout is not None for step in steps)
    assert BatchAction.REJECT not in {step.action for step in steps}
    aside = [step.range for step in steps if step.action is BatchAction.DEAD_LETTER]
    assert aside in ([], [stored and stored.range])
    assert not (repeatable and aside)
    assert steps[-1].range.to.version >= incoming[1]
    assert case is not Case.INVALID


@pytest.mark.parametrize(
    ("tolerate", "action"), [(False, BatchAction.REJECT), (True, BatchAction.SKIP)]
)
def test_a_claim_before_its_record_is_rejected_unless_that_is_tolerated(tolerate, action):
    stored, incoming = record(Phase.AFTER), span((1, 4))
    case, steps = claim_steps(stored, incoming, {}, tolerate_state_mismatch=tolerate)
    assert case is Case.INVALID
    assert [(step.action, step.range) for step in steps] == [(action, incoming)]


@given(to=st.integers(0, 9), phase=st.sampled_from(Phase), before=st.integers(0, 9))
def test_an_initial_synchronization_starts_from_scratch(to, phase, before):
    _, steps = claim_steps(record(phase, (-1, before)), span((-1, to)), {"new": 1})
    assert [(s.action, s.range, s.layout) for s in steps] == [
        (BatchAction.INSERT, span((-1, to)), {"new": 1})
    ]
