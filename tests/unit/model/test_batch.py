"""The batch decision table, case by case and as documented, and properties of all ranges."""

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
        decisions = [
            decide(
                None if case.startswith("none") else make_record(phase),
                make_range(ends),
                tolerate_state_mismatch=case.endswith("tolerated"),
                repeatable=repeatable,
            )
            for phase, repeatable in DOCUMENTED_PHASES
        ]
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
